"""Moments of weights, in jaxprs: the backward program is of that of the forward program, or fails.

Input: the number of a moment, as an operand and as a weight. Output: three primitives, `check_p`,
which fails unless both are the same, `after_p`, which has values wait for that, and `at_p`, which
says of which moment a program reads its weights. Invariant: where a program that has them returns,
all that it computed is of one moment.

Note [Moments]: the moment of a bound function is a weight like its others, of three words: two that
no other function has, and the number of its last update. So a program that reads it and others
reads both of one moment. A forward program returns it; a backward program, which reads the weights
again, compares. Words of another function, or of none, say nothing: where JAX evaluates both
branches of a batched `cond`, the backward part of one is given what the other one returned in the
same place.

Note [Moments that are held]: outside of any program, both parts of a gradient read the weights of a
moment that is held from then on (`runtime/gradients/held.py`): both take a snapshot of it (see
`runtime/cpu/snapshots.py`), as an operand of `at_p`, which is the number of the moment that the
program reads. A program has one snapshot for all that it reads, in its bodies, too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from stagejit.compat import Literal, unfolded
from stagejit.errors import GoneError
from stagejit.graph.ir import Value
from stagejit.trace.calls.inline import called_jaxpr
from stagejit.trace.weights import known_p

check_p: Any = Primitive("stagejit_check_moment")
after_p: Any = Primitive("stagejit_after")
at_p: Any = Primitive("stagejit_at_moment")
WORDS = 3
_NOT_MAPPED = None  # as JAX says it


def same_value(equation: Any, operands: Sequence[Value]) -> Value | None:
    """The operand that an equation gives, if it does: `known_p` and `at_p`; `check_p` and `after_p`
    where both moments are one value, as in a program that has both parts of a gradient."""
    if equation.primitive in (known_p, at_p):
        return operands[0]
    if equation.primitive is check_p and operands[0] is operands[1]:
        return operands[1]
    if equation.primitive is after_p and _is_weight(operands[1]):
        return operands[0]
    return None


def snapshot_operand(jaxpr: Any) -> int | None:
    """Which operand of a jaxpr says of which moment its weights are; none of a batch does. Of
    several, the first: where those of the others are not the same, `check_p` fails."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    numbers = {variable: number for number, variable in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        at: int | None = 1 if equation.primitive is at_p else None
        if (called := called_jaxpr(equation)) is not None:
            at = snapshot_operand(called) if len(called.in_avals) == len(equation.invars) else None
        if at is None or isinstance(atom := equation.invars[at], Literal):
            continue
        if atom in numbers and len(atom.aval.shape) == 1:
            return numbers[atom]
    return None


def _is_weight(value: Value) -> bool:
    return value.op is not None and value.op.definition.is_weight


def refuse(function: str, *_: Any) -> Any:
    """Raises GoneError."""
    raise GoneError(
        f"{function}: its weights were updated between the forward and the backward program of a "
        "gradient, which needs those of before",
        next_step="call update() before the first or after the second of them, or compute the "
        "gradient in one program: stagejit.jit(jax.grad(...)) around it",
    )


def _check(then: Any, now: Any, *, function: str) -> Any:
    """The moment of now. then: one, or a batch of them."""

    def fail() -> Any:
        what: Any = jax.ShapeDtypeStruct(now.shape, now.dtype)  # type: ignore[no-untyped-call]
        called = functools.partial(refuse, function)
        with unfolded():  # it is called in a program alone
            return jax.pure_callback(called, what, vmap_method="sequential")

    return lax.cond(_is_gone(then, now), fail, lambda: now)


def _is_gone(then: Any, now: Any) -> Any:
    """Whether one of the moments is an earlier one of the same function."""
    differs = (then != now).reshape(-1, WORDS)  # of both: nothing is made of a weight alone
    gone = ~differs[:, 0] & ~differs[:, 1] & differs[:, 2]
    return gone[0] if len(gone) == 1 else gone.any()


def _checked_now(then: Any, now: Any, *, function: str) -> Any:
    if _is_gone(np.asarray(then), np.asarray(now)):
        refuse(function)
    return now


def has_numbers(aval: Any) -> bool:
    """Whether `after_p` takes it: random keys, and what has no elements, wait for nothing."""
    return not jnp.issubdtype(aval.dtype, jax.dtypes.extended) and (aval.dtype != jax.dtypes.float0)


def _after(value: Any, checked: Any) -> Any:
    """The value. Nobody knows that no moment has this number, so nobody leaves the check out."""
    return jnp.where(checked[2] == np.uint32(0xFFFFFFFF), jnp.zeros_like(value), value)


def _check_of_batch(args: Sequence[Any], dims: Sequence[Any], *, function: str) -> Any:
    """One for all. The moment of now is none of a batch."""
    then = args[0] if dims[0] is _NOT_MAPPED else jnp.moveaxis(args[0], dims[0], 0)
    return check_p.bind(then, args[1], function=function), _NOT_MAPPED


def _after_of_batch(args: Sequence[Any], dims: Sequence[Any]) -> Any:
    """What is checked is none of a batch."""
    return after_p.bind(*args), dims[0]


def _after_forward(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    value, checked = primals
    tangent = tangents[0]
    if type(tangent) is not ad.Zero:
        tangent = after_p.bind(tangent, checked)
    return after_p.bind(value, checked), tangent


def _after_backward(cotangent: Any, _value: Any, checked: Any) -> list[Any]:
    if type(cotangent) is not ad.Zero:
        cotangent = after_p.bind(cotangent, checked)
    return [cotangent, None]


check_p.def_impl(_checked_now)
check_p.def_abstract_eval(lambda then, now, *, function: now)
batching.primitive_batchers[check_p] = _check_of_batch
mlir.register_lowering(check_p, mlir.lower_fun(_check, multiple_results=False))

after_p.def_impl(lambda value, checked: value)
after_p.def_abstract_eval(lambda value, checked: value)
batching.primitive_batchers[after_p] = _after_of_batch
ad.primitive_jvps[after_p] = _after_forward
ad.primitive_transposes[after_p] = _after_backward
mlir.register_lowering(after_p, mlir.lower_fun(_after, multiple_results=False))

at_p.def_impl(lambda value, snapshot: value)
at_p.def_abstract_eval(lambda value, snapshot: value)
mlir.register_lowering(at_p, lambda ctx, value, snapshot: [value])
batching.primitive_batchers[at_p] = lambda args, dims: (at_p.bind(*args), dims[0])
