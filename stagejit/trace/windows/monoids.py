"""Windows reduced by a function that is associative, commutative and has an identity.

Input: an operand and `Windows`. Output: the reduction. Invariant: only the order of operations
differs from the definition, so each element of a window counts once, and no other one does.
Few taps are combined as they are; many axis by axis; a long axis by blocks, in three passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.graph.functions import identity
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.windows.geometry import MOST_TAPS, TAPS_A_BYTE, Windows
from stagejit.trace.windows.window import is_native, window
from stagejit.types import from_numpy


def reduced(fn: str, x: Any, windows: Windows) -> Any:
    """Each window of `x` reduced by a monoid; 16-bit floats in f32."""
    if not math.prod(windows.counts):
        return jnp.zeros(windows.counts, x.dtype)
    dtype = x.dtype
    if dtype == np.bool_:
        fn = {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(fn, fn)
    few = math.prod(windows.sizes) <= MOST_TAPS
    if few and is_native(x) and not _pays_by_axis(windows, x.dtype.itemsize):
        return _window(fn, x, windows)
    x = x.astype(accumulator(dtype))
    if few and not is_native(x):
        made = _by_taps(fn, x, windows)
    else:
        made = _axis_by_axis(fn, x, windows)
    return made.astype(dtype)


def _window(fn: str, x: Any, windows: Windows) -> Any:
    """As an op; holes are filled, as the op has none."""
    x = windows.with_holes(x, _identity(fn, x.dtype))
    return window(fn, x, windows.without_holes())


def accumulator(dtype: Any) -> Any:
    return np.float32 if jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4 else dtype


def _pays_by_axis(windows: Windows, itemsize: int) -> bool:
    """Whether fewer taps are worth storing what lies between one axis and the next."""
    taps, stored, before = 0, 0, list(windows.shape)
    for number, axis in enumerate(windows.axes):
        before[axis] = windows.counts[axis]
        taps += math.prod(before) * windows.sizes[axis]
        stored += math.prod(before) if number < len(windows.axes) - 1 else 0
    saved = math.prod(windows.counts) * math.prod(windows.sizes) - taps
    return saved > stored * 2 * itemsize * TAPS_A_BYTE


def bordered(x: Any, padding: tuple[tuple[int, int], ...], fn: str) -> Any:
    """`x` between borders of what a monoid does not notice: windows of single elements."""
    if not any(map(any, padding)):
        return x
    ones = (1,) * x.ndim
    return reduced(fn, x, Windows(x.shape, ones, ones, padding, ones, ones))


def _by_taps(fn: str, x: Any, windows: Windows) -> Any:
    """Tap with tap, in pairs: the sum of many is as exact as that of a tree."""
    if is_native(x):
        return _window(fn, x, windows)
    parts = windows.taps_of(windows.padded(x, _identity(fn, x.dtype)))
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2])  # noqa: B905, an odd one stays
        parts = [COMBINES[fn](a, b) for a, b in pairs] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def _axis_by_axis(fn: str, x: Any, windows: Windows) -> Any:
    """window of (m, n)  -->  window of (1, n) of window of (m, 1); those of long strides first"""
    if all(count == 1 or windows.is_trivial(axis) for axis, count in enumerate(windows.counts)):
        return _whole(fn, x, windows)
    for axis in windows.axes:
        one = Windows(x.shape, *windows.arguments).along(axis)
        long = one.sizes[axis] > MOST_TAPS
        if one.counts[axis] == 1:
            x = _whole(fn, x, one)
        elif not long:
            x = _by_taps(fn, x, one)
        else:
            x = _long(fn, x, one, axis)
    return x


def _whole(fn: str, x: Any, windows: Windows) -> Any:
    """One window along each axis that has any: a reduction of a slice."""
    axes = [axis for axis in range(x.ndim) if not windows.is_trivial(axis)]
    x = windows.padded(x, _identity(fn, x.dtype))
    stop, step = list(x.shape), [1] * x.ndim
    for axis in axes:
        step[axis] = windows.steps[axis]
        stop[axis] = (windows.sizes[axis] - 1) * step[axis] + 1
    x = lax.slice(x, [0] * x.ndim, stop, step)
    return jnp.expand_dims(REDUCTIONS[fn](x, tuple(axes)), axes)


def _long(fn: str, x: Any, windows: Windows, axis: int) -> Any:
    """Long windows along one axis: what a window needs of the block where it starts, with what it
    needs of the next one (van Herk, Gil and Werman); or windows of twice the size, again and again.
    """
    x = windows.padded(x, _identity(fn, x.dtype))
    size, step = windows.sizes[axis], windows.steps[axis]
    reach, count = (size - 1) * step + 1, x.shape[axis]
    positions = count - reach + 1
    made = (_from_blocks if fn in _CUMULATIVE else _doubled)(fn, x, axis, size, step, positions)
    return lax.slice_in_dim(made, 0, positions, windows.strides[axis], axis)


def _from_blocks(fn: str, x: Any, axis: int, size: int, step: int, positions: int) -> Any:
    """Blocks of `size` elements, `step` apart; the window at i is the rest of its block from i on,
    and the next block up to i."""
    neutral, before = _identity(fn, x.dtype), x.shape[:axis]
    after = x.shape[axis + 1 :]
    blocks = -(-x.shape[axis] // (size * step)) + 1
    x = _widened(x, axis, 0, blocks * size * step - x.shape[axis], neutral)
    x = x.reshape(*before, blocks, size, step, *after)
    first = lax.slice_in_dim(x, 0, size - 1, axis=axis + 1)
    ahead = _CUMULATIVE[fn](first, axis + 1)  # up to an element, without it
    ahead = _widened(ahead, axis + 1, 1, 0, neutral)
    rest = _CUMULATIVE[fn](x, axis + 1, reverse=True)
    here = lax.slice_in_dim(rest, 0, blocks - 1, axis=axis)
    there = lax.slice_in_dim(ahead, 1, blocks, axis=axis)
    made = COMBINES[fn](here, there).reshape(*before, (blocks - 1) * size * step, *after)
    return lax.slice_in_dim(made, 0, positions, axis=axis)


def _doubled(fn: str, x: Any, axis: int, size: int, step: int, positions: int) -> Any:
    """The window of `size` as windows whose sizes are powers of two, one after the other."""
    made, reached, width, power = None, 0, 1, x
    while True:
        if size & width:
            start = reached * step
            part = lax.slice_in_dim(power, start, start + positions, axis=axis)
            made = part if made is None else COMBINES[fn](made, part)
            reached += width
        if reached == size:
            return made
        apart = width * step
        left = lax.slice_in_dim(power, 0, power.shape[axis] - apart, axis=axis)
        power = COMBINES[fn](left, lax.slice_in_dim(power, apart, None, axis=axis))
        width *= 2


def _widened(x: Any, axis: int, low: int, high: int, value: Any) -> Any:
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, high, 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _identity(fn: str, dtype: Any) -> Any:
    """Of float sums it is -0, since 0 + -0 is +0."""
    if fn == "add" and jnp.issubdtype(dtype, np.inexact):
        return -jnp.zeros((), dtype)
    return jnp.asarray(identity(fn, from_numpy(dtype)), dtype)


COMBINES: dict[str, Callable[..., Any]] = {
    "add": lax.add, "mul": lax.mul, "max": lax.max, "min": lax.min,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor,
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": lax.reduce_sum, "mul": lax.reduce_prod, "max": lax.reduce_max, "min": lax.reduce_min,
    "and": lax.reduce_and, "or": lax.reduce_or, "xor": lax.reduce_xor,
}  # fmt: skip
_CUMULATIVE: dict[str, Callable[..., Any]] = {
    "add": lax.cumsum, "mul": lax.cumprod, "max": lax.cummax, "min": lax.cummin,
}  # fmt: skip


def monoid_of(body: Any) -> str | None:
    """The function of a body that combines its two arguments by one that is associative."""
    found = monoids_of(body, 1)
    return found[0] if found else None


def monoids_of(body: Any, count: int) -> list[str]:
    """The functions of a body of `count` results, if each combines just its own two arguments by
    one that is associative; else none."""
    if body.constvars or len(body.invars) != 2 * count:
        return []
    made = {id(result): equation for equation in body.eqns for result in equation.outvars}
    functions = []
    for number, result in enumerate(body.outvars):
        equation = made.get(id(result))
        own = {id(body.invars[number]), id(body.invars[count + number])}
        if equation is None or set(map(id, equation.invars)) != own:
            return []
        name = (jax_name(equation.primitive) or "").replace("add_any", "add")
        if name not in COMBINES:
            return []
        functions.append(name)
    return functions
