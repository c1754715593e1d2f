"""Windows reduced by any function, and selections in windows.

Input: operands, `Windows` and functions of scalars. Output: the results. Invariant: such a function
is given the taps of a window in row-major order, for it may be neither associative nor commutative.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.trace.windows.geometry import MOST_TAPS, Windows
from stagejit.trace.windows.monoids import accumulator, bordered, reduced

Body = Callable[..., Sequence[Any]]

# Windows around an element that one kernel asks, one after the other: each reads two arrays.
MOST_WINDOWS = 16


def reduced_by(body: Body, xs: Sequence[Any], inits: Sequence[Any], windows: Windows) -> list[Any]:
    """Each window reduced by a function of accumulators and elements, in row-major order."""
    if not math.prod(windows.counts):
        return [jnp.zeros(windows.counts, x.dtype) for x in xs]
    padded = [windows.padded(x, 0) for x in xs]
    known = None if windows.are_whole else windows.inside()
    body = mapped(body, len(windows.shape))
    start = [jnp.broadcast_to(init, windows.counts) for init in inits]

    def step(made: Sequence[Any], taps: Sequence[Any], inside: Any) -> list[Any]:
        new = body(*made, *taps)
        if inside is None:
            return list(new)
        return [lax.select(inside, a, b) for a, b in zip(new, made, strict=True)]

    return _over_taps(step, start, padded, known, windows)


def _over_taps(
    step: Callable[..., list[Any]],
    start: list[Any],
    padded: Sequence[Any],
    known: Any,
    windows: Windows,
) -> list[Any]:
    """`step` of what it made, the next tap of each operand, and which of the taps exist."""
    every = [*padded] if known is None else [*padded, known]
    count = len(padded)

    def taken(made: list[Any], tap: Callable[[Any], Any]) -> list[Any]:
        taps = [tap(x) for x in every]
        return step(made, taps[:count], taps[count] if known is not None else None)

    if math.prod(windows.sizes) > MOST_TAPS:
        made: list[Any] = lax.fori_loop(
            0,
            math.prod(windows.sizes),
            lambda k, made: taken(made, lambda x: windows.tap_in_loop(x, k)),
            start,
        )
        return made
    for number in windows.taps:
        start = taken(start, functools.partial(windows.tap, number=number))
    return start


def mapped(body: Body, rank: int) -> Body:
    """A function of scalars for arrays."""
    for _ in range(rank):
        body = jax.vmap(body)
    return body


def body_of(jaxpr: Any, consts: Sequence[Any]) -> Body:
    return functools.partial(jax.core.eval_jaxpr, jaxpr, consts)


def selected(select: Body, x: Any, windows: Windows) -> Any:
    """The number of the selected tap of each window, in row-major order: the first, unless a later
    one takes its place. Where no tap is an element of `x`, -1."""
    if not math.prod(windows.counts):
        return jnp.zeros(windows.counts, np.int32)
    padded = windows.padded(x, 0)
    known = None if windows.are_whole else windows.inside()
    select = mapped(select, x.ndim)
    best = jnp.zeros(windows.counts, x.dtype)
    chosen, number = jnp.full(windows.counts, -1, np.int32), jnp.zeros((), np.int32)

    def step(made: Sequence[Any], taps: Sequence[Any], inside: Any) -> list[Any]:
        best, chosen, number = made
        (keeps,) = select(best, taps[0])
        takes = ~keeps | (chosen < 0)
        if inside is not None:
            takes &= inside
        return [
            jnp.where(takes, taps[0], best),
            jnp.where(takes, number, chosen),
            number + 1,
        ]

    return _over_taps(step, [best, chosen, number], [padded], known, windows)[1]


def gathered(chosen: Any, x: Any, windows: Windows) -> Any:
    """For each window the element of `x` at the tap that it has chosen; 0 where there is none."""
    made = jnp.zeros(windows.counts, x.dtype)
    for number, tap in enumerate(windows.taps):
        element = reduced("add", x, windows.tap_alone(tap))
        made = jnp.where(chosen == number, element, made)
    return made


def scattered(scatter: Body, chosen: Any, source: Any, init: Any, windows: Windows) -> Any:
    """For each element the init value combined with the source of those windows that chose it."""
    scatter = mapped(scatter, 2 * len(windows.shape))

    def step(made: Any, hit: Any, what: Any) -> Any:
        (new,) = scatter(made, jnp.broadcast_to(what, made.shape))
        return jnp.where(hit, new, made)

    made = jnp.broadcast_to(init, _grid(windows))
    return _from_grid(_over_windows(step, made, chosen, source, windows), init, windows)


def summed(chosen: Any, source: Any, windows: Windows) -> Any:
    """For each element the sum of the source of those windows that chose it."""
    dtype, zero = source.dtype, jnp.zeros((), accumulator(source.dtype))
    add = lax.bitwise_or if dtype == np.bool_ else lax.add

    def step(made: Any, hit: Any, what: Any) -> Any:
        return add(made, jnp.where(hit, what, zero))

    made = jnp.broadcast_to(zero, _grid(windows))
    made = _over_windows(step, made, chosen, source.astype(zero.dtype), windows)
    return _from_grid(made, zero, windows).astype(dtype)


def _grid(windows: Windows) -> list[int]:
    """The array of all [q, r], ..., see `_over_windows`: as far as there are elements."""
    grid = []
    for (low, _), extent, stride in zip(
        windows.padding, windows.shape, windows.strides, strict=True
    ):
        grid += [-(-max(low + extent, 1) // stride), stride]
    return grid


def _from_grid(made: Any, init: Any, windows: Windows) -> Any:
    """The elements of the operand."""
    pairs = zip(made.shape[::2], made.shape[1::2], strict=True)
    made = made.reshape([row * stride for row, stride in pairs])
    crop = [
        (-low, low + extent - size, 0)
        for (low, _), extent, size in zip(windows.padding, windows.shape, made.shape, strict=True)
    ]
    return lax.pad(made, init, crop)


def _over_windows(
    step: Callable[[Any, Any, Any], Any], made: Any, chosen: Any, source: Any, windows: Windows
) -> Any:
    """`step` of what it made, whether a window has chosen each element, and its source; for one
    window around each element after the other, in row-major order.

    Position p of the padded operand, q * stride + r, is tap r + j * stride of window q - j: so the
    windows that may have chosen it are one of each j, and for each of them all elements ask
    together, as an array [q, r] for each axis. Where there are many, a loop counts some of the j.
    """
    most = [(size - 1) // by for size, by in zip(windows.sizes, windows.strides, strict=True)]
    looped = _looped_axes(most)
    rows = _grid(windows)[::2]
    if not looped:
        for back in itertools.product(*(range(last, -1, -1) for last in most)):
            moved = tuple(
                (j, row - count - j)
                for j, row, count in zip(back, rows, windows.counts, strict=True)
            )
            which = bordered(chosen, moved, "max")  # the number of no tap outside
            made = _asked(step, made, which, bordered(source, moved, "add"), back, windows)
        return made
    config = [
        (last, row - count, 0) for last, row, count in zip(most, rows, windows.counts, strict=True)
    ]
    chosen, source = (lax.pad(x, jnp.asarray(-1, x.dtype), config) for x in (chosen, source))
    sizes = [most[axis] + 1 for axis in looped]

    def body(number: Any, made: Any) -> Any:
        counted = dict(zip(looped, jnp.unravel_index(number, sizes), strict=True))
        steps = (range(1) if axis in counted else range(last + 1) for axis, last in enumerate(most))
        for own in itertools.product(*steps):
            at = [counted.get(axis, k) for axis, k in enumerate(own)]
            which, what = (lax.dynamic_slice(x, at, rows) for x in (chosen, source))
            back = [last - k for last, k in zip(most, at, strict=True)]
            made = _asked(step, made, which, what, back, windows)
        return made

    return lax.fori_loop(0, math.prod(sizes), body, made)


def _looped_axes(most: Sequence[int]) -> list[int]:
    """The axes along which a loop goes over windows: the outer ones, as far as there are too many
    for code."""
    looped, count = [], math.prod(last + 1 for last in most)
    for axis, last in enumerate(most):
        if count > MOST_WINDOWS and last:
            looped.append(axis)
            count //= last + 1
    return looped


def _asked(
    step: Callable[[Any, Any, Any], Any], made: Any, which: Any, what: Any, back: Sequence[Any],
    windows: Windows,
) -> Any:  # fmt: skip
    grid = _grid(windows)
    shape = [size for row in grid[::2] for size in (row, 1)]
    own, numbers = _tap_at(back, grid, windows)
    return step(made, own & (which.reshape(shape) == numbers), what.reshape(shape))


def _tap_at(back: Sequence[Any], grid: Sequence[int], windows: Windows) -> tuple[Any, Any]:
    """For each [q, r], ... whether window q - back has a tap there, and its number."""
    own, numbers = jnp.ones((), bool), jnp.zeros((), np.int32)
    for axis, (size, stride) in enumerate(zip(windows.sizes, windows.strides, strict=True)):
        at = lax.broadcasted_iota(np.int32, grid, 2 * axis + 1) + back[axis] * stride
        own = own if size % stride == 0 else own & (at < size)
        numbers = numbers * size + at
    return own, numbers
