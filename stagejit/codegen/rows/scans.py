"""Running values along the axis of a `cumulative` region: its loops, and what policies share.

Input: a region whose anchor is a `cumulative` op. Output: `scan_loops`, and `ScanPolicy`, the base
of the policies of each target. Invariant: each element is visited once, those of a line in the
order of accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.lines import Line, lines_of
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Cell, Chunk, Loop, Node, serial
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.reducers import Accumulator, Reducer
from stagejit.codegen.rows.runs import has_rounding
from stagejit.index.affine import Var

ROWS_AT_ONCE = 4  # elements of a line that pass while its running value is in a register


def scan_loops(region: ClosedRegion, target: Machine) -> Loops:
    """Loops before, along and after the axis; the ones along it visit its elements in the order of
    accumulation."""
    attrs = region.anchor_op.attrs
    return lines_of(region, target, attrs["axis"], backwards=attrs["reverse"])


class ScanPolicy:
    """Arithmetic and stores of one nest."""

    def __init__(self, nest: Loops, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter, self.elements = nest, emitter, emitter.elements
        before, self.axis, after = nest.groups
        self.elements.ahead = nest.ahead
        self.kept = (*before, *after)
        self.b, op = emitter.b, nest.region.anchor_op
        self.reducer = Reducer(op.attrs["fn"], op.result.type.dtype)
        self.in_runs = has_rounding(self.reducer)
        self.line = Line(nest, self.elements, memory)
        self.set, self.carry = emitter.set_cell, Cell("carry")  # along the axis

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
        return self.reducer.lift(self.b, self.line.operand(0), None, self.lanes, None)

    def store(self, running: Accumulator) -> None:
        """What is made of a running value."""
        self.line.store(self.reducer.result(self.b, running))

    def held(self, cell: Cell) -> Accumulator:
        """What a cell holds."""
        return self.emitter.cells[cell]

    def shifted_in(self) -> Register:
        """The neutral element, for lanes before the first."""
        (identity,) = self.nothing()
        return identity

    def along(
        self, axis: Sequence[Var], some: Callable[[int], Node], end_run: Node, run: int
    ) -> Node:
        """Loops over the axis; `some(count)` handles that many elements from the current one.
        end_run: what comes after so many, and after the last one; run: 0 where nothing does."""
        if not axis:
            return some(1)
        var, *inner = axis
        if inner:
            return serial([var], (self.along(inner, some, end_run, run), end_run))
        chunks = [Chunk(count, some(count)) for count in (ROWS_AT_ONCE, 1)]
        if run:
            chunks.insert(0, Chunk(run, (Loop(var, (chunks[0],)), end_run)))
        return Loop(var, tuple(chunks))

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
