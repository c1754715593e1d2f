"""What each part of a split sum touches.

Input: a region. Output: `TouchedParts` for its whole parts, with the number of the part in the
offsets, and for the last one, where that is shorter; none for a region that splits no sum, or
stores anything else than one part after the other. Invariant: together the parts touch what the
region does (`accesses.py`), and no two of them write the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagejit.dispatch.accesses import Touch, Walk, joined, store_index, touch_of
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.splits import is_uneven, last_part
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.coordinates import coordinates, variables
from stagejit.symbolic import Symbol, expr


@dataclass(frozen=True)
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
    split = _split_of(region)
    if split is None or not all(_keeps_parts(region, store) for store in region.stores):
        return
    parts, tile = split.result.shape[0], split.result.shape[split.attrs["axis"] + 1]
    whole = parts - is_uneven(split)
    if whole:
        yield _touched(region, split, 0, whole, tile)
    if whole < parts:
        yield _touched(region, split, whole, 1, last_part(split))


def _split_of(region: Region) -> Op | None:
    """The split whose parts the region sums over, if it has nothing but sums of these."""
    sums = [op for op in region.ops if op.definition.accumulates]
    if not sums or region.borders or not region.has_kernel:
        return None
    operands = [operand for op in sums for operand in op.operands]
    inside = all(v.op.definition.splits and v not in region.inputs for v in operands)
    alike = len({(v.shape[0], last_part(v.op)) for v in operands}) == 1 if inside else False
    return operands[0].op if inside and alike else None


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


def _touched(region: Region, split: Op, first: int, count: int, tile: int) -> TouchedParts:
    number = Symbol("part", first, first + count - 1)
    part = Affine((), first)
    if count > 1:
        part = Affine.of(Var(count, "k", "dynamic", source=expr(number)))
    walk = _PartWalk(region, part, tile)
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

    def __init__(self, region: Region, part: Affine, tile: int) -> None:
        super().__init__(region)
        self.part, self.tile = part, tile

    def operands_at(self, op: Op, index: Index) -> Iterator[tuple[Value, Index]]:
        if not op.definition.accumulates:
            yield from super().operands_at(op, index)
            return
        for operand in op.operands:
            own = list(coordinates(operand.shape))
            axis = operand.op.attrs["axis"] + 1
            own[0] = self.part
            if self.tile != operand.shape[axis]:
                own[axis] = Affine.of(Var(self.tile, "r"))
            yield operand, tuple(own)
