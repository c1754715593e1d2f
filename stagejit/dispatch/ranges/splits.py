"""What each part of a split sum touches.

Input: a region. Output: `TouchedParts` for its whole parts, with the number of the part in the
offsets, and for the last one, where that is shorter; none for a region that splits no sum, or
stores anything else than one part after the other. Invariant: together the parts touch what the
region does (`accesses.py`), and no two of them write the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stagejit.base.records import record
from stagejit.base.symbolic import Symbol, expr
from stagejit.dispatch.ranges.accesses import (
    Touch,
    Walk,
    joined,
    store_index,
    touch_of,
    window_index,
)
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.splits import is_uneven, last_part
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.coordinates import coordinates, variables


@record
class TouchedParts:
    """Parts `first`, `first + 1`, ..., `count` of them. `number` is in the offsets of what they
    touch, where they are several."""

    first: int
    count: int
    number: Symbol
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]


def parts_of_region(region: Region) -> Iterator[TouchedParts]:
    """In order; see the module's docstring."""
    known = _parts_of(region)
    if known is None or not all(_keeps_parts(region, store) for store in region.stores):
        return
    parts, last, is_short = known
    whole = parts - is_short
    if whole:
        yield _touched(region, 0, whole, None)
    if whole < parts:
        yield _touched(region, whole, 1, last)


def _parts_of(region: Region) -> tuple[int, int, bool] | None:
    """How many parts the region sums over, the length of the last one, and whether it is shorter;
    None if it has anything else than sums of these."""
    sums = [op for op in region.ops if op.definition.accumulates]
    if not sums or region.borders or not region.has_kernel:
        return None
    found = {each for op in sums for each in _splits_of(region, op)}
    return next(iter(found)) if len(found) == 1 else None


def _splits_of(region: Region, op: Op) -> Iterator[tuple[int, int, bool] | None]:
    if op.attrs.get("split") is not None:
        axis, tile = op.attrs["split"]
        parts, extent = op.result.shape[0], op.operands[1].shape[axis]
        last = extent - (parts - 1) * tile
        yield parts, last, last < tile
        return
    for operand in op.operands:
        if not operand.op.definition.splits or operand in region.inputs:
            yield None
            return
        yield operand.shape[0], last_part(operand.op), is_uneven(operand.op)


def _keeps_parts(region: Region, store: Store) -> bool:
    """Whether what is stored is a sum, or elements made of one, with the parts outermost."""
    value = store.value
    while value not in region.inputs:
        if value.op.definition.accumulates:
            return True
        if not value.op.definition.is_elementwise:
            return False
        value = max(value.op.operands, key=lambda each: _is_summed(region, each))
    return False


def _is_summed(region: Region, value: Value) -> bool:
    pending = [value]
    while pending:
        value = pending.pop()
        if value in region.inputs:
            continue
        if value.op.definition.accumulates:
            return True
        pending += value.op.operands
    return False


def _touched(region: Region, first: int, count: int, length: int | None) -> TouchedParts:
    """length: of the part, where it is shorter than others."""
    number = Symbol("part", first, first + count - 1)
    part = Affine((), first)
    if count > 1:
        part = Affine.of(Var(count, "k", "dynamic", source=expr(number)))
    walk = _PartWalk(region, part, length)
    writes = []
    for store, result in zip(region.stores, region.results, strict=True):
        outermost = {variables(store.value.shape)[0]: part}
        own = tuple(form.substitute(outermost) for form in coordinates(store.value.shape))
        walk.visit(store.value, own)
        index = tuple(form.substitute(outermost) for form in store_index(store))
        writes.append(touch_of(result, index, region.scalars))
    reads = [
        touch.of(operand)
        for own_input, operand in zip(region.inputs, region.operands, strict=True)
        for touch in joined(
            [
                touch_of(own_input, index, region.scalars)
                for index in walk.indices.get(own_input, {})
            ]
        )
    ]
    return TouchedParts(first, count, number, tuple(reads), tuple(writes))


class _PartWalk(Walk):
    """Pulls the index of one part through a region."""

    def __init__(self, region: Region, part: Affine, length: int | None) -> None:
        super().__init__(region)
        self.part, self.length = part, length

    def operands_at(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        if not op.definition.accumulates:
            yield from super().operands_at(op, index)
            return
        if op.definition.is_windowed:
            yield from self._windowed(op)
            return
        for operand in op.operands:
            own = list(coordinates(operand.shape))
            axis = operand.op.attrs["axis"] + 1
            own[0] = self.part
            if self.length is not None:
                own[axis] = Affine.of(Var(self.length, "r"))
            yield operand, tuple(own)

    def _windowed(self, op: Op) -> Iterator[tuple[Value, Index]]:
        """Features are those of the part; of an image nobody says which rows meet its taps."""
        dims = ConvDims.of(op.attrs)
        assert dims.split is not None
        (lhs, rhs), (axis, tile) = op.operands, dims.split
        own = self.part * tile + Affine.of(Var(self.length or tile, "r"))
        read, kernel = list(window_index(op)), list(coordinates(rhs.shape))
        kernel[axis] = own
        moved = dims.lhs_spec[dims.rhs_spec.index(axis)]
        if axis == dims.rhs_spec[1]:
            read[moved] = own
        else:
            first, last = read[moved].range()
            step = math.gcd(*(coeff for _, coeff in read[moved].terms)) or 1
            read[moved] = Affine.of(Var((last - first) // step + 1, "w", "uneven")) * step + first
        yield lhs, tuple(read)
        yield rhs, tuple(kernel)
