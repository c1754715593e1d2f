"""One snapshot of weights for all parts of a program: what begins it, hands it on and ends it.

Input: equations that XLA runs, a lowering context of JAX. Output: the same equations with an
operand more, for their bodies, or to give the snapshot back where a callback fails; calls in the
block that is being built. Invariants: the first call comes before all that reads weights, the last
one behind all that a program does; neither is left out or put together with another. See Note
[Snapshots] in `cpu/snapshots.py`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.extend.core.primitives import jit_p

from stagejit.base.records import record
from stagejit.compat import scan_counts, with_constant
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.cpu.native import snapshots as native
from stagejit.runtime.cpu.native import support
from stagejit.runtime.lowering import seams
from stagejit.runtime.lowering.ffi_calls import ffi_call
from stagejit.runtime.lowering.marks import with_input
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Reshape
from stagejit.trace.calls.inline import called_jaxpr, held_operands
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.weights import weight_p
from stagejit.types import TensorType, u32

BEGIN, END = "stagejit_snapshot_begin", "stagejit_snapshot_end"
TYPE = TensorType(u32, (snapshots.SNAPSHOT_NBYTES // 4,))
AVAL = jax.core.ShapedArray(TYPE.shape, np.uint32)
Value = tuple[Any, Any]  # of IR, with its abstract value
Item = NativeCall | DelegatedEquation | Reshape


# What calls a function of Python's, which may raise.
_CALLBACKS = {"pure_callback", "io_callback", "debug_callback"}


def reads_weights(jaxpr: Any) -> bool:
    """Whether an equation of it, or of what it calls, is a weight."""
    return _any_equation(jaxpr, lambda equation: equation.primitive is weight_p)


def asks_for_one(jaxpr: Any) -> bool:
    """Whether it wants the snapshot: also one that reads nothing, but has a callback, which may
    fail."""
    return _any_equation(jaxpr, lambda each: each.primitive is weight_p or is_callback(each))


def is_callback(equation: Any) -> bool:
    return jax_name(equation.primitive) in _CALLBACKS


def _any_equation(jaxpr: Any, asked: Callable[[Any], bool]) -> bool:
    return any(
        asked(equation) or any(_any_equation(inner, asked) for inner in seams.subjaxprs(equation))
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )


# -- bodies ---------------------------------------------------------------------------------------


def is_loop_or_branch(equation: Any) -> bool:
    return jax_name(equation.primitive) in ("scan", "while", "cond")


def with_operand(equation: Any, snapshot: Any, enclosed: Callable[[Any, int], Any]) -> Any:
    """A loop or branch that hands an operand more on to its bodies, and to its condition if that
    asks for it. enclosed: a body that takes it at a place of its own."""
    params, atoms = dict(equation.params), list(equation.invars)
    kind = jax_name(equation.primitive)
    if kind == "scan":
        at, _ = scan_counts(params, len(atoms))
        params = with_constant(params, len(atoms)) | {"jaxpr": enclosed(params["jaxpr"], at)}
        atoms.insert(at, snapshot)
    elif kind == "while":
        outer, inner = params["cond_nconsts"], params["body_nconsts"]
        params |= {
            "body_jaxpr": enclosed(params["body_jaxpr"], inner),
            "body_nconsts": inner + 1,
        }
        atoms.insert(outer + inner, snapshot)
        if asks_for_one(params["cond_jaxpr"]):
            params |= {
                "cond_jaxpr": enclosed(params["cond_jaxpr"], outer),
                "cond_nconsts": outer + 1,
            }
            atoms.insert(outer, snapshot)
    else:
        params["branches"] = tuple(enclosed(b, len(atoms) - 1) for b in params["branches"])
        atoms.append(snapshot)
    return equation.replace(invars=atoms, params=params)


def taking_one_more(body: Any, at: int) -> Any:
    """A closed jaxpr with an input more, which nothing reads."""
    jaxpr = body.jaxpr
    inputs = [*jaxpr.invars[:at], jex_core.Var(AVAL), *jaxpr.invars[at:]]
    names = list(jaxpr.debug_info.safe_arg_names(len(jaxpr.invars)))
    info = jaxpr.debug_info._replace(arg_names=(*names[:at], "snapshot", *names[at:]))
    return jex_core.ClosedJaxpr(jaxpr.replace(invars=inputs, debug_info=info), body.consts)


# -- callbacks ------------------------------------------------------------------------------------


@record
class _GivingBack:
    """A flat function that takes a snapshot first, and gives it back if it fails. types: shapes and
    dtypes that it has to return; JAX looks at that, too, but we do not learn what it finds."""

    function: Callable[..., Any]
    types: tuple[tuple[tuple[int, ...], Any], ...] | None

    def __call__(self, snapshot: Any, *args: Any) -> Any:
        try:
            made = self.function(*args)
            failed = self.types is not None and (
                not isinstance(made, Sequence) or tuple(map(_type, made)) != self.types
            )
        except BaseException:
            failed = True
            raise
        finally:
            if failed:
                snapshots.give_back(np.asarray(snapshot))
        return made


def _type(returned: Any) -> tuple[tuple[int, ...], Any]:
    """The shape, and the dtype as JAX takes it, without 64 bits where it has none."""
    array = np.asarray(returned)
    return array.shape, jax.dtypes.canonicalize_dtype(array.dtype)


def giving_back(equation: Any, snapshot: Any) -> Any:
    """A callback with an operand more, the first one, which is a snapshot."""
    types = None
    if equation.params.get("result_avals") is not None:
        types = tuple((aval.shape, aval.dtype) for aval in equation.params["result_avals"])
    callback = _GivingBack(equation.params["callback"], types)
    return equation.replace(
        invars=[snapshot, *equation.invars],
        params=equation.params | {"callback": callback},
    )


def giving_back_inside(body: Any, at: int) -> Any:
    """A closed jaxpr with an input more, a snapshot, which its callbacks give back."""
    made = taking_one_more(body, at)
    jaxpr, snapshot = made.jaxpr, made.jaxpr.invars[at]
    equations = [_with_snapshot(equation, snapshot) for equation in jaxpr.eqns]
    return jex_core.ClosedJaxpr(jaxpr.replace(eqns=equations), made.consts)


def _with_snapshot(equation: Any, snapshot: Any) -> Any:
    """What it hands on, or gives back, if it has callbacks."""
    if is_callback(equation):
        return giving_back(equation, snapshot)
    if not any(map(asks_for_one, seams.subjaxprs(equation))):
        return equation
    if is_loop_or_branch(equation):
        return with_operand(equation, snapshot, giving_back_inside)
    if (called := called_jaxpr(equation)) is not None and _is_plain(equation):
        atoms = [*equation.invars, snapshot]
        params = with_input(equation, giving_back_inside(called, len(equation.invars)))
        return equation.replace(invars=atoms, params=params, primitive=jit_p)
    return equation


def _is_plain(equation: Any) -> bool:
    """Whether a call is no more than what it calls."""
    has_own = jax_name(equation.primitive) == "custom_linear_solve"  # operands
    return not has_own and not any(held_operands(equation))


# -- calls ----------------------------------------------------------------------------------------


@functools.cache
def _register() -> None:
    """Tell XLA of both targets, and them of the moment of now."""
    found = native.addresses(support.addresses())
    for name, symbol in ((BEGIN, native.BEGIN), (END, native.END)):
        handler: Any = jax.ffi.pycapsule(ctypes.c_void_p(found[symbol]))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, handler, platform="cpu", api_version=1)
    snapshots.tell(found[native.VARIABLE], found[native.GIVE_BACK])


def begun(ctx: Any) -> Value:
    """The snapshot of a call."""
    _register()
    inner = ctx.replace(avals_in=[], avals_out=[AVAL])
    (value,) = ffi_call(inner, BEGIN, (), (), None, has_effects=True)
    return value, AVAL


def end(ctx: Any, snapshot: Value, after: Iterable[Value]) -> None:
    """The call has it no more, once there is what `after` says."""
    operands = [snapshot, *after]
    inner = ctx.replace(avals_in=[aval for _, aval in operands], avals_out=[])
    ffi_call(inner, END, [value for value, _ in operands], (), None, has_effects=True)


def last_results(items: Sequence[Item]) -> list[int]:
    """Values that are there once all items are done: one of each item that no later one with
    results waits for."""
    read, found = set[int](), list[int]()
    for item in reversed(items):
        if isinstance(item, Reshape):
            results, operands = [item.result], [item.operand]
        else:
            results = [number for number in item.results if number is not None]
            operands = [number for number in item.operands if number is not None]
        if results:
            if read.isdisjoint(results):
                found.append(results[0])
            read.update(operands)
    return found
