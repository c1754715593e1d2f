"""Running values along the axis of a `cumulative` region: its loops, and what policies share.

Input: a region whose anchor is a `cumulative` op. Output: `scan_loops`, and `ScanPolicy`, the base
of the policies of each target. Invariant: each element is visited once, those of a line in the
order of accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Cell
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Loops, Walked, loops_of
from stagejit.codegen.places.space import Space
from stagejit.codegen.reducers import Accumulator, Reducer
from stagejit.codegen.rows.runs import has_rounding
from stagejit.index.affine import Affine, Index


def scan_loops(region: ClosedRegion, target: Machine) -> Loops:
    """Loops before, along and after the axis; the ones along it visit its elements in the order of
    accumulation."""
    op = region.anchor_op
    shape, axis = op.result.shape, op.attrs["axis"]

    def walk(footprint: Footprint, index: Index) -> Walked:
        if op.attrs["reverse"]:
            last = Affine((), shape[axis] - 1)
            index = (*index[:axis], last - index[axis], *index[axis + 1 :])
        footprint.value(op.operands[0], index)
        footprint.asked.append((op.result, index))
        places = [footprint.reshaped(index, shape, store.value.shape) for store in region.stores]
        return index, places, list(map(footprint.write, region.stores, places))

    groups = (range(axis), (axis,), range(axis + 1, len(shape)))
    return loops_of(region, target, Space(shape, "c"), groups, walk, {op.result})


class ScanPolicy:
    """Arithmetic and stores of one nest."""

    current: Register  # the running value, in the result's type

    def __init__(self, nest: Loops, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter, self.elements = nest, emitter, emitter.elements
        before, self.axis, after = nest.groups
        self.elements.ahead = nest.ahead
        self.kept = (*before, *after)
        self.b, self.op = emitter.b, nest.region.anchor_op
        self.reducer = Reducer(self.op.attrs["fn"], self.op.result.type.dtype)
        self.in_runs = has_rounding(self.reducer)
        self.stores = Stores(nest.region, self.elements, memory, nest.offsets, nest.streamed)
        self.set, self.carry = emitter.set_cell, Cell("carry")  # along the axis
        self.elements.bind(self.op.result, nest.index, lambda: self.current)

    @property
    def lanes(self) -> int:
        """Of a running value."""
        return self.nest.lanes

    def merged(self, first: Accumulator, second: Accumulator) -> Accumulator:
        return self.reducer.merge(self.b, first, second)

    def nothing(self) -> Accumulator:
        return self.reducer.initial(self.b, self.lanes)

    def operand(self) -> Accumulator:
        """The element where the loops stand, or one for each lane."""
        element = self.elements.value(self.op.operands[0], self.nest.index)
        return self.reducer.lift(self.b, element, None, self.lanes, None)

    def store(self, running: Accumulator) -> None:
        """What is made of a running value."""
        self.current = self.reducer.result(self.b, running)
        self.stores.write(enumerate(self.nest.places))

    def held(self, cell: Cell) -> Accumulator:
        """What a cell holds."""
        return self.emitter.cells[cell]

    def shifted_in(self) -> Register:
        """The neutral element, for lanes before the first."""
        (identity,) = self.nothing()
        return identity

    def scanned(self, accumulator: Accumulator) -> Accumulator:
        """Lane k becomes the combination of lanes 0 to k (Hillis and Steele, 1986)."""
        lanes, identity = self.lanes, self.shifted_in()
        distance = 1
        while distance < lanes:
            places = [lane - distance if lane >= distance else lanes for lane in range(lanes)]
            shifted = self.b.shuffle(accumulator[0], identity, places)
            accumulator = self.merged((shifted,), accumulator)
            distance *= 2
        return accumulator
