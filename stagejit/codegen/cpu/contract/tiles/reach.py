"""Where operands of a contraction nest come from; what tiles ask for that later ones read.

Input: a `Nest`, its operands as `Source`s, a target, the axis of the lanes. Output: which caches an
operand comes from, how soon, and steps ahead, for any tile. Invariant: depends on shapes, strides,
dtypes and the target only; what was seen on which CPU stands with each number.

Note [A page ahead]: what is used in one tile only comes at the speed of memory or of the last cache
at best, if enough of its lines are on the way. Prefetchers stop where a page ends, and begin anew a
few lines into the next one. Cores that have to ask for lines ask for that which lies some pages
ahead, whatever panel, row or array it belongs to: what a kernel reads last asks for what the next
one may read first. On two cores of Cascade Lake, C that multiplies by 85 MB of bytes takes 4.6 ms
without, 4.1 with 512 bytes, 3.7 with 2 KiB, 3.6 with 4 to 16, and reads them in 3.6. Where memory
is further away, as on a Granite Rapids, lines that are asked for into the first cache hold back
others that are on the way there: by 94 MB C multiplies at 0.73 of what reading gives without, at
0.76 so with one page, at 0.79 with two, and at 0.94 with two into the second cache.

Note [Row by row]: a tile of dot products reads a line of each of its rows, then the next one of
each. Where several rows lie on a page, prefetchers lose track of such a page, but not of rows that
come one after the other, or have pages of their own. On two cores of a Zen 4, C that multiplies 64
MB of rows of 64 floats by a vector takes 4.1 ms in tiles of 14 rows, 1.3 in tiles of one; of 100,
256 and 500 floats 2.6 and 1.3, 3.1 and 1.6, 2.8 and 1.2; of 1024, a page, as long; of 16 and 32,
which are a line or two, as long. From the last cache, 8 MB of rows of 100 floats take 85 us and 66.
From the second one tiles of many rows are never slower, and are faster with several vectors. Tiles
with lanes along the columns need many rows to hide a step's latency; they ask, line after line, for
the rows of the next tile: 64 MB of rows of 100, 256 and 500 floats by a matrix of 16 columns take
4.8, 5.5 and 3.4 ms without, 3.4, 2.8 and 2.8 with that. Cores that ask a page ahead are left as
they were seen.
"""

from __future__ import annotations

import math

from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.packing import panel_split
from stagejit.codegen.cpu.contract.tiling import NextTile, Tiling
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

MOST_STEPS = 512  # of the reduction in a block: rows of the broadcast operand stay in L1
MOST_STREAMED_STEPS = 64  # where the vector operand comes from memory
STREAM_VECTORS = 4
STREAM_STEPS = 8  # rows in flight where an operand streams from memory
# Panels that a tile reads side by side, as they come from memory, at most. On two cores of a
# Granite Rapids C that multiplies by 85 MB of bytes takes 1.67 ms with one, 1.65 with two or three,
# and 3.0, 2.9 and 2.75 once others have used the caches; reading them takes 1.55, and 2.7. By 340
# MB of f32 it takes 10.9 ms with one, 9.9 to 10.2 with three, four or six.
STREAMS = 4
# Rows that wait for the last cache: on Zen 4, short blocks that fetch the next one take 0.8 of the
# time of long ones for 64 rows, 0.9 for 128, 1.02 for 512, and more where there are few steps.
# One or two wait less than fetches take.
_FEW_ROWS, _STEPS_A_ROW, _FETCHED_ROWS = 128, 6, 3
# Rows, for each port, that wait for memory. On Zen 4, blocks of 64 steps take 0.93 of the time of
# long ones for 64 and 128 rows by 768x50257, 0.98 for 256, 1.02 for 512, 1.08 for 2048 by
# 512x24576.
_FAR_ROWS = 256
# Steps of a block that many rows use and that fetches the next one, where the result has the sums:
# on two cores of a Zen 4 they take 0.9 of the time of 512 that do not for 256x3072x768, 0.97 for
# 256x768x2304 and 1024x1024x1024; with an epilogue 512 that fetch are as fast.
FETCHED_STEPS = 256
# Rows that lie a page apart each need an entry of the first TLB (64 on Zen 3, 72 on Zen 4, 96 on
# Zen 5 and Golden Cove); where they have none, a step waits for the second one and for its lines.
TLB_ENTRIES = 64
TLB_MISS = 7  # cycles
# Cycles until a vector that comes from the second cache is used: it takes 14 on Zen and Skylake.
# In steps that are shorter, a core that waits for few lines at once has none to spare for what is
# read as it lies and comes from further away: because rows evict each other from the second cache
# (on Cascade Lake, with two ports and 12 lines, 512x512x512 takes 0.5 of the time where it is
# packed, 32x1024x1024 0.6), or because blocks fetch the next one (300x4096x4096 takes 0.72 of the
# time where it is packed, 123x51234x456 0.74, 64x4096x4096 0.88). On Zen, with 24, neither is seen.
_SECOND_CYCLES = 16
_FEW_LINES = 12
# Of steps that are fetched ahead from the second cache: a line that had to leave it comes in time,
# too. On Cascade Lake, 4 to 32 steps of 6 x 4 vectors take 0.94 of the time of none.
_NEAR_CYCLES = 96
# Until a line is there that comes from memory while others come, too. Seen on Zen 4: `A @ W` of
# rows of 32 floats and 4 columns takes 3.2 ms where each tile asks for the next one, 256 such
# cycles later, 2.7 where for one 2 to 6 tiles later; of 64 floats 2.8 and 2.2.
_MEMORY_CYCLES = 1000
_PAGES_AHEAD = 2
_BLOCKS_OF_PAGES = 8  # tiles go elsewhere behind a block: an eighth of it is asked for in vain
_FEW_VECTORS = 2
WAYS = 8  # lines at addresses that agree modulo a page which L1 can hold
# Of rows that tiles read in turn: lines of one that are not felt, bytes of the last cache a cycle,
# part of what a core reads of memory. See Note [Row by row].
_LINES_IN_TURN, _TURNS_NBYTES_A_CYCLE, _TURNS_SHARE = 2, 14.0, 0.5


class Reach:
    """Of one nest whose lanes run along `lane`."""

    def __init__(
        self, nest: Nest, sources: tuple[Source, Source], target: Target, lane: Var | None
    ) -> None:
        self.nest, self.sources, self.lane, self.target = nest, sources, lane, target
        self.lanes = target.lanes(element_type(nest.dtype)) if lane is not None else 1
        self.steps = math.prod(var.extent for var in nest.reduce)
        self.shared = [var for var in nest.axes if all(var in s.depends for s in sources)]
        self.across = lane in nest.reduce
        wide = [source for source in sources if lane in source.depends]
        self.vector = wide[0] if len(wide) == 1 else None  # what is read as vectors, if only one is
        self.fma_rate = float(target.fma_ports)
        self.nbytes = nest.dtype.itemsize
        flipped = nest.flipped(lane)
        self.flipped = None if flipped is None else sources[flipped]
        # A step of the largest tiles takes longer than it may wait for what it fetches.
        longest = target.vector_registers * 0.75 / self.fma_rate
        self._has_time_to_fetch = longest > 2 * (TLB_MISS + STREAM_VECTORS)
        self.has_few_lines = target.l1_misses <= _FEW_LINES  # on the way to a core at once
        cycles = map(self._turns_cycles, sources)
        self.turns = {number: each for number, each in enumerate(cycles) if each}

    def row(self, vector: Source) -> int:
        """Elements that one step of the reduction reads, at one position of what both share."""
        return vector.box(dict.fromkeys((*self.nest.reduce, *self.shared), 1))

    def streams(self, vector: Source) -> bool:
        """The vector operand comes row by row while tiles run: from memory, or from the last cache,
        which few rows wait for where steps of the largest tiles are long enough to fetch others."""
        few = min(_FEW_ROWS, self.steps // _STEPS_A_ROW)
        fetches = self._has_time_to_fetch and self._passes(vector, few)
        waits = self.rows_beside(vector) <= _FAR_ROWS * self.fma_rate
        return (self.is_far(vector) and waits) or self.is_passed(vector) or fetches

    def is_prefetched(self, vector: Source) -> bool:
        """Where it is read as it lies, each block of it fetches the next one."""
        if len(self.nest.reduce) > 1:
            return False
        if not self.streams(vector):
            far = self._passes(vector, self.rows_beside(vector))
            return far and self._has_time_to_fetch and not self.has_few_lines
        return self.is_far(vector) or self.rows_beside(vector) >= _FETCHED_ROWS

    def waits_for_fetches(self, vector: Source) -> bool:
        """Whether these take lines that short steps want; for few rows there is little to do."""
        few = self.has_few_lines
        return few and self.is_prefetched(vector) and not self.is_passed(vector)

    def is_far(self, vector: Source) -> bool:
        """It comes from memory; a nest may read a part of it."""
        nbytes = max(vector.box({}) * self.nbytes, vector.value.type.nbytes)
        return vector.offset is not None and nbytes > self.target.l3_nbytes

    def is_passed(self, vector: Source) -> bool:
        """A large operand of which each element is used in one register tile only."""
        return self._passes(vector, self.target.vector_registers // 2)

    def _passes(self, vector: Source, rows: int) -> bool:
        large = vector.box({}) * self.nbytes > self.target.l2_nbytes
        return large and vector.offset is not None and self.rows_beside(vector) <= rows

    def own_axes(self, source: Source) -> list[Var]:
        """Those of the result along which the other operand does not move."""
        return [v for v in self.nest.axes if v in source.depends and v not in self.shared]

    def rows_beside(self, vector: Source) -> int:
        """How often each of its elements is used."""
        return math.prod(var.extent for var in self.nest.axes if var not in vector.depends)

    def step_nbytes(self, source: Source) -> int:
        """How far the shortest step of the reduction that moves an operand moves it."""
        strides = [abs(source.stride(var)) * self.nbytes for var in self.nest.reduce]
        return min((stride for stride in strides if stride), default=0)

    def pages(self, source: Source) -> float:
        """On which the rows of a block lie."""
        rows = min(self.steps, MOST_STREAMED_STEPS if self.streams(source) else MOST_STEPS)
        page = self.target.page_nbytes
        return rows * min(self.step_nbytes(source), page) / page

    def near_steps(self, source: Source) -> int:
        """Steps whose rows lie on no more pages than the first TLB has entries."""
        page = self.target.page_nbytes
        return TLB_ENTRIES * page // max(min(self.step_nbytes(source), page), 1)

    def most_streamed_steps(self, vector: Source) -> int:
        """In a block of what comes from memory while tiles run: its rows lie on no more pages than
        the first TLB has entries. What few rows use is waited for; short blocks read it almost in
        order."""
        near = self.near_steps(vector) // STREAM_STEPS
        return max(min(near, self.rows_beside(vector)), 1) * STREAM_STEPS

    def is_widened(self, source: Source) -> bool:
        """Whether tiles that read an operand as it lies convert it."""
        return source.offset is not None and source.dtype is not self.nest.dtype

    def is_short(self, points: int) -> bool:
        """Whether a step of a tile takes less time than a vector from the second cache."""
        return points / self.fma_rate < _SECOND_CYCLES

    def second_cycles(self, source: Source) -> float:
        """Until a vector of a block that L1 does not hold is there: tiles go through all columns
        before they come back to one. What windows share they find in L1."""
        rows = min(self.steps, MOST_STEPS)
        fits = source.windows or rows * self.row(source) * self.nbytes <= self.target.l1_nbytes
        if fits and not self.across:  # there it depends on the tile, see `_is_held`
            return 0.0
        return self.target.vector_nbytes / self.target.l2_nbytes_a_cycle

    def moving_cycles(self) -> float:
        """Of one core that reads both operands once, from the last cache or from memory."""
        nbytes = sum(source.box({}) * source.dtype.itemsize for source in self.sources)
        return nbytes / self.target.rate_of_core(nbytes) * self.target.cycles_per_second

    def asks_a_page_ahead(self, source: Source) -> bool:
        """Tiles ask for an operand as it comes from further away than the second cache, of which
        each element is used in one of them only, on cores that have to ask."""
        if not self.target.asks_pages or source.offset is None:
            return False
        # A part of what is large is as far away as the rest.
        whole = (source.leaf or source.value).type.nbytes > self.target.l2_nbytes
        part = whole and source.box({}) * self.nbytes > self.target.l1_nbytes
        few = self.rows_beside(source) <= self.target.vector_registers // 2
        return few and (part or self.is_passed(source))

    def steps_from_far(self, tiling: Tiling) -> int:
        """How many steps ahead tiles ask for what few rows use, as it comes line after line from
        further away than the second cache, see Note [A page ahead]; 0: not at all."""
        vector = self.vector
        if vector is None or self.lane is None or self.across or not tiling.reduce:
            return 0
        packs = tiling.pack[self.sources.index(vector)]
        follows = vector.stride(tiling.reduce[-1]) == tiling.row
        if packs or not follows or not self.asks_a_page_ahead(vector):
            return 0
        own = (s for s in tiling.splits if s.var in vector.depends and s.var is not self.lane)
        streams = math.prod(split.most for split in own) if self.is_widened(vector) else 1
        nbytes = _PAGES_AHEAD * self.target.page_nbytes // streams
        steps = -(-nbytes // (tiling.row * vector.dtype.itemsize))
        long = tiling.blocked is None or tiling.k_block >= _BLOCKS_OF_PAGES * steps
        return steps if long else 0

    def steps_from_second(self, tiling: Tiling) -> int:
        """How many steps ahead tiles fetch vectors that follow each other in the second cache: not
        at all where a step takes longer than one comes, or has no time for more loads."""
        vector, lane = self.vector, self.lane
        if vector is None or lane is None or self.across or not tiling.reduce:
            return 0
        if self.is_passed(vector):
            return 0
        if tiling.pack[self.sources.index(vector)]:
            follows = panel_split(vector, tiling) is not None
        else:
            follows = vector.stride(tiling.reduce[-1]) == tiling.row
        points = math.prod(split.most for split in tiling.splits)
        vectors = tiling.row // self.lanes
        lines = tiling.row * vector.dtype.itemsize / self.target.line_nbytes
        loads = points // vectors / 2 + vectors + lines
        wanted = follows and self.is_short(points) and self.second_cycles(vector) > 0
        return math.ceil(_NEAR_CYCLES * self.fma_rate / points) if wanted and loads <= points else 0

    def next_tile(self, tiling: Tiling) -> NextTile | None:
        """What tiles, each a piece of memory that follows on the one before along an axis, fetch
        for another one. See Note [A page ahead] and Note [Row by row]."""
        if self.across and any(tiling.pack):
            return None
        for number, source in enumerate(self.sources):
            rows = max(
                (split for split in tiling.splits if split.var in source.depends),
                key=lambda split: split.most,
                default=None,
            )
            if rows is None or source.stride(rows.var) != self.steps:
                continue
            if self.across:
                nbytes = rows.most * self.steps * source.dtype.itemsize
                near = nbytes <= 2 * self.target.page_nbytes
                asks = near and self.asks_a_page_ahead(source)
            else:
                asks = self._asks_for_rows(source, tiling)
            if asks:
                return NextTile(number, rows.var, 1 if self.across else self._tiles_ahead(tiling))
        return None

    def _tiles_ahead(self, tiling: Tiling) -> int:
        """As many as take the time in which a line comes from memory."""
        points = math.prod(split.most for split in tiling.splits)
        return math.ceil(_MEMORY_CYCLES * self.fma_rate / (self.steps * points))

    def _asks_for_rows(self, source: Source, tiling: Tiling) -> bool:
        """Tiles with lanes along the columns, each of which has all of these, read rows in turn."""
        packs = tiling.pack[self.sources.index(source)]
        if packs or tiling.blocked is not None or self.lane in source.depends or tiling.depth:
            return False
        alone = len(tiling.reduce) == 1 and source.stride(tiling.reduce[0]) == 1
        return alone and self.rows_beside(source) <= tiling.row and self._comes_in_turn(source)

    def rows_held(self, source: Source, packs: bool) -> int:
        """How many rows a tile may read as scalars: the first cache holds so many lines at the
        places that they fall on, and, beside few columns, one of these. Where a short step, or one
        that converts vectors, wants all of them from the second cache, it waits: on two cores of a
        Zen 4 4 MB of rows of 1024 floats by a matrix of 16 columns take 0.34 ms in tiles of 16
        rows, 0.18 in tiles of 7; of 32 columns 0.41 and 0.35. 16 such rows by 1024x1024 bytes of
        weights take 340 us in tiles of 16, 165 of 8."""
        few = self.rows_beside(source) <= _FEW_VECTORS * self.lanes
        converts = self.vector is not None and self.is_widened(self.vector)
        wants = self.lane is not None and self.lane not in source.depends and not packs
        if not wants or not (few or converts):
            return self.steps * self.target.vector_registers
        many = (var for var in self.own_axes(source) if var.extent > WAYS)
        held = (self.lines_held(source.stride(var) * source.dtype.itemsize) for var in many)
        return min(held, default=self.lines_held(1)) - few

    def lines_held(self, apart: int) -> int:
        """Of lines that lie so many bytes apart those that the first cache can hold."""
        page = self.target.page_nbytes
        return page // math.gcd(apart, page) * WAYS

    def _turns_cycles(self, source: Source) -> float:
        """Of one core that reads an operand of dot products in tiles of several rows; 0 where they
        may have as many as they like. See Note [Row by row]."""
        if not self.across or not self._comes_in_turn(source):
            return 0.0
        nbytes = source.box({}) * source.dtype.itemsize
        if self._whole_nbytes(source) <= self.target.l3_nbytes:
            return nbytes / _TURNS_NBYTES_A_CYCLE
        rate = _TURNS_SHARE * self.target.core_bandwidth
        return nbytes / rate * self.target.cycles_per_second

    def _comes_in_turn(self, source: Source) -> bool:
        """Several rows of an operand lie on a page, and come from further than the second cache."""
        target = self.target
        if target.asks_pages or source.offset is None:
            return False
        strides = (abs(source.stride(var)) for var in self.own_axes(source))
        apart = min(strides, default=0) * source.dtype.itemsize
        several = _LINES_IN_TURN * target.line_nbytes < apart < target.page_nbytes
        return several and self._whole_nbytes(source) > target.l2_nbytes

    def _whole_nbytes(self, source: Source) -> int:
        """Of what an operand may be a part of: the rest comes from as far."""
        own = source.box({}) * source.dtype.itemsize
        return max(own, (source.leaf or source.value).type.nbytes)
