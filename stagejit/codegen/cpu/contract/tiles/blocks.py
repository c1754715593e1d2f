"""Blocks and parallel items of a contraction nest: what fits the caches, and what cores share.

Input: the register tilings that `TileSearch` proposes. Output: the cheapest complete `Tiling`.
Invariant: blocks change neither what is computed nor, for a given target, the order of its sums.

Note [Far rows]: what comes from memory row by row is read in short blocks of the reduction, each of
which all rows of the result use while the next one comes. The sums of an item are read and written
in each. Where the second cache does not hold them that takes longer than the products, if blocks
are of few steps; and they are of few where an item has much of each row. On two cores of a Zen 4,
256x256x65536 took 51 ms in 16 items and blocks of 8 steps, and takes 44 in 128 and of 64; 64 and
128 rows by 768x50257 took 26.7 and 51.8, and take 25.3 and 49.3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from operator import attrgetter

from stagejit.base.records import replace
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.tiles.move_cost import MoveCosts
from stagejit.codegen.cpu.contract.tiles.reach import FETCHED_STEPS, MOST_STEPS, STREAM_STEPS
from stagejit.codegen.cpu.contract.tiles.search import Problem
from stagejit.codegen.cpu.contract.tiling import Shared, Tiling
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.nest.groups import Split
from stagejit.index.affine import Var

_MOST_STEPS_IN_LINE = 2048  # where each reads what follows in memory: sums of more lose digits
_MOST_WINDOW_STEPS = 2048  # where windows overlap, so that fewer bytes stand for more steps
_SMALL_CYCLES = 20_000  # one item below this: about 5 us
_ITEMS_PER_CORE = 8
_FEW_ITEMS_PER_CORE = 4  # if more would move much more memory
_PACKING_ITEMS_PER_CORE = 2  # where each copies all that it reads, too
_MORE_TRAFFIC = 1.25
# Steps that are looked at for more even shares, and what is then left of the time at most.
_FINER_AT_MOST, _WORTH_EVENNESS = 3, 0.9
_FEW_GROUPS = 4
_FEWEST_QUADS = 64
# Bytes of each row that an item should read at least: from memory, from the last cache.
_STREAM_CHUNK, _NEAR_CHUNK = 4096, 1024
_LINE_CHUNK = 256 << 10  # of memory that is read in line, where an item's start is not felt


class NoTileError(Exception):
    """No tile is of the size that a user wants."""


def choose(problem: Problem) -> Ranked[Tiling]:
    """The cheapest tiling; any other would be as right. Raises NoTileError."""
    lanes = _lane_choices(problem)
    searches = [BlockSearch(problem, lane) for lane in lanes]
    proposed = [(search, tiling) for search in searches for tiling in search.candidates()]
    if not proposed:
        registers = problem.target.vector_registers
        raise NoTileError(f"no tile of {problem.only} fits its axes and {registers} registers")
    tilings = [tiling for _, tiling in proposed]
    costs = [search.at_least(tiling) for search, tiling in proposed]
    complete: dict[int, float] = {}
    for at in sorted(range(len(costs)), key=costs.copy().__getitem__):
        if costs[at] > min(complete.values(), default=math.inf):
            break  # blocks only add to what it and the others cost
        tilings[at] = proposed[at][0].complete(tilings[at])
        costs[at] = complete[at] = tilings[at].cycles
    ranked = cheapest(
        "tile", range(len(costs)), costs.__getitem__, lambda at: str(tilings[at]),
        "cycles of one core", complete.__contains__,
    )  # fmt: skip
    return Ranked(tilings[ranked.best], ranked.choice, ranked.cost)


def _lane_choices(problem: Problem) -> Sequence[Var | None]:
    nest = problem.nest
    across = [var for var in nest.reduce if _may_lie_along(problem, var)]
    longest = max(nest.reduce, key=lambda var: var.extent, default=None)
    axes = [var for var in nest.axes if nest.cut is None or var is not nest.cut.part]
    return [*axes, *across] or [longest]


def _may_lie_along(problem: Problem, var: Var) -> bool:
    """Whether lanes along the reduction may pay off: where both operands are read as they lie, or
    one is, and the other, of columns that would not fill lanes of their own, is packed. On two
    cores of a Granite Rapids 2000x2000 by 2000x4 takes 0.71 ms with lanes along the 4, and 0.49 so.
    """
    other = [source for source in problem.sources if source.stride(var) != 1]
    if len(other) != 1:
        return not other
    beside = next(source for source in problem.sources if source is not other[0])
    own = other[0].depends - beside.depends
    columns = math.prod(axis.extent for axis in problem.nest.axes if axis in own)
    return columns < problem.target.lanes(element_type(problem.nest.dtype))


class BlockSearch(MoveCosts):
    """Register tiles with blocks and items around them."""

    def at_least(self, tiling: Tiling) -> float:
        """What a tile costs in any blocks."""
        return tiling.cycles + self.store_cycles()

    def complete(self, tiling: Tiling) -> Tiling:
        """A tile in blocks and items; what these make of packing joins the cost, as storing."""
        tiling = self._with_items(self._with_blocks(tiling))
        moved = sum(
            tiling.items
            * tiling.k_blocks
            * source.box(tiling.extents)
            * self.pack_cycles(source, tiling, packs)
            for source, packs in zip(self.sources, tiling.pack, strict=True)
        )
        far = self.steps_from_far(tiling)
        return replace(
            tiling,
            cycles=self.at_least(tiling) + moved,
            near=0 if tiling.depth else far or self.steps_from_second(tiling),
            near_cache=2 if far else 1,
            next_tile=self.next_tile(tiling),
        )

    # ---------------------------------------------------------------- blocks

    def _with_blocks(self, tiling: Tiling) -> Tiling:
        """Cut the reduction and the result so that the blocks fit the caches."""
        tiling = self._with_k_block(tiling)
        while guilty := self._excess(tiling):
            smaller = [*self._finer(tiling, guilty), *self._shorter(tiling, guilty)]
            if not smaller:
                break
            tiling = min(smaller, key=self._traffic)
        return tiling

    def _with_k_block(self, tiling: Tiling) -> Tiling:
        lane_step = self.lanes if self.across else 1
        most = MOST_STEPS * lane_step
        if any(source.windows for source in self.sources):
            most = _MOST_WINDOW_STEPS
        vector = self.vector
        if vector is not None and tiling.pack[self.sources.index(vector)]:
            vector = None
        if self.vector is not None and self.vector.bytes_apart:
            most = min(most, max(_FEWEST_QUADS, 4 * self.rows_beside(self.vector)))
        if self.runs_on(tiling):
            most = max(most, _MOST_STEPS_IN_LINE)
        elif vector is not None and self.streams(vector):
            most = min(most, self._streamed_steps(vector, tiling))
        elif vector is not None and self.direct and self.is_prefetched(vector):
            most = min(most, FETCHED_STEPS)
        enough = most * 3 // 2
        if self.nest.blocks is not None:
            exact = self.nest.blocks.steps * (lane_step if len(tiling.reduce) == 1 else 1)
            most, enough = min(most, exact), min(enough, exact)
        if self.steps <= enough or not tiling.reduce:
            return tiling
        axis, inner = self._cut_axis(tiling, most)
        blocks = -(-axis.extent // max(most // inner, 1))
        size = -(-axis.extent // blocks)
        whole = lane_step if axis is self.lane else tiling.depth or 1
        size = -(-size // whole) * whole
        if axis is tiling.reduce[0] and size >= axis.extent:
            return tiling
        ahead = vector is not None and self.is_prefetched(vector) and not self.runs_on(tiling)
        return replace(tiling, blocked=axis, k_block=size, ahead=ahead)

    def _streamed_steps(self, vector: Source, tiling: Tiling) -> int:
        """Steps in a block of what comes from memory while tiles run: two of them fill half of the
        second cache, beside what `most_streamed_steps` says."""
        fitting = self.target.l2_nbytes // (4 * self._row_nbytes(vector, tiling))
        steps = min(fitting // STREAM_STEPS * STREAM_STEPS, self.most_streamed_steps(vector))
        return max(steps, STREAM_STEPS)

    def _row_nbytes(self, vector: Source, tiling: Tiling) -> int:
        """What an item reads of each row."""
        once = dict.fromkeys((*self.nest.reduce, *self.shared), 1)
        return max(vector.box({**tiling.extents, **once}) * self.nbytes, 1)

    def runs_on(self, tiling: Tiling) -> bool:
        """What a step of a tile reads of the vector operand follows in memory on what the step
        before read, so that whole panels come one line after the other; and the other operand stays
        in L1 meanwhile."""
        vector = self.vector
        if vector is None or self.across or len(tiling.reduce) != 1 or self.lane is None:
            return False
        if not self.is_passed(vector):
            return False
        if tiling.pack[self.sources.index(vector)] or vector.stride(self.lane) != 1:
            return False
        (split,) = (split for split in tiling.splits if split.var is self.lane)
        held = self.rows_beside(vector) * self.steps * self.nbytes
        follows = vector.stride(tiling.reduce[0]) == split.most * self.lanes
        return follows and 2 * held <= self.target.l1_nbytes

    def _cut_axis(self, tiling: Tiling, most: int) -> tuple[Var, int]:
        """The outermost reduction axis inside which at most `most` steps are left, and how many."""
        inner = self.steps
        for axis in tiling.reduce:
            inner //= axis.extent
            if inner <= most:
                break
        return axis, inner

    def _excess(self, tiling: Tiling) -> frozenset[Var]:
        """The axes that blocks which are too large depend on, with the next one where it comes."""
        half, found = self.target.l2_nbytes // 2, frozenset[Var]()
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            stays = packs or (self.lane in source.depends and self.steps > 1)
            often = 2 if tiling.ahead and source is self.vector else 1
            large = stays and often * source.box(tiling.extents) * self.nbytes > half
            if large and (packs or not self.streams(source)):
                found |= source.depends
        fits = self.direct or self._holds_sums(tiling)
        return found if fits else found.union(self.nest.axes)

    def _finer(self, tiling: Tiling, axes: Collection[Var]) -> list[Tiling]:
        """Twice as many parts along one of these axes; equal ones where each has few groups."""
        found, splits = [], tiling.splits
        for at, split in enumerate(splits):
            if split.var in axes and split.parts < split.groups:
                parts = 2 * split.parts
                if split.block <= _FEW_GROUPS:
                    parts = -(-split.groups // -(-split.block // 2))
                cut = replace(split, parts=parts)
                found.append(replace(tiling, splits=(*splits[:at], cut, *splits[at + 1 :])))
        return found

    def _shorter(self, tiling: Tiling, axes: Collection[Var]) -> list[Tiling]:
        """Half the steps per block of the reduction, if that leaves enough of them."""
        reduce, extents = tiling.reduce, tiling.extents
        if not reduce:
            return []
        at = 0 if tiling.blocked is None else reduce.index(tiling.blocked)
        if extents.get(reduce[at], reduce[at].extent) == 1 and at + 1 < len(reduce):
            at += 1
        axis, *inner = reduce[at:]
        size = extents.get(axis, axis.extent)
        steps = math.prod((size, *(extents.get(var, var.extent) for var in inner)))
        if axis not in axes or axis is self.lane or size <= 1 or steps < MOST_STEPS // 2:
            return []
        whole = tiling.depth or 1
        half = -(-size // (2 * whole)) * whole
        return [replace(tiling, blocked=axis, k_block=half)] if half < size else []

    def _traffic(self, tiling: Tiling) -> float:
        """Elements moved by all items, packed ones counted as often as they are copied."""
        total = 0.0
        uneven = math.prod(
            split.parts * split.span / split.var.extent
            for split in tiling.splits
            if split.var in self.shared
        )
        items, k_blocks = tiling.items / uneven, tiling.k_blocks
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            box = source.box(tiling.extents, self.lane, self.lanes if packs else 1)
            total += items * k_blocks * box * (4 if packs else 1)
        if k_blocks > 1:
            total += 2 * k_blocks * math.prod(var.extent for var in self.nest.axes)
        return total

    # ---------------------------------------------------------------- items

    def _with_items(self, tiling: Tiling) -> Tiling:
        """Split over cores: the axes whose splitting moves least."""
        cycles = tiling.cycles + self.moving_cycles()
        wanted = min(_ITEMS_PER_CORE * self.target.cores, int(cycles / _SMALL_CYCLES))
        vector = self.vector
        if vector is not None and self.runs_on(tiling):
            return self._in_shares(tiling, vector, wanted)
        streams = vector is not None and self.streams(vector) and not any(tiling.pack)
        if vector is not None and (streams or vector.bytes_apart):
            far = streams and (self.is_far(vector) or self.is_passed(vector))
            nbytes = self.row(vector) * (self.nbytes if streams else 1)
            chunks = max(nbytes // (_STREAM_CHUNK if far else _NEAR_CHUNK), 1)
            apart = math.prod(var.extent for var in self.shared)
            wanted = min(wanted, max(self.target.cores, apart * chunks))
        few = _PACKING_ITEMS_PER_CORE if all(tiling.pack) else _FEW_ITEMS_PER_CORE
        enough = min(wanted, few * self.target.cores)
        now = Shared(tiling, self._traffic(tiling))
        finer = self._finer_shares(tiling)
        while finer is not None and now.items < wanted:
            if now.items >= enough and finer.traffic > _MORE_TRAFFIC * now.traffic:
                break
            all_work = now.items >= self.target.cores
            if all_work and self.shared_cycles(finer.tiling) > self.shared_cycles(now.tiling):
                break
            now, finer = finer, self._finer_shares(finer.tiling)
        tiling = self._with_even_items(now, finer)
        if vector is None or not streams:
            return tiling
        return self._with_k_block(self._with_long_blocks(tiling, vector))  # its rows are shorter

    def _with_long_blocks(self, tiling: Tiling, vector: Source) -> Tiling:
        """Sums that the second cache does not hold are read and written once a block: an item has
        no more of each row than lets blocks be long. See Note [Far rows]."""
        own = [split.var for split in tiling.splits if split.var in vector.depends - {*self.shared}]
        longest = min(self.most_streamed_steps(vector), self.steps)
        while self._streamed_steps(vector, tiling) < longest and not self._holds_sums(tiling):
            finer = self._finer(tiling, own)
            if not finer or self._row_nbytes(vector, tiling) <= _STREAM_CHUNK:
                break
            tiling = min(finer, key=self._traffic)
        return tiling

    def _holds_sums(self, tiling: Tiling) -> bool:
        """Whether half of the second cache does, of an item's."""
        panel = math.prod(split.span for split in tiling.splits) * self.nbytes
        return panel <= self.target.l2_nbytes // 2

    def _finer_shares(self, tiling: Tiling) -> Shared | None:
        """More parts along the axis where that moves least."""
        shares = [Shared(each, self._traffic(each)) for each in self._finer(tiling, self.nest.axes)]
        return min(shares, key=attrgetter("traffic"), default=None)

    def _with_even_items(self, best: Shared, finer: Shared | None) -> Tiling:
        """Finer, where cores that have an item less wait for long."""

        def cost(share: Shared) -> float:
            rounds = -(-share.items // self.target.cores)
            return rounds * self.target.cores / share.items * share.traffic

        for left in reversed(range(_FINER_AT_MOST)):
            if finer is None or finer.items * _SMALL_CYCLES > best.tiling.cycles:
                break
            best = finer if cost(finer) < _WORTH_EVENNESS * cost(best) else best
            finer = self._finer_shares(finer.tiling) if left else None
        return best.tiling

    def _in_shares(self, tiling: Tiling, vector: Source, wanted: int) -> Tiling:
        """Items of equal shares of what runs on in memory, in tiles as large as that allows: cores
        that wait for memory finish together, each with pieces that are long. Cores with few lines
        on the way read what is widened a panel at a time, as by `_tiles`: two panels of bytes side
        by side take 1.05 times as long on Cascade Lake, four of f32 0.95. An item has one part of
        what is cut, as before."""
        fixed = {self.lane, self.nest.cut.part if self.nest.cut is not None else None}
        own = [s for s in tiling.splits if s.var in vector.depends and s.var not in fixed]
        split = max(own, key=lambda split: split.groups, default=None)
        nbytes = vector.box({}) * vector.dtype.itemsize
        most = min(wanted, _FEW_ITEMS_PER_CORE * self.target.cores, nbytes // _LINE_CHUNK)
        if split is None or most < 2:
            return tiling
        cores, units = self.target.cores, split.var.extent

        def rank(cut: Split) -> tuple[float, int, int]:
            rounds = -(-cut.parts // cores)
            return units / (cores * rounds * cut.span), cut.most, cut.parts

        points = math.prod(each.most for each in tiling.splits if each is not split)
        alone = self.has_few_lines and self.is_widened(vector) and self.hides_latency(points)
        sizes = range(1, 2 if alone else split.most + 1)
        tiles = (Split.of(split.var, split.unit, size) for size in sizes)
        cuts = [
            replace(tile, parts=parts)
            for tile in tiles
            for parts in range(1, min(most, tile.groups) + 1)
        ]
        best = max(cuts, key=rank)
        splits = (best if each is split else each for each in tiling.splits)
        return replace(tiling, splits=tuple(splits))
