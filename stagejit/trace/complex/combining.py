"""Reductions, running results and scatters of complex numbers that are no sums.

Input: operands and parameters of a primitive. Output: what JAX functions that we compile compute of
them. Invariant: nothing here is in the order of a loop: pairs are combined with pairs, so there are
as many steps as the logarithm of the number of elements, and the result is the same each time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.trace.translation import Unsupported

Combine = Callable[[Any, Any], Any]

_COMBINES: dict[str, Combine] = {
    "add": lax.add, "mul": lax.mul, "max": lax.max, "min": lax.min,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor,
}  # fmt: skip
_EMPTY = {"mul": 1.0, "max": -np.inf, "min": np.inf}


def _over(combine: Combine, x: Any, axes: Sequence[int]) -> Any:
    """Elements of each axis combined, the first half with the second, until one is left."""
    for axis in sorted(axes, reverse=True):
        while (count := x.shape[axis]) > 1:
            half = count // 2
            first, middle, last = (
                lax.slice_in_dim(x, start, stop, axis=axis)
                for start, stop in ((0, half), (half, count - half), (count - half, count))
            )
            x = combine(first, last)
            x = lax.concatenate([x, middle], axis) if middle.shape[axis] else x
        x = lax.squeeze(x, (axis,))
    return x


def _reduction(fn: str) -> Callable[..., Any]:
    def function(x: Any, *, axes: Sequence[int], **_: Any) -> Any:
        if not all(x.shape[axis] for axis in axes):
            shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
            return jnp.full(shape, _EMPTY[fn], x.dtype)
        return _over(_COMBINES[fn], x, axes)

    return function


# -- scatters -------------------------------------------------------------------------------------


def _scatter(fn: str) -> Callable[..., Any]:
    return functools.partial(_scattered, _COMBINES[fn])


def _scattered(
    combine: Combine, x: Any, indices: Any, updates: Any, *, unique_indices: bool, **params: Any
) -> Any:
    """Updates of one element are combined among themselves, and then into it."""
    if not updates.size or not x.size:
        return x
    to = _targets(x, indices, updates, **params).ravel()
    updates, flat = updates.ravel(), x.ravel()
    if not unique_indices:
        order = jnp.argsort(to, stable=True)
        to = to[order]
        differs = to[1:] != to[:-1]
        edge = jnp.ones(1, np.bool_)
        updates = _running(combine, jnp.concatenate([edge, differs]), updates[order])
        to = jnp.where(jnp.concatenate([differs, edge]), to, x.size)
    before = flat.at[to].get(mode="fill", fill_value=0)
    return flat.at[to].set(combine(before, updates), mode="drop").reshape(x.shape)


def _running(combine: Combine, starts: Any, x: Any) -> Any:
    """Elements combined with those before them, back to the last one that starts anew."""

    def both(left: Any, right: Any) -> Any:
        (begun, a), (begins, b) = left, right
        return begun | begins, jnp.where(begins, b, combine(a, b))

    return lax.associative_scan(both, (starts, x))[1]


def _targets(
    x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **_: Any
) -> Any:
    """The number of the element of x that each update goes to; the size of x for none."""
    if x.size > np.iinfo(np.int32).max:
        raise Unsupported(f"a scatter into {x.size} elements")
    numbers = dimension_numbers
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = iter(updates.shape[axis] for axis in numbers.update_window_dims)
    window = [1 if axis in dropped else next(sizes) for axis in range(x.ndim)]
    clips = lax.GatherScatterMode.from_any(mode) == lax.GatherScatterMode.CLIP
    return lax.gather(
        lax.iota(np.int32, math.prod(x.shape)).reshape(x.shape),
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        window,
        mode="clip" if clips else "fill",
        fill_value=x.size,
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_prod": _reduction("mul"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "scatter-mul": _scatter("mul"),
    "scatter-max": _scatter("max"),
    "scatter-min": _scatter("min"),
}
# As JAX defines them: steps that combine neighbours, twice as far apart each time.
AS_JAX = frozenset({"cumprod", "cummax", "cummin", "cumlogsumexp"})
