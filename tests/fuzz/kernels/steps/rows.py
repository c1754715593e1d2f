"""Steps of random cases: reductions of one or several stages, and prefixes.

Input: a draft. Output: it has more values, or none where nothing fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stagejit.types import bool_, i32, i64
from tests.fuzz.kernels.draft import Draft, Drawn
from tests.fuzz.kernels.steps.elementwise import binary_of, scaled_of, unary_of

Axes = tuple[int, ...]


def reduction(d: Draft) -> None:
    x = d.one(_has_rows)
    reduce(d, x, _axes(d, x))


def row_stages(d: Draft) -> None:
    """Stages over the same rows: what a reduction gives joins its operand, which may be reduced
    again, and again."""
    x = d.one(_has_rows)
    axes = _axes(d, x)
    for _ in range(d.c.between(1, 3)):
        narrow = reduce(d, x, axes)
        if d.c.chance(3):
            narrow = unary_of(d, narrow)
        if narrow.dtype is not x.dtype:
            if not (narrow.dtype is i32 and x.dtype.is_float and x.dtype.bits >= 32):
                return
            narrow = d.convert(narrow, x.dtype)
        other = x if d.c.below(3) else d.elsewhere(x)
        x = binary_of(d, other, widen(d, narrow, x, axes))
        if d.c.chance(3):
            x = unary_of(d, x)


def softmax(d: Draft) -> None:
    x = d.one(lambda v: _has_rows(v) and v.dtype.is_float)
    _softmax_of(d, x, _axes(d, x))


def softmax_of_view(d: Draft) -> None:
    """Rows that do not lie in memory as they are numbered: transposed, repeated, stretched. Most of
    the axes are reduced."""
    x = d.one(lambda v: _has_rows(v) and v.dtype.is_float and v.size <= 3000)
    how = d.c.below(3) if x.rank > 1 else d.c.between(1, 2)
    if how == 0:
        x = d.view("transpose", x, permutation=d.c.order(x.rank))
    else:
        at, times = d.c.below(x.rank), d.c.pick((2, 3, 8, 17))
        shape = (*x.shape[:at], times, *x.shape[at:])
        kept = tuple(axis for axis in range(x.rank + 1) if axis != at)
        if len(shape) > 5:
            return
        x = d.view("broadcast", x, shape=shape, axes=kept)
        if how == 1:
            merged = (*shape[:at], times * shape[at + 1], *shape[at + 2 :])
            x = d.view("reshape", x, shape=merged)
    axes = tuple(axis for axis in range(x.rank) if d.c.below(4) < 3) or (x.rank - 1,)
    _softmax_of(d, x, axes)


def _softmax_of(d: Draft, x: Drawn, axes: Axes) -> None:
    if d.c.below(2):
        most = d.add("reduce", [x], exact=x.exact, bound=x.bound, fraction=x.fraction,
                     fn="max", axes=axes)  # fmt: skip
        y = d.map("sub", x, widen(d, most, x, axes))
    else:
        y = d.calm(x)
    kept = d.map("exp", d.calm(y, 40.0))
    kept = Drawn(kept.value, False, 30.0)
    weighted = kept
    if d.c.chance(3):
        weighted = d.elsewhere(weighted)
    if d.c.chance(3):
        weighted = d.map("mul", weighted, d.calm(d.like(x)))
    total = d.add("reduce", [weighted], exact=False, bound=10.0, fn="add", axes=axes)
    total = d.map("add", d.map("abs", total), d.splat(1.0, x.dtype, total.shape))
    if d.c.chance(4):
        kept = d.elsewhere(kept)
    d.map("div", kept, widen(d, total, x, axes))


def normalized(d: Draft) -> None:
    """(x - mean) * rsqrt(variance + 1) * weight"""
    x = d.one(lambda v: _has_rows(v) and v.dtype.is_float)
    axes = _axes(d, x)
    count = math.prod(x.shape[axis] for axis in axes)
    share = d.splat(1 / count, x.dtype, _kept_shape(x, axes))

    def mean(y: Drawn) -> Drawn:
        total = d.add("reduce", [d.calm(y, 30.0)], exact=False, bound=y.bound, fn="add", axes=axes)
        return Drawn(d.map("mul", total, share).value, False, y.bound)

    centered = d.map("sub", x, widen(d, mean(x), x, axes))
    variance = mean(d.map("square", d.calm(centered, 10.0)))
    one = d.splat(1.0, x.dtype, variance.shape)
    scale = d.map("rsqrt", d.map("add", variance, one))
    y = d.map("mul", d.calm(centered, 10.0), widen(d, scale, x, axes))
    if d.c.below(2):
        d.map("mul", y, d.calm(d.like(y)))


def cumulative(d: Draft) -> None:
    x = d.one(lambda v: v.rank > 0 and v.dtype is not bool_)
    fn = d.c.pick(("add", "max", "min", "mul"))
    axis = d.c.below(x.rank)
    extent = max(x.shape[axis], 1)
    if fn == "mul" and x.dtype.is_float:
        fn = "add"
    if fn == "add":
        x = d.calm(x, 50.0)
    y = d.add(
        "cumulative", [x], exact=x.exact, bound=x.bound * (extent if fn == "add" else 1),
        fraction=x.fraction, fn=fn, axis=axis, reverse=bool(d.c.below(2)),
    )  # fmt: skip
    if d.c.below(2):
        scaled_of(d, y)


# ------------------------------------------------------------------ parts


def reduce(d: Draft, x: Drawn, axes: Axes) -> Drawn:
    """One reduction of x with any function that it allows."""
    count = math.prod(x.shape[axis] for axis in axes)
    attrs: dict[str, Any] = {"axes": axes}
    if x.dtype is bool_:
        fns: Sequence[str] = ("and", "or", "xor")
    elif x.dtype.is_float:
        fns = ("add", "max", "min", "add", "max")
    else:
        fns = ("add", "max", "min", "mul", "and", "or", "xor")
    fn = d.c.pick(fns)
    if len(axes) == 1 and x.exact and d.c.chance(5):
        fn, attrs["dtype"] = d.c.pick(("argmax", "argmin")), d.c.pick((i32, i64))
        return d.add("reduce", [x], exact=True, bound=float(count), fn=fn, **attrs)
    if fn == "add":
        x = d.calm(x, 1000.0 / count + 30.0)
    bound = x.bound * count if fn == "add" else x.bound
    return d.add("reduce", [x], exact=x.exact, bound=bound, fraction=x.fraction, fn=fn, **attrs)


def widen(d: Draft, narrow: Drawn, x: Drawn, axes: Axes) -> Drawn:
    """A reduction's result for each element of its operand."""
    kept = tuple(axis for axis in range(x.rank) if axis not in axes)
    return d.view("broadcast", narrow, shape=x.shape, axes=kept)


def _kept_shape(x: Drawn, axes: Axes) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


def _has_rows(x: Drawn) -> bool:
    """Reductions of nothing are constants before there is a graph."""
    return x.rank > 0 and x.size > 0


def _axes(d: Draft, x: Drawn) -> Axes:
    return tuple(d.c.some(range(x.rank))) or (d.c.below(x.rank),)
