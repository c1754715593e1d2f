"""What it costs to pack operands of a contraction nest, and to store its sums: cycles of one core.

Input: a register tile in blocks. Output: cycles for an element that is packed, and for all sums.
Invariant: depends on shapes, strides, dtypes and the target only.
"""

from __future__ import annotations

import math

from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.packing import panel_split
from stagejit.codegen.cpu.contract.tiles.search import Problem, TileSearch
from stagejit.codegen.cpu.contract.tiling import Tiling, is_direct
from stagejit.codegen.places.accesses import between_lanes
from stagejit.index.affine import Var

_NARROW_SQUARE_CYCLES = 0.5  # an element through a transpose that comes from fewer lines
_GATHER_CYCLES = 3.0  # an element whose neighbours in memory are too few for a transpose
# A vector of words that are made of bytes: of vectors of each of the four, or of what lies apart.
_QUAD_CYCLES, _SORTED_QUAD_CYCLES = 8.0, 48.0


class MoveCosts(TileSearch):
    """Of one nest whose lanes run along `lane`."""

    def __init__(self, problem: Problem, lane: Var | None) -> None:
        super().__init__(problem, lane)
        self.stored = problem.stored
        self.direct = problem.plain and is_direct(problem.nest, lane, problem.stored)

    def pack_cycles(self, source: Source, tiling: Tiling, packs: bool) -> float:
        """Cycles to copy one element, if it is: few along lanes, more when transposing or
        de-interleaving. What comes from memory is waited for meanwhile, since no tile has work to
        do, or steps are too short to hide it."""
        waits = 0.0
        short = self.is_short(math.prod(split.most for split in tiling.splits))
        waited = short and tiling.ahead and source is self.vector and self.waits_for_fetches(source)
        # What it is made of by some operations comes while these are done.
        if self.streams(source) and (packs or waited) and not source.operations:
            waits = self.nbytes * self.target.cycles_per_second / self.target.core_bandwidth
        return waits + (self._move_cycles(source, tiling) if packs else 0.0)

    def _move_cycles(self, source: Source, tiling: Tiling) -> float:
        lane, windows = self.lane, source.windows
        if source.quads is not None and not source.words:
            return self._quad_cycles(source)
        if lane is None or lane not in source.depends:
            rows = panel_split(source, tiling)
            return 4.0 / self.lanes if rows is None else self.piece_cycles(rows.most)
        steps = ((var, window.at.coeff(lane)) for var, window in windows.items())
        along, step = next(((var, step) for var, step in steps if step), (lane, 1))
        if step > 1:
            return 1.0 if step <= 4 else 3.0
        if source.memory is None:
            return 0.8
        gap = source.memory.coeff(along)
        if gap == 1:
            return 4.0 / self.lanes
        near = next((var for var, stride in source.memory.terms if stride == 1), None)
        if near is None or near in windows:
            return 0.8
        length = tiling.extents.get(near, near.extent)
        if length < self.lanes and length != gap:
            return _GATHER_CYCLES
        return _NARROW_SQUARE_CYCLES if self.is_widened(source) else 0.8

    def _quad_cycles(self, source: Source) -> float:
        """Cycles to make a word of four bytes: of four vectors of bytes, which are read as such, or
        sorted, or gathered."""
        near = source.memory is not None and any(step == 1 for _, step in source.memory.terms)
        return (_QUAD_CYCLES if near else _SORTED_QUAD_CYCLES) / self.lanes

    def store_cycles(self) -> float:
        """Cycles to store the sums: as vectors, through register transposes, lane by lane, or
        through a horizontal sum."""
        elements, lane = math.prod(var.extent for var in self.nest.axes), self.lane
        if self.across:
            return elements * 8.0
        if lane is None or between_lanes(self.nest.axes, self.stored, lane, self.lanes):
            return elements * (5.0 if lane is None else 1.5)
        beside = next((var for var in self.nest.axes if self.stored.coeff(var) == 1), lane)
        if beside is not lane and min(beside.extent, lane.extent) >= self.lanes:
            return elements * 1.5
        unit = self.stored.coeff(lane) == 1
        return elements * (5.0 if not unit else (1.0 if self.direct else 3.0) / self.lanes)
