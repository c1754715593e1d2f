"""Which subrange of which value a region reads and writes.

Input: a region. Output: boxes for each input and for each store, exact or a conservative hull with
the reason. Invariant: no element outside the boxes is ever touched; an exact box is touched all
over.

The iteration space of each store is pulled through the region's ops (`OpDef.pull`) to its inputs.
Anchors are evaluated whole, so they want their operands whole, except for borders that a
convolution never reaches. An offset that the host knows (`Region.scalars`) stays in the box, as a
symbol; one that is computed from arrays gives the hull of where it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import record
from stagejit.base.symbolic import Int, bounds
from stagejit.dispatch.ranges.progressions import covers_as_rows, independent, progression
from stagejit.dispatch.ranges.scalars import NOTHING, Scalars
from stagejit.dispatch.ranges.updates import MOST_BOXES
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.dims import ConvDims, GatherDims, WindowDims, dilated
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.graph.ops.moving.slices import beneath, place, pull_view
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.box import Box, hull_of
from stagejit.index.coordinates import coordinates
from stagejit.index.progressions import Dim

_DYNAMIC = "an offset is computed from arrays"
_HULL = "the hull of several ranges"
_UNEVEN = "elements between are not touched"


@record
class Touch:
    """Part of the memory of `value`, an operand or a result of a region, that it touches. `reason`:
    why the box is not exact, empty if it is. may: whether it can be that nothing is
    touched."""

    value: Value
    box: Box
    reason: str = ""
    may: bool = False

    def of(self, value: Value) -> Touch:
        """The same of another value of that shape."""
        return self if value is self.value else Touch(value, self.box, self.reason, self.may)

    @property
    def exact(self) -> bool:
        return not self.reason

    @property
    def must(self) -> bool:
        """Whether every element of the box is touched, for certain."""
        return self.exact and not self.may


def reads_of(region: Region) -> list[Touch]:
    """What the region reads, in the order of its operands: foreign code all of it, also where its
    results have no elements; then what a loop or branch updates, of which
    `schedule/bodies.py` knows better."""
    if region.anchor is not None and not region.has_kernel:
        carried = [value for value in region.anchor.results if destination_of(value) is not None]
        return [
            Touch(value, Box.whole(value.shape))
            for value in (*region.operands, *carried)
            if value.type.size
        ]
    touches: dict[Value, list[Touch]] = {}
    for part in region.parts:
        of_part = _touches(part)
        for own, value in zip(part.inputs, part.operands, strict=True):
            touches.setdefault(value, []).extend([touch.of(value) for touch in of_part[own]])
    reads = dict.fromkeys(region.reads)
    return [touch for value in reads for touch in joined(touches.get(value, []))]


def _touches(region: Region) -> Mapping[Value, list[Touch]]:
    """What a part touches of each input, be it to place a store. The first region that is alike
    keeps it: so do all others touch what they have in its place."""
    region = region.alike or region
    known: Mapping[Value, list[Touch]] | None = region.touches
    if known is None:
        evaluated, starts = _indices(region), Walk(region)
        inserts = [insert for store in region.stores for insert in store.inserts]
        for start in (start for insert in inserts for start in insert.operands[2:]):
            starts.visit(start, ())
        known = {}
        for own in region.inputs:
            indices = evaluated.get(own, {}) | starts.indices.get(own, {})
            known[own] = [touch_of(own, index, region.scalars) for index in indices]
        object.__setattr__(region, "touches", known)
    return known


def rereads_of(region: Region) -> list[Touch]:
    """What the region reads of the memory that it writes, besides what `reads_of` says: a scatter
    that combines what is there with what comes."""
    op = region.anchor
    combines = op is not None and op.definition.is_scatter and op.attrs["fn"] != "set"
    return writes_of(region) if combines else []


def writes_of(region: Region) -> list[Touch]:
    """What the region writes: one touch for each store of its parts."""
    return [
        write_of(part, store, value)
        for part in region.parts
        for store, value in zip(part.stores, part.results, strict=True)
    ]


def write_of(region: Region, store: Store, result: Value) -> Touch:
    """What one store of a part writes of `result`, its memory."""
    if region.anchor is not None and region.definition.is_scatter:
        scalars, box = region.scalars, region.scalars.box(region.anchor)
        reason = "" if scalars.knows(region.anchor) else _DYNAMIC
        return Touch(result, box, reason, scalars.may_drop(region.anchor))
    return touch_of(result, store_index(store), region.scalars)


def store_index(store: Store) -> Index:
    """Where element `coordinates` of the stored value goes in `store.into`."""
    index = coordinates(store.value.shape)
    if not store.inserts:
        return index
    steps = [(1, 0)] * len(index)  # stride and offset of the inserts since `index`
    for insert in store.inserts:
        offsets, strides = insert.attrs["offsets"], insert.attrs["strides"]
        if None in offsets:
            index, steps = place(insert, _stepped(index, steps)), [(1, 0)] * len(index)
        else:
            steps = [
                (step * stride, first * stride + offset)
                for (step, first), stride, offset in zip(steps, strides, offsets, strict=True)
            ]
    return _stepped(index, steps)


def _stepped(index: Index, steps: Sequence[tuple[int, int]]) -> Index:
    if all(step == (1, 0) for step in steps):
        return index
    return tuple(part * step + first for part, (step, first) in zip(index, steps, strict=True))


def indices_read(region: Region, value: Value) -> set[Index]:
    """The indices at which a map reads an input, in terms of coordinates of what it stores."""
    return set(_indices(region).get(value, ()))


def _indices(region: Region) -> Mapping[Value, dict[Index, None]]:
    """At which indices each input is read for what is stored. A region keeps it, for who asks what
    it reads asks what it may overwrite, too."""
    region = region.alike or region
    known: Mapping[Value, dict[Index, None]] | None = region.indices
    if known is None:
        walk = Walk(region)
        for store in region.stores:
            walk.visit(store.value, coordinates(store.value.shape))
        known = walk.indices
        object.__setattr__(region, "indices", known)
    return known


class Walk:
    """Pulls indices through a region to its inputs."""

    def __init__(self, region: Region) -> None:
        self.inputs, self.scalars = frozenset(region.inputs), region.scalars
        self.indices: dict[Value, dict[Index, None]] = {}  # of inputs, as they were met
        self._seen: dict[Value, set[Index]] = {}

    def visit(self, value: Value, index: Index) -> None:
        pending = [(value, index)]
        while pending:
            value, index = pending.pop()
            seen = self._seen.setdefault(value, set())
            if index in seen or not value.type.size:
                continue
            seen.add(index)
            if value in self.inputs:
                self.indices.setdefault(value, {})[index] = None
            elif value.op.definition.is_elementwise:  # most are
                pending += [(operand, index) for operand in value.op.operands]
            else:
                pending += self.operands_at(value.op, index)

    def operands_at(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        if op.definition.is_gather:
            return _gather_operands_at(op, index, self.scalars)
        return _operands_at(op, index)


def _operands_at(op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
    """What evaluating `op` at `index` reads; of an anchor, what evaluating all of it reads."""
    if op.definition.splits:
        yield op.operands[0], without_missing(pull_view(op, index), op.operands[0].shape)
    elif op.definition.is_view:
        yield op.operands[0], pull_view(op, index)
        yield from ((start, ()) for start in op.operands[1:])
    elif op.definition.is_splat:
        yield op.operands[0], ()
    elif op.definition.is_windowed:
        if math.prod(op.result.shape):
            yield op.operands[0], window_index(op)
            yield op.operands[1], coordinates(op.operands[1].shape)
    elif op.definition.is_window:
        yield from _tap_index(op, index)
    elif op.definition.overlays:
        yield op.operands[0], _index_beneath(op, index)
        yield op.operands[1], index
    elif op.definition.accumulates:
        yield from ((operand, coordinates(operand.shape)) for operand in op.operands)
    elif op.definition.is_scatter:
        yield from ((operand, coordinates(operand.shape)) for operand in op.operands[1:])
    elif op.definition.stands_alone:
        yield from ((operand, coordinates(operand.shape)) for operand in op.operands)
    else:
        yield from ((operand, index) for operand in op.operands)


def without_missing(index: Index, shape: Sequence[int]) -> Index:
    """An index that may run over the end of an axis, as far as there are elements."""
    kept = list(index)
    for axis, (part, whole) in enumerate(zip(index, coordinates(tuple(shape)), strict=True)):
        (first, last), stride, even = progression(part)
        if last >= shape[axis]:
            count = (shape[axis] - 1 - first) // stride + 1
            own = count == shape[axis] and even  # all of it: as if nobody had split the axis
            rest = whole if own else Affine.of(Var(count, "x", "loop" if even else "uneven"))
            kept[axis] = rest * stride + first
    return tuple(kept)


def _gather_operands_at(op: Op, index: Index, scalars: Scalars) -> Iterator[tuple[Value, Index]]:
    """The index vector and the element that a gather reads: one within its array, whatever the
    mode."""
    dims = GatherDims.of(op.attrs)
    operand, indices = op.operands
    yield indices, (*dims.batch_of(index), Affine.of(Var(len(dims.start_axes), "c")))
    starts: dict[int, Affine] = {}
    known = scalars.starts(dims, indices, operand.shape, dims.sizes, "clip")
    for axis in dims.start_axes:
        room = max(operand.shape[axis] - dims.sizes[axis] + 1, 1)
        start = known[axis] if known is not None else None
        source = indices if start is None else start
        starts[axis] = Affine.of(Var(room, "s", "dynamic", source=source))
    yield operand, dims.operand_index(index, starts)


def window_index(op: Op) -> Index:
    """The part of its left operand that a convolution reads."""
    dims = ConvDims.of(op.attrs)
    lhs, rhs, out = op.operands[0].shape, op.operands[1].shape, dims.of_one(op.result.shape)
    index = list(coordinates(lhs))
    for d, (low, _) in enumerate(dims.padding):
        axis, window = dims.lhs_spec[2 + d], rhs[dims.rhs_spec[2 + d]]
        outputs, stride = out[dims.out_spec[2 + d]], dims.strides[d]
        hole, step = dims.rhs_dilation[d], dims.lhs_dilation[d]
        reached = Affine((), -low)
        for extent, coeff in ((outputs, stride), (window, hole)):
            reached = reached + Affine.of(Var(extent, "w")) * coeff
        offsets, stride, even = progression(reached)
        even = even and (step == 1 or stride == 1)
        first, last = max(offsets[0], 0), min(offsets[1], dilated(lhs[axis], step) - 1)
        first += -(first - offsets[0]) % stride
        if step != 1:  # every step-th position is an element, the others are holes
            first, last, stride = -(-first // step), last // step, 1
        count = max((last - first) // stride + 1, 0)
        position = Affine.of(Var(count, "w", "loop" if even else "uneven"))
        index[axis] = Affine((), first) + position * stride
    return tuple(index)


def _tap_index(op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
    """What windows at `index` read of their operand: along an axis where none of them leaves it
    their taps, along others a range."""
    dims, x, found = WindowDims.of(op.attrs), op.operands[0], []
    for axis, extent in enumerate(x.shape):
        tap = Affine.of(Var(dims.sizes[axis], "w")) * dims.dilation[axis]
        part = index[axis] * dims.strides[axis] + tap - dims.padding[axis][0]
        low, high = part.range()
        if low < 0 or high >= extent:
            (low, high), stride, even = progression(part)
            first = low + -(low // stride) * stride if low < 0 else low
            count = max((min(high, extent - 1) - first) // stride + 1, 0)
            part = Affine.of(Var(count, "w", "loop" if even else "uneven")) * stride + first
        found.append(part)
    yield x, tuple(found)


def _index_beneath(op: Op, index: Index) -> Index:
    """What an overlay at `index` reads of its operand 0: along an axis where some of it lies
    elsewhere, a range."""
    places, rests = beneath(op, index)
    found, shape = list(places), op.operands[0].shape
    for axis in rests:
        first, extent = op.attrs["offsets"][axis], shape[axis]
        last = first + op.attrs["strides"][axis] * (extent - 1)
        (low, high), stride, even = progression(index[axis])
        whole = even and stride == 1 and low <= first and last <= high
        own = coordinates(shape)[axis]
        found[axis] = own if whole else Affine.of(Var(extent, "w", "uneven"))
    return tuple(found)


# ------------------------------------------------------------------- boxes


def touch_of(value: Value, index: Index, scalars: Scalars = NOTHING) -> Touch:
    """The box of `value` that `index` runs over."""
    if index is coordinates(value.shape):
        return Touch(value, Box.whole(value.shape))
    dims: list[Dim] = []
    moving: list[Affine] = []
    reason = ""
    for part in index:
        offset, rest = _known_offset(part, scalars)
        (first, last), stride, even = progression(rest)
        dims.append((offset + first, (last - first) // stride + 1 if last >= first else 0, stride))
        moving.append(rest)
        if any(_is_dynamic(var) for var in rest.vars()):
            reason = _DYNAMIC
        elif not even or any(var.kind == "uneven" for var in rest.vars()):
            reason = reason or _UNEVEN
    box = Box.of(dims)
    if (
        not reason
        and not independent(moving)
        and not covers_as_rows(value.shape, moving, box.count)
    ):
        reason = _UNEVEN
    return Touch(value, box, reason)


def _known_offset(part: Affine, scalars: Scalars) -> tuple[Int, Affine]:
    """The sum of the run-time offsets in `part` that the host knows, and what is left of it."""
    total: Int = 0
    for var, coeff in part.terms:
        if var.kind != "dynamic":
            continue
        known = scalars.start(var.source, var.extent) if isinstance(var.source, Value) else (
            var.source)  # fmt: skip
        if known is not None:
            total, part = known * coeff + total, part - Affine.of(var) * coeff
    return total, part


def _is_dynamic(var: Var) -> bool:
    """Whether a variable is, or is derived from, an offset that is read at run time."""
    if var.operand is not None:
        return any(_is_dynamic(inner) for inner in var.operand.vars())
    return var.kind == "dynamic"


def joined(touches: Sequence[Touch]) -> list[Touch]:
    """Fewer boxes for the same elements; the hull of all where too many are left."""
    if len(touches) == 1:
        return [touch for touch in touches if touch.box.count]
    boxes: list[Touch] = []
    for touch in dict.fromkeys(touches):
        if not touch.box.count:
            continue
        merged = touch
        kept = []
        for other in boxes:
            hull, exact = other.box.hull(merged.box)
            if exact:
                merged = _merged(hull, merged, other)
            else:
                kept.append(other)
        boxes = [*kept, merged]
    if len(boxes) <= MOST_BOXES:
        return sorted(boxes, key=lambda touch: [bounds(x) for x in touch.box.offsets])
    hull = hull_of(touch.box for touch in boxes)
    reason = next((t.reason for t in boxes if t.reason), _HULL)
    return [Touch(boxes[0].value, hull, reason, all(t.may for t in boxes))]


def _merged(hull: Box, *parts: Touch) -> Touch:
    """A part that is the whole hull and certain makes the hull so."""
    whole = next((part for part in parts if part.must and part.box == hull), None)
    if whole is not None:
        return whole
    reason = next((part.reason for part in parts if part.reason), "")
    if any(part.exact and part.box == hull for part in parts):
        reason = ""
    return Touch(parts[0].value, hull, reason, any(part.may for part in parts))
