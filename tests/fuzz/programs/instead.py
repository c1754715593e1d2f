"""JAX's modules as the judge evaluates programs with them, operation by operation.

Input: a module of JAX's. Output: the same with other functions where XLA's are wrong. Invariant: a
program cannot tell one from the other but by values; what has no value yet, in a transformation,
is JAX's own where a derivative of it is needed, unless that is wrong, too.

Note [Where jax is wrong]: XLA clamps slices of slices in loops wrongly, loses NaN in windowed
minima, scans u8 wrongly, has a float64 log1p of few digits, and gives the gradient of a pooling to
the border where that follows NaN, or where a window is -inf (so that it is lost). The judge runs no
loop of XLA's, takes scans, windows and log1p from NumPy, and derives poolings itself.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Instead(types.SimpleNamespace):
    """A module of JAX's in which some names mean something else."""

    def __init__(self, module: Any, instead: dict[str, Any]) -> None:
        super().__init__(**instead)
        self.__module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__module, name)


def _log1p(x: Any) -> Any:
    return jnp.asarray(np.log1p(np.asarray(x))) if _is_concrete(x) else jnp.log1p(x)


def _is_concrete(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer)


def _cumulative(name: str, fn: Any) -> Callable[..., Any]:
    own = getattr(lax, name)

    def evaluate(x: Any, axis: int = 0, reverse: bool = False) -> Any:
        if not _is_concrete(x):
            return own(x, axis=axis, reverse=reverse)
        array = np.asarray(x)
        array = np.flip(array, axis) if reverse else array
        made = fn.accumulate(array, axis=axis, dtype=array.dtype)
        return jnp.asarray(np.flip(made, axis) if reverse else made)

    return evaluate


def _reduce_window(
    x: Any, init: Any, fn: Any, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> Any:
    if not _is_concrete(x):
        is_pooling = fn in _KEEPS and init == (-np.inf if fn is lax.max else np.inf)
        make = _pooled if is_pooling else lax.reduce_window
        return make(x, init, fn, sizes, strides, padding)
    combine = {lax.add: np.add, lax.max: np.maximum, lax.min: np.minimum}[fn]
    array = np.asarray(x)
    pads = lax.padtype_to_pads(array.shape, sizes, strides, padding)
    array = np.pad(array, pads, constant_values=np.asarray(init))
    windows = np.lib.stride_tricks.sliding_window_view(array, tuple(sizes))
    windows = windows[tuple(slice(None, None, stride) for stride in strides)]
    axes = tuple(range(array.ndim, 2 * array.ndim))
    made = combine.reduce(windows, axis=axes, initial=np.asarray(init)[()], dtype=array.dtype)
    return jnp.asarray(made)


_KEEPS: dict[Any, Any] = {lax.max: jnp.greater_equal, lax.min: jnp.less_equal}


def _pooled(
    x: Any, init: Any, fn: Any, sizes: Sequence[int], strides: Sequence[int], padding: str
) -> Any:
    """The derivative is that of one element of each window: of the first, unless a later one takes
    its place, as in `lax.select_and_scatter_add`; but never of one in the border."""
    pads = lax.padtype_to_pads(x.shape, sizes, strides, padding)
    counts = [
        (extent + low + high - size) // stride + 1
        for extent, size, stride, (low, high) in zip(x.shape, sizes, strides, pads, strict=True)
    ]

    def taps(array: Any, border: Any) -> list[Any]:
        wide = jnp.pad(array, pads, constant_values=border)
        firsts = itertools.product(*map(range, sizes))
        return [
            wide[
                tuple(
                    slice(at, at + (count - 1) * stride + 1, stride)
                    for at, count, stride in zip(first, counts, strides, strict=True)
                )
            ]
            for first in firsts
        ]

    @jax.custom_jvp
    def pool(array: Any) -> Any:
        return _reduce_window(array, init, fn, sizes, strides, padding)

    @pool.defjvp
    def derive(primals: Any, tangents: Any) -> Any:
        (array,), (tangent,) = primals, tangents
        best, chosen = jnp.zeros(counts, array.dtype), jnp.zeros(counts, tangent.dtype)
        none = jnp.ones(counts, bool)
        inside = taps(jnp.ones(array.shape, bool), False)
        for element, moved, known in zip(taps(array, 0), taps(tangent, 0), inside, strict=True):
            takes = known & (none | ~_KEEPS[fn](best, element))
            best, chosen = jnp.where(takes, element, best), jnp.where(takes, moved, chosen)
            none &= ~takes
        return pool(array), chosen

    return pool(x)


def _scan(f: Any, init: Any, xs: Any = None, length: int | None = None, **how: Any) -> Any:
    """JAX evaluates no loop of no steps step by step, since no step tells what it stacks."""
    steps = length if length is not None else len(jax.tree.leaves(xs)[0])
    if steps:
        return lax.scan(f, init, xs, length, **how)
    with jax.disable_jit(False):
        _, stacked = jax.eval_shape(lambda init, xs: lax.scan(f, init, xs, length), init, xs)
    empty = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), stacked)
    return jax.tree.map(jnp.asarray, init), empty


def _map(f: Any, xs: Any, **how: Any) -> Any:
    steps = len(jax.tree.leaves(xs)[0])
    return lax.map(f, xs, **how) if steps else _scan(lambda _, x: (None, f(x)), None, xs)[1]


_FLOATS = ("float16", "bfloat16", "float32", "float64")
OF_JNP: dict[str, Any] = {**dict.fromkeys(_FLOATS, jnp.float64), "log1p": _log1p}
LOOPS: dict[str, Any] = {"scan": _scan, "map": _map}
OF_LAX: dict[str, Any] = {
    **LOOPS,
    "cumsum": _cumulative("cumsum", np.add),
    "cumprod": _cumulative("cumprod", np.multiply),
    "cummax": _cumulative("cummax", np.maximum),
    "cummin": _cumulative("cummin", np.minimum),
    "reduce_window": _reduce_window,
}
