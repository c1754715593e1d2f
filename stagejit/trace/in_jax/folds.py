"""`reduce` by any function, which is made of loops over elements and of monoids that are ops.

Input: operands, initial values, and a function of scalars. Output: the results. Invariant: elements
meet in the row-major order of what is reduced, and the initial value is combined once, first.

Where the function is associative, long rows are cut into parts side by side, so that a step of the
loop is an operation on many elements; the results of the parts are reduced in the same way. JAX
wants it to be so, and cannot know it; `associative.py` looks. Else elements meet one after the
other, as in XLA on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from stagejit.trace.windows.bodies import Body, body_of, mapped
from stagejit.trace.windows.monoids import COMBINES, REDUCTIONS, monoids_of

_ABREAST = 2048  # elements on which a step of a loop operates, if there are as many
_UNROLLED = 8  # elements that are combined without a loop


def reduce(
    *operands: Any, jaxpr: Any, dimensions: Sequence[int], in_parts: bool, **unused: Any
) -> list[Any]:
    """reduce(x, init, body)  -->  body(init, reduce body x)

    Over no elements it is init, whatever the body is. Where each result has one element, it is that
    element: JAX wants init to be the identity of the body, and XLA leaves it out here."""
    count = len(operands) // 2
    xs, inits = operands[:count], operands[count:]
    axes = tuple(map(int, dimensions))
    shape = [size for axis, size in enumerate(xs[0].shape) if axis not in axes]
    length = math.prod(xs[0].shape[axis] for axis in axes)
    if not xs[0].size or not length:
        return [jnp.broadcast_to(init, shape) for init in inits]
    if length == 1:
        return [x.reshape(shape) for x in xs]
    body = getattr(jaxpr, "jaxpr", jaxpr)
    functions = monoids_of(body, count)
    if functions:
        return [
            COMBINES[fn](init, REDUCTIONS[fn](x, axes))
            for fn, x, init in zip(functions, xs, inits, strict=True)
        ]
    combine = body_of(body, getattr(jaxpr, "consts", ()))
    rows = [_rows_first(x, axes) for x in xs]
    starts = [jnp.broadcast_to(init, shape) for init in inits]
    if not in_parts:
        return list(_one_by_one(mapped(combine, len(shape)), starts, rows))
    return list(mapped(combine, len(shape))(*starts, *_folded(combine, rows)))


def _rows_first(x: Any, axes: Sequence[int]) -> Any:
    """All that is reduced along axis 0."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    moved = lax.transpose(x, [*sorted(axes), *kept])
    return moved.reshape(-1, *(x.shape[axis] for axis in kept))


def _folded(body: Body, xs: Sequence[Any]) -> Sequence[Any]:
    """`xs` along axis 0, in parts side by side as long as that is worth it."""
    length, *shape = xs[0].shape
    parts = min(_ABREAST // math.prod(shape), math.isqrt(length))
    if length <= _UNROLLED or parts < 2:
        return _one_by_one(mapped(body, len(shape)), [x[0] for x in xs], [x[1:] for x in xs])
    tile = length // parts
    wide = [x[: parts * tile].reshape(parts, tile, *shape).swapaxes(0, 1) for x in xs]
    combine = mapped(body, len(shape) + 1)
    partial = _one_by_one(combine, [x[0] for x in wide], [x[1:] for x in wide])
    rest = (x[parts * tile :] for x in xs)
    return _folded(body, [jnp.concatenate(pair) for pair in zip(partial, rest, strict=True)])


def _one_by_one(combine: Body, starts: Sequence[Any], xs: Sequence[Any]) -> Sequence[Any]:
    """In a loop, unless they are few."""

    def step(at: Any, made: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(combine(*made, *(x[at] for x in xs)))

    length, made = xs[0].shape[0], tuple(starts)
    if length > _UNROLLED:
        looped: Sequence[Any] = lax.fori_loop(0, length, step, made)
        return looped
    for at in range(length):
        made = step(at, made)
    return made
