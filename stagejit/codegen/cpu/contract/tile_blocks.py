"""Blocks and parallel items of a contraction nest: what fits the caches, and what cores share.

Input: the register tilings that `TileSearch` proposes. Output: the cheapest complete `Tiling`.
Invariant: blocks change neither what is computed nor, for a given target, the order of its sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.cpu.contract.nest import Nest
from stagejit.codegen.cpu.contract.tile_search import MOST_STEPS, TileSearch
from stagejit.codegen.cpu.contract.tiling import Source, Tiling
from stagejit.codegen.ir.strides import is_dealt
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

_MOST_WINDOW_STEPS = 2048  # where windows overlap, so that fewer bytes stand for more steps
_SMALL_CYCLES = 20_000  # one item below this: about 5 us
_ITEMS_PER_CORE = 8
_FEW_ITEMS_PER_CORE = 4  # if more would move much more memory
_MORE_TRAFFIC = 1.25
_FEW_GROUPS = 4
_GATHER_CYCLES = 3.0  # an element whose neighbours in memory are too few for a transpose
_STREAM_STEPS = 8  # rows in flight where an operand streams from memory
_STREAM_CHUNK = 4096  # bytes of each row that an item should read at least when streaming
_STREAM_AHEAD = 3  # blocks of the reduction; with them the vector operand fills half of L2


def choose(
    nest: Nest,
    left: Source,
    right: Source,
    stored: Affine,
    target: Target,
    *,
    plain: bool,
) -> Ranked[Tiling]:
    """The cheapest tiling; any other would be as right. stored: memory offset of what the nest's
    first store writes. plain: the sums may accumulate there."""
    search = TileSearch(nest, (left, right), target)
    planner = _Planner(search, stored, plain=plain)
    complete = [
        planner.complete(candidate)
        for lane in search.lane_choices()
        for candidate in search.candidates(lane)
    ]
    return cheapest("tile", complete, lambda tiling: tiling.cycles, str, "cycles of one core")


class _Planner:
    def __init__(self, search: TileSearch, stored: Affine, *, plain: bool) -> None:
        self.search, self.stored, self.plain = search, stored, plain
        self.nest, self.sources, self.target = search.nest, search.sources, search.target
        self.steps, self.nbytes, self.lanes = search.steps, search.nbytes, search.lanes

    def complete(self, tiling: Tiling) -> Tiling:
        """With blocks and items; what these make of packing and storing joins the cost."""
        tiling = self.with_items(self.with_blocks(tiling))
        extents = tiling.extents
        moved = sum(
            tiling.items
            * tiling.k_blocks
            * source.box(extents)
            * self._pack_cycles(source, tiling.lane, extents)
            for source, packs in zip(self.sources, tiling.pack, strict=True)
            if packs
        )
        return replace(tiling, cycles=tiling.cycles + moved + self._store_cycles(tiling.lane))

    def _pack_cycles(self, source: Source, lane: Var | None, extents: Mapping[Var, int]) -> float:
        """Cycles to copy one element: few along lanes, more when transposing or de-interleaving.
        What comes from memory is waited for, since no tile has work to do meanwhile."""
        waits = 0.0
        if self.search.streams(source):
            target = self.target
            waits = self.nbytes * target.cycles_per_second / target.core_bandwidth
        return waits + self._move_cycles(source, lane, extents)

    def _move_cycles(self, source: Source, lane: Var | None, extents: Mapping[Var, int]) -> float:
        along = [
            (var, window.at.coeff(lane))
            for var, window in source.operand.windows.items()
            if lane is not None
        ] + ([(lane, 1)] if lane is not None else [])
        coeff = next(((var, c) for var, c in along if c), None)
        if lane not in source.depends or coeff is None:
            return 4.0 / self.lanes
        if coeff[1] > 1:
            return 1.0 if coeff[1] <= 4 else 3.0
        if source.memory is None:
            return 0.8
        gap = source.memory.coeff(coeff[0])
        if gap == 1:
            return 4.0 / self.lanes
        near = next((var for var, stride in source.memory.terms if stride == 1), None)
        if near is None or near in source.operand.windows:
            return 0.8
        length = extents.get(near, near.extent)
        return 0.8 if length >= self.lanes or length == gap else _GATHER_CYCLES

    def _store_cycles(self, lane: Var | None) -> float:
        """Cycles to store the sums: as vectors, lane by lane, or through a horizontal sum."""
        elements = math.prod(var.extent for var in self.nest.axes)
        if lane in self.nest.reduce:
            return elements * 8.0
        if lane is None or between_lanes(self.nest.axes, self.stored, lane, self.lanes):
            return elements * (5.0 if lane is None else 1.5)
        unit = self.stored.coeff(lane) == 1
        return elements * (5.0 if not unit else (1.0 if self.plain else 3.0) / self.lanes)

    # ---------------------------------------------------------------- blocks

    def with_blocks(self, tiling: Tiling) -> Tiling:
        """Cut the reduction and the result so that the blocks fit the caches."""
        tiling = self._with_k_block(tiling)
        for _ in range(64):
            excess = self._excess(tiling)
            if not excess:
                break
            smaller = self._halved(tiling, excess)
            if smaller is None:
                break
            tiling = smaller
        return tiling

    def _with_k_block(self, tiling: Tiling) -> Tiling:
        lane_step = self.lanes if tiling.lane in self.nest.reduce else 1
        most = MOST_STEPS * lane_step
        if any(source.operand.windows for source in self.sources):
            most = _MOST_WINDOW_STEPS
        vector = self.search.vector_source(tiling.lane)
        as_it_lies = vector is not None and not tiling.pack[self.sources.index(vector)]
        if vector is not None and as_it_lies and self.search.streams(vector):
            row = max(self.search.row(vector) * self.nbytes, 1)
            fitting = self.target.l2_nbytes // (8 * row)
            most = min(most, max(_STREAM_STEPS, fitting // _STREAM_STEPS * _STREAM_STEPS))
        if self.steps <= most * 3 // 2 or not tiling.reduce:
            return tiling
        axis, inner = self._cut_axis(tiling, most)
        wanted = max(most // inner, 1)
        blocks = -(-axis.extent // wanted)
        size = -(-axis.extent // blocks)
        size = -(-size // lane_step) * lane_step
        if axis is tiling.reduce[0] and size >= axis.extent:
            return tiling
        fetched = vector is not None and as_it_lies and self.search.is_prefetched(vector)
        ahead = _STREAM_AHEAD if fetched else 0
        return replace(tiling, blocked=axis, k_block=size, ahead=ahead)

    def _cut_axis(self, tiling: Tiling, most: int) -> tuple[Var, int]:
        """The outermost reduction axis inside which at most `most` steps are left, and how many."""
        inner = self.steps
        for axis in tiling.reduce:
            inner //= axis.extent
            if inner <= most:
                break
        return axis, inner

    def _excess(self, tiling: Tiling) -> list[frozenset[Var]]:
        """For each block that is too large, the axes that it depends on."""
        extents = tiling.extents
        half = self.target.l2_nbytes // 2
        found = []
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            vector = tiling.lane in source.depends
            if (packs or (vector and self.steps > 1)) and source.box(extents) * self.nbytes > half:
                streamed = not packs and self.search.streams(source)
                if not streamed:
                    found.append(source.depends)
        panel = math.prod(split.span for split in tiling.splits) * self.nbytes
        if panel > half and not self.is_direct(tiling):
            found.append(frozenset(self.nest.axes))
        return found

    def is_direct(self, tiling: Tiling) -> bool:
        """Accumulators go straight to the result's memory."""
        return self.plain and is_direct(tiling, self.stored)

    def _halved(self, tiling: Tiling, excess: Sequence[frozenset[Var]]) -> Tiling | None:
        guilty = frozenset().union(*excess)
        moves = [
            self._with_parts(tiling, split)
            for split in tiling.splits
            if split.var in guilty and split.parts < split.groups
        ]
        shorter = self._shorter(tiling, guilty)
        if shorter is not None:
            moves.append(shorter)
        return min(moves, key=self._traffic, default=None)

    def _shorter(self, tiling: Tiling, guilty: frozenset[Var]) -> Tiling | None:
        """Half the steps per block of the reduction, if that leaves enough of them."""
        axis = tiling.blocked or next(iter(tiling.reduce), None)
        size = tiling.k_block or (axis.extent if axis is not None else 0)
        if axis is not None and size == 1 and axis is not tiling.reduce[-1]:
            axis = tiling.reduce[tiling.reduce.index(axis) + 1]
            size = axis.extent
        if axis is None or axis not in guilty or axis is tiling.lane or size <= 1:
            return None
        inner = math.prod(
            tiling.extents.get(v, v.extent) for v in tiling.reduce[tiling.reduce.index(axis) + 1 :]
        )
        if size * inner < MOST_STEPS // 2:
            return None
        return replace(tiling, blocked=axis, k_block=-(-size // 2))

    def _with_parts(self, tiling: Tiling, split: Split) -> Tiling:
        """Twice as many parts along one axis; equal ones where there are few groups in each."""
        parts = 2 * split.parts
        if split.block <= _FEW_GROUPS:
            parts = -(-split.groups // -(-split.block // 2))
        finer = replace(split, parts=parts)
        return replace(tiling, splits=tuple(finer if s is split else s for s in tiling.splits))

    def _traffic(self, tiling: Tiling) -> float:
        """Elements moved by all items, packed ones counted as often as they are copied."""
        extents = tiling.extents
        total = 0.0
        uneven = math.prod(
            split.parts * split.span / split.var.extent
            for split in tiling.splits
            if split.var in self.search.shared
        )
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            box = source.box(extents, tiling.lane, self.lanes if packs else 1)
            total += tiling.items / uneven * tiling.k_blocks * box * (4 if packs else 1)
        if tiling.k_blocks > 1:
            total += 2 * tiling.k_blocks * math.prod(var.extent for var in self.nest.axes)
        return total

    # ---------------------------------------------------------------- items

    def with_items(self, tiling: Tiling) -> Tiling:
        """Split over cores: the axes whose splitting moves least."""
        wanted = min(_ITEMS_PER_CORE * self.target.cores, int(tiling.cycles / _SMALL_CYCLES))
        vector = self.search.vector_source(tiling.lane)
        if vector is not None and self.search.streams(vector) and not any(tiling.pack):
            chunks = max(self.search.row(vector) * self.nbytes // _STREAM_CHUNK, 1)
            apart = math.prod(var.extent for var in self.search.shared)
            wanted = min(wanted, max(self.target.cores, apart * chunks))
        enough = min(wanted, _FEW_ITEMS_PER_CORE * self.target.cores)
        while tiling.items < wanted:
            moves = [
                self._with_parts(tiling, split)
                for split in tiling.splits
                if split.parts < split.groups
            ]
            finer = min(moves, key=self._traffic, default=None)
            if finer is None or (
                tiling.items >= enough
                and self._traffic(finer) > _MORE_TRAFFIC * self._traffic(tiling)
            ):
                break
            tiling = finer
        return tiling


def between_lanes(axes: Sequence[Var], stored: Affine, lane: Var, lanes: int) -> list[Var]:
    """The axes whose positions are all the elements that memory has between two lanes, outermost
    first; none where something else lies there, or more than vectors can deal out."""
    gap = stored.coeff(lane)
    if not is_dealt(gap, lanes, shared=True):
        return []
    inner = [var for var in axes if 0 < stored.coeff(var) < gap]
    inner.sort(key=stored.coeff, reverse=True)
    covered = 1
    for var in reversed(inner):
        if stored.coeff(var) != covered:
            return []
        covered *= var.extent
    return inner if covered == gap else []


def is_direct(tiling: Tiling, stored: Affine) -> bool:
    """Whether tiles can write memory whose offset is `stored`: vectors need neighbours."""
    lane = tiling.lane
    return lane is None or lane in tiling.reduce or stored.coeff(lane) == 1
