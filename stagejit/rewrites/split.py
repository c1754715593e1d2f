"""split-reduce: a reduction with few results becomes two, so that workers can share it.

Input: a `reduce` over many elements that leaves few rows. Output: partial results of P equal
parts along one reduced axis, then a reduction of those. Invariant: P depends on the shape only,
so results are the same on every machine and for any number of threads; 16-bit floats still round
once.

Note [Uneven parts]: an axis of `parts * size + rest` elements is reduced as a view of (parts, size)
and a short remainder, which the last step joins. `parts` is chosen to leave the least remainder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driver import Outcome, declined, rewrite
from stagejit.types import DType, TensorType, bool_, u8

NAME = "split-reduce"
ENOUGH_ITEMS = 8  # rows, or blocks of neighbouring rows, that keep workers busy as they are
_MOST_ITEMS = 64
_ROWS_ABREAST = 128  # rows along a kept innermost dimension that one item takes
_PART_SIZE = 1 << 16  # elements that are worth an item of their own


@rewrite(NAME, roots="reduce")
def split_reduce(graph: Graph, op: Op) -> Outcome:
    """reduce %x over an axis  -->  reduce of (reduce of %x reshaped to (parts, size))"""
    x, axes = op.operands[0], op.attrs["axes"]
    items = _items(x.shape, axes)
    if items >= ENOUGH_ITEMS or not x.type.size:
        return None
    parts = min(x.type.size // _PART_SIZE, _MOST_ITEMS) // items
    if parts < 2:
        return declined(f"{x.type.size} elements are too few to share out")
    axis = _axis(x.shape, axes, parts)
    parts = _parts(x.shape[axis], parts)
    if parts < 2:
        return declined(f"no axis of {x.shape} can be cut into parts")
    if op.attrs["fn"] in ("argmax", "argmin"):
        return _split_arg(graph, op, axis, parts)
    return _split_plain(graph, op, axis, parts)


def _items(shape: Sequence[int], axes: Sequence[int]) -> int:
    """How many workers could share the reduction as it is."""
    rows = math.prod(size for axis, size in enumerate(shape) if axis not in axes)
    return rows if len(shape) - 1 in axes else -(-rows // _ROWS_ABREAST)


def _axis(shape: Sequence[int], axes: Sequence[int], parts: int) -> int:
    """The outermost reduced axis that is long enough, so that parts are contiguous; else the
    longest."""
    long = [axis for axis in axes if shape[axis] >= parts]
    return long[0] if long else max(axes, key=lambda axis: shape[axis])


def _parts(extent: int, wanted: int) -> int:
    """About `wanted` parts, of a number that leaves the least remainder; see Note [Uneven
    parts]."""
    if extent <= 2 * wanted:
        return extent
    return min(range(wanted, wanted // 2, -1), key=lambda parts: extent % parts)


# ------------------------------------------------------------------- sums and the like


def _split_plain(graph: Graph, op: Op, axis: int, parts: int) -> Value:
    """The partial results, reduced, with the remainder."""
    fn, axes, dtype = op.attrs["fn"], op.attrs["axes"], op.operands[0].type.dtype
    x = _converted(graph, op.operands[0], dtype.accumulator)
    main, rest = _cut(graph, x, axis, parts)
    partial = build(graph, "reduce", (main,), fn=fn, axes=_inner_axes(axes, axis))
    total = build(graph, "reduce", (partial,), fn=fn, axes=(_merge_axis(axes, axis),))
    if rest is not None:
        short = build(graph, "reduce", (rest,), fn=fn, axes=axes)
        total = _map(graph, fn, total, short)
    return _converted(graph, total, dtype)


def _cut(graph: Graph, x: Value, axis: int, parts: int) -> tuple[Value, Value | None]:
    """The parts, as a view with (parts, size) for `axis`, and what remains."""
    size, remaining = divmod(x.shape[axis], parts)
    rest = None
    if remaining:
        rest = _along(graph, x, axis, parts * size, remaining)
        x = _along(graph, x, axis, 0, parts * size)
    shape = (*x.shape[:axis], parts, size, *x.shape[axis + 1 :])
    return build(graph, "reshape", (x,), shape=shape), rest


def _along(graph: Graph, x: Value, axis: int, start: int, size: int) -> Value:
    offsets = tuple(start if k == axis else 0 for k in range(x.type.rank))
    sizes = tuple(size if k == axis else extent for k, extent in enumerate(x.shape))
    return build(
        graph, "extract_slice", (x,), offsets=offsets, sizes=sizes, strides=(1,) * x.type.rank
    )


def _inner_axes(axes: Sequence[int], axis: int) -> tuple[int, ...]:
    """The reduced axes once `axis` has become (parts, size) and only its size is reduced."""
    return tuple(a + (a >= axis) for a in axes)


def _merge_axis(axes: Sequence[int], axis: int) -> int:
    """Where the parts are among the kept axes."""
    return sum(a not in axes for a in range(axis))


# ------------------------------------------------------------------- argmax and argmin


def _split_arg(graph: Graph, op: Op, axis: int, parts: int) -> Value:
    """The best value of each part and its place; then the first place that has the best value.

    A NaN beats all else, and `max` and `min` give NaN where there is one.
    """
    fn, dtype = op.attrs["fn"], op.attrs["dtype"]
    best = "max" if fn == "argmax" else "min"
    x = op.operands[0]
    x = _converted(graph, x, u8 if x.type.dtype is bool_ else x.type.dtype)
    main, rest = _cut(graph, x, axis, parts)
    inner, merge = (axis + 1,), axis
    values = build(graph, "reduce", (main,), fn=best, axes=inner)
    local = build(graph, "reduce", (main,), fn=fn, axes=inner, dtype=dtype)
    first = build(graph, "iota", (), shape=local.shape, dtype=dtype, axis=merge)
    places = _map(graph, "add", local, _scaled(graph, first, main.shape[axis + 1], dtype))
    value = build(graph, "reduce", (values,), fn=best, axes=(merge,))
    everywhere = build(
        graph,
        "broadcast",
        (value,),
        shape=values.shape,
        axes=tuple(k for k in range(len(values.shape)) if k != merge),
    )
    wins = _wins(graph, values, everywhere)
    farthest = filled(graph, int(np.iinfo(dtype.numpy).max), TensorType(dtype, places.shape))
    candidates = _map(graph, "select", wins, places, farthest)
    place = build(graph, "reduce", (candidates,), fn="min", axes=(merge,))
    if rest is None:
        return place
    last = build(graph, "reduce", (rest,), fn=best, axes=(axis,))
    there = build(graph, "reduce", (rest,), fn=fn, axes=(axis,), dtype=dtype)
    offset = filled(graph, x.shape[axis] - rest.shape[axis], there.type)
    later = _map(graph, "add", there, offset)
    return _map(graph, "select", _beats(graph, best, last, value), later, place)


def _wins(graph: Graph, values: Value, best: Value) -> Value:
    """Where `values` are `best`, a NaN being equal to a NaN."""
    equal = _map(graph, "eq", values, best)
    if not values.type.dtype.is_float:
        return equal
    return _map(graph, "or", equal, _map(graph, "ne", values, values))


def _beats(graph: Graph, best: str, later: Value, before: Value) -> Value:
    """Whether a later value is strictly better than the best before it."""
    better = _map(graph, "gt" if best == "max" else "lt", later, before)
    if not later.type.dtype.is_float:
        return better
    is_nan, was_nan = _map(graph, "ne", later, later), _map(graph, "ne", before, before)
    return _map(graph, "or", better, _map(graph, "and", is_nan, _map(graph, "not", was_nan)))


# ------------------------------------------------------------------- building


def _map(graph: Graph, fn: str, *operands: Value) -> Value:
    predicate = fn in ("eq", "ne", "lt", "gt")
    dtype = bool_ if predicate else operands[-1].type.dtype
    return build(graph, "map", operands, fn=fn, dtype=dtype)


def _converted(graph: Graph, x: Value, dtype: DType) -> Value:
    return x if x.type.dtype is dtype else build(graph, "convert", (x,), dtype=dtype)


def _scaled(graph: Graph, x: Value, factor: int, dtype: DType) -> Value:
    return _map(graph, "mul", x, filled(graph, factor, TensorType(dtype, x.shape)))
