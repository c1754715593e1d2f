"""join-indices: a gather at several indices, put together for it, reads at one place.

Input: a `gather` of which each component of the index vectors is a value of its own, which is what
`x[i, j]` is. Output: a gather at one index, along the axes of x that are one then. Invariant: each
window is read where it was; what is out of bounds along one axis is out of bounds still.

Note [Index vectors]: vectors that are put together are written in parts, so they would be stored,
twice as large as what they are made of, for one kernel to read. What they amount to is a number,
which is made where it is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.types import TensorType, i32, i64

NAME = "join-indices"


@rewrite(NAME, roots="gather", of="insert_slice", operand=1)
def gather_at_one_place(graph: Graph, op: Op) -> Outcome:
    """gather %x, (%i, %j)  -->  gather (reshape %x), %i * n + %j, both within their bounds"""
    x, indices = op.operands
    dims = GatherDims.of(op.attrs)
    if len(dims.start_axes) < 2 or not (x.type.has_numbers and indices.type.has_numbers):
        return None
    parts = [_component(indices, at) for at in range(len(dims.start_axes))]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return declined("a part of the index vectors is more than one component of them")
    first, last = min(dims.start_axes), max(dims.start_axes)
    if sorted(dims.start_axes) != list(range(first, last + 1)):
        return declined("it does not move along neighbouring axes")
    if not set(dims.start_axes) <= set(dims.collapsed_axes):
        return declined("it keeps an axis that it moves along")
    if x.op.definition.is_view and not x.op.definition.keeps_order:
        return declined("those axes are no neighbours in memory")
    place = _place(graph, op, dims, found)
    batch = place.shape
    joined = math.prod(x.shape[first : last + 1])
    return build(
        graph,
        op.kind,
        (
            build(graph, "reshape", (x,), shape=(*x.shape[:first], joined, *x.shape[last + 1 :])),
            build(graph, "reshape", (place,), shape=(*batch, 1)),
        ),
        op.loc,
        **{**op.attrs, **vars(_along_one(dims, first, last))},
    )


def _component(indices: Value, at: int) -> Value | None:
    """What is inserted as component `at` of all index vectors, without an axis for it."""
    *batch, _ = indices.shape
    while indices.op.definition.is_insert:
        source, into = indices.op.operands[:2]
        offsets = indices.op.attrs["offsets"]
        if None in offsets or any(step != 1 for step in indices.op.attrs["strides"]):
            return None
        if offsets[-1] <= at < offsets[-1] + source.shape[-1]:
            return source if source.shape == (*batch, 1) else None
        indices = into
    return None


def _along_one(dims: GatherDims, first: int, last: int) -> GatherDims:
    """The same where axes `first` to `last` of x are one."""

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(axis - (last - first if axis > last else 0) for axis in axes)

    rest = [axis for axis in dims.collapsed_axes if not first <= axis <= last]
    return GatherDims(
        offset_axes=dims.offset_axes,
        collapsed_axes=tuple(sorted({first, *moved(tuple(rest))})),
        start_axes=(first,),
        operand_batch_axes=moved(dims.operand_batch_axes),
        index_batch_axes=dims.index_batch_axes,
        sizes=(*dims.sizes[:first], 1, *dims.sizes[last + 1 :]),
    )


def _place(graph: Graph, op: Op, dims: GatherDims, parts: list[Value]) -> Value:
    """Where each window starts along the joined axis; -1 where what is out of bounds is filled."""
    x = op.operands[0]
    by_axis = dict(zip(dims.start_axes, parts, strict=True))
    wide = i32 if math.prod(x.shape[axis] for axis in by_axis) < 2**31 else i64
    place: Value | None = None
    inside: Value | None = None
    for axis in sorted(by_axis):
        part = build(graph, "reshape", (by_axis[axis],), shape=by_axis[axis].shape[:-1])
        kept = part
        for fn, bound in _bounds(part, x.shape[axis] - 1):
            kept = mapped(graph, fn, kept, filled(graph, bound, part.type))
        if op.attrs["mode"] == "fill" and kept is not part:
            holds = mapped(graph, "eq", kept, part)
            inside = holds if inside is None else mapped(graph, "and", inside, holds)
        kept = converted(graph, kept, wide)
        if place is not None:
            extent = filled(graph, x.shape[axis], TensorType(wide, kept.shape))
            kept = mapped(graph, "add", mapped(graph, "mul", place, extent), kept)
        place = kept
    assert place is not None
    if inside is None:
        return place
    return mapped(graph, "select", inside, place, filled(graph, -1, place.type))


def _bounds(part: Value, last: int) -> Iterator[tuple[str, int]]:
    """What keeps integers of this type from 0 to `last`."""
    dtype = part.type.dtype
    if last < 1 << (dtype.bits - dtype.is_signed):
        yield "min", last
    if dtype.is_signed:
        yield "max", 0


RULES = (gather_at_one_place,)
