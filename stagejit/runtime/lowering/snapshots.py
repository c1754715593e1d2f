"""One snapshot of weights for all parts of a program: what begins it, hands it on and ends it.

Input: equations that XLA runs, a lowering context of JAX. Output: the same equations with an
operand more for their bodies; calls in the block that is being built. Invariants: the first call
comes before all that reads weights, the last one behind all that a program does; neither is left
out or put together with another. See Note [Snapshots] in `cpu/snapshots.py`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from stagejit.compat import scan_counts, with_constant
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.cpu.native import snapshots as native
from stagejit.runtime.lowering import seams
from stagejit.runtime.lowering.ffi_calls import ffi_call
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Reshape
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.weights import weight_p
from stagejit.types import TensorType, u32

BEGIN, END = "stagejit_snapshot_begin", "stagejit_snapshot_end"
TYPE = TensorType(u32, (2,))  # an address
AVAL = jax.core.ShapedArray(TYPE.shape, np.uint32)
Value = tuple[Any, Any]  # of IR, with its abstract value
Item = NativeCall | DelegatedEquation | Reshape


def reads_weights(jaxpr: Any) -> bool:
    """Whether an equation of it, or of what it calls, is a weight."""
    return any(
        equation.primitive is weight_p or any(map(reads_weights, seams.subjaxprs(equation)))
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )


# -- bodies ---------------------------------------------------------------------------------------


def with_operand(equation: Any, enclosed: Callable[[Any, int], Any]) -> tuple[Any, int]:
    """A loop or branch that hands an operand more on to its bodies, and where that is among the
    operands. enclosed: a body that takes it at a place of its own."""
    params, atoms = dict(equation.params), list(equation.invars)
    kind = jax_name(equation.primitive)
    if kind == "scan":
        at, _ = scan_counts(params, len(atoms))
        params = with_constant(params, len(atoms)) | {"jaxpr": enclosed(params["jaxpr"], at)}
    elif kind == "while":
        inner = params["body_nconsts"]
        at = params["cond_nconsts"] + inner
        params |= {
            "body_jaxpr": enclosed(params["body_jaxpr"], inner),
            "body_nconsts": inner + 1,
        }
    else:
        at = len(atoms)
        params["branches"] = tuple(enclosed(body, at - 1) for body in params["branches"])
    atoms.insert(at, jex_core.Var(AVAL))
    return equation.replace(invars=atoms, params=params), at


def taking_one_more(body: Any, at: int) -> Any:
    """A closed jaxpr with an input more, which nothing reads."""
    jaxpr = body.jaxpr
    inputs = [*jaxpr.invars[:at], jex_core.Var(AVAL), *jaxpr.invars[at:]]
    names = list(jaxpr.debug_info.safe_arg_names(len(jaxpr.invars)))
    info = jaxpr.debug_info._replace(arg_names=(*names[:at], "snapshot", *names[at:]))
    return jex_core.ClosedJaxpr(jaxpr.replace(invars=inputs, debug_info=info), body.consts)


# -- calls ----------------------------------------------------------------------------------------


@functools.cache
def _register() -> None:
    """Tell XLA of both targets, and them of the record of now."""
    found = native.addresses()
    for name, symbol in ((BEGIN, native.BEGIN), (END, native.END)):
        handler: Any = jax.ffi.pycapsule(ctypes.c_void_p(found[symbol]))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(name, handler, platform="cpu", api_version=1)
    snapshots.tell(found[native.VARIABLE])


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
