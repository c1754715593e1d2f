"""What a step of the reduction costs in a register tile: cycles of ports, caches, pages; and what
it asks for of what later ones read.

Input: a `Nest`, its operands as `Source`s, a target, the axis of the lanes. Output: cycles of a
step, and steps ahead, for any tile. Invariant: depends on shapes, strides, dtypes and the target
only; what was seen on which CPU stands with each number.

Note [A page ahead]: what is used in one tile only comes at the speed of memory or of the last cache
at best, if enough of its lines are on the way. Prefetchers stop where a page ends, and begin anew a
few lines into the next one. Cores that have to ask for lines ask for that which lies some pages
ahead, whatever panel, row or array it belongs to: what a kernel reads last asks for what the next
one may read first. On two cores of Cascade Lake, C that multiplies by 85 MB of bytes takes 4.6 ms
without, 4.1 with 512 bytes, 3.7 with 2 KiB, 3.6 with 4 to 16, and reads them in 3.6. Where memory
is further away, as on a Granite Rapids, lines that are asked for into the first cache hold back
others that are on the way there: by 94 MB C multiplies at 0.73 of what reading gives without, at
0.76 so with one page, at 0.79 with two, and at 0.94 with two into the second cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.packing import panel_split
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

MOST_STEPS = 512  # of the reduction in a block: rows of the broadcast operand stay in L1
MOST_STREAMED_STEPS = 64  # where the vector operand comes from memory
LATENCY = 4  # cycles until a fused multiply-add's result can be used
_SHORT_NBYTES = 192  # reading less of each row than this defeats the prefetchers
_SHORT_STALL = 0.2  # part of a step that it costs
_NEAR_SHORT_STALL = 0.1  # where tiles fetch ahead, or rows lie on few pages
# Part of the time that the second cache gives packed vectors without delay, and part of a step
# that the rest would cost. With AVX2 on Zen 3, 512x768x3072 takes 14.4 ms in tiles of 4 x 3, which
# keep it busy for 0.75 of the time, and 13.3 in tiles of 6 x 2, for 0.5.
_FREELY, _BUSY_STALL = 0.6, 0.5
STREAM_VECTORS = 4
# Panels that a tile reads side by side, as they come from memory, at most. On two cores of a
# Granite Rapids C that multiplies by 85 MB of bytes takes 1.67 ms with one, 1.65 with two or three,
# and 3.0, 2.9 and 2.75 once others have used the caches; reading them takes 1.55, and 2.7. By 340
# MB of f32 it takes 10.9 ms with one, 9.9 to 10.2 with three, four or six.
STREAMS = 4
# Rows that wait for the last cache: on Zen 4, short blocks that fetch the next one take 0.8 of the
# time of long ones for 64 rows, 0.9 for 128, 1.02 for 512, and more where there are few steps.
# One or two wait less than fetches take.
_FEW_ROWS, _STEPS_A_ROW, _FETCHED_ROWS = 128, 6, 3
# Steps of a block that many rows use and that fetches the next one, where the result has the sums:
# on two cores of a Zen 4 they take 0.9 of the time of 512 that do not for 256x3072x768, 0.97 for
# 256x768x2304 and 1024x1024x1024; with an epilogue 512 that fetch are as fast.
FETCHED_STEPS = 256
# Rows that lie a page apart each need an entry of the first TLB (64 on Zen 3, 72 on Zen 4, 96 on
# Zen 5 and Golden Cove); where they have none, a step waits for the second one and for its lines.
_TLB_ENTRIES = 64
_TLB_MISS = 7  # cycles
_FAR_STALL = 0.2  # part of a step that it costs: 0.15 seen on Zen 5, 0.3 with AVX2 on Zen 4
# Cycles until a vector that comes from the second cache is used: it takes 14 on Zen and Skylake.
# In steps that are shorter, a core that waits for few lines at once has none to spare for what is
# read as it lies and comes from further away: because rows evict each other from the second cache
# (on Cascade Lake, with two ports and 12 lines, 512x512x512 takes 0.5 of the time where it is
# packed, 32x1024x1024 0.6), or because blocks fetch the next one (300x4096x4096 takes 0.72 of the
# time where it is packed, 123x51234x456 0.74, 64x4096x4096 0.88). On Zen, with 24, neither is seen.
_SECOND_CYCLES = 16
_FEW_LINES = 12
_EVICTED_STALL, _FETCH_STALL = 0.5, 0.25  # parts of a step
# Rows that tiles read as scalars beside windows along the lanes, where L1 does not hold what both
# are in a tile: what each of them adds to a step, beyond one for so many vectors. On Cascade Lake,
# 3x3 convolutions of 64 and of 192 planes of 90x62 take 1.13 and 1.12 of the time of 6 x 4 vectors
# in 11 x 2 and 13 x 2, 1.14 in 8 x 2, 1.22 in 16 x 1, 1.03 in 4 x 4.
_ROW_BESIDE_WINDOWS, _VECTORS_A_ROW = 0.35, 3  # cycles
# A vector of bytes, or of halves, is extended and converted; a scalar is then repeated, too.
_WIDEN_VECTOR, _WIDEN_SCALAR = 2.0, 3.0
# Scalars of each step that are on a line of their own: 2304x768x64 of bytes takes 1.33 ms on
# Cascade Lake where these are widened as they lie, 1.16 with lanes along them.
_APART_STALL = 0.15
# Of steps that are fetched ahead from the second cache: a line that had to leave it comes in time,
# too. On Cascade Lake, 4 to 32 steps of 6 x 4 vectors take 0.94 of the time of none.
_NEAR_CYCLES = 96
_PAGES_AHEAD = 2
_BLOCKS_OF_PAGES = 8  # tiles go elsewhere behind a block: an eighth of it is asked for in vain


@dataclass(frozen=True)
class _Reading:
    """What one operand costs a step: cycles of a load, on one port, and until a vector is there
    from the second cache; what it takes of the ports that multiply to widen it; where its vectors
    are read as they lie: bytes of a row that are too few, what these cost, whether rows lie on many
    pages, and what short steps wait, in parts of one. between: rows that are read before one is
    read again, where these are more than the tile's."""

    load: float
    second: float
    widening: float = 0.0
    short_nbytes: int = 0
    short_stall: float = 0.0
    far: bool = False
    waits: float = 0.0
    as_it_lies: bool = False
    beside: float = 0.0
    between: int = 0


class StepCosts:
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
        self._has_time_to_fetch = longest > 2 * (_TLB_MISS + STREAM_VECTORS)
        self.has_few_lines = target.l1_misses <= _FEW_LINES  # on the way to a core at once

    def readings(self, pack: Sequence[bool]) -> list[_Reading]:
        """What the operands cost a step, whatever the tile."""
        lane, found = self.lane, list[_Reading]()
        for source, packs in zip(self.sources, pack, strict=True):
            wide, load = lane in source.depends, self._load_cycles(source)
            widening = 0.0 if packs else self._widening(source)
            second = self.second_cycles(source) if wide else 0.0
            if lane is not None and wide and not self.across and not packs:
                short, far = self._short_rows(source, lane), self._pages(source) > _TLB_ENTRIES
                waits = _FETCH_STALL if self.waits_for_fetches(source) else 0.0
                waits += _EVICTED_STALL if second and self._evicts(source) else 0.0
                found.append(_Reading(load, second, widening, *short, far, waits, as_it_lies=True))
            else:
                waits = _APART_STALL if packs and not wide and self._is_apart(source) else 0.0
                beside = 0.0 if wide or self._holds_a_tile() else _ROW_BESIDE_WINDOWS
                between = self._rows_between(source) if self.across else 0
                found.append(
                    _Reading(load, second, widening, waits=waits, beside=beside, between=between)
                )
        return found

    def step_cycles(
        self, readings: Sequence[_Reading], counts: Sequence[int], vectors: int, points: int
    ) -> float:
        """Of a tile of so many points, which loads `counts` of each operand, with so many vectors
        along the lanes."""
        loads, second, stall, waits, beside, far = 0.0, 0.0, 0.0, 0.0, 0.0, False
        work = float(points)
        nbytes = vectors * self.lanes * self.nbytes
        for reading, count in zip(readings, counts, strict=True):
            loads += count * reading.load / self.fma_rate
            if not self.across or not self._is_held(max(count, reading.between)):
                second += count * reading.second
            work += count * reading.widening
            if reading.beside:
                beside += max(count - points / _VECTORS_A_ROW, 0.0) * reading.beside
            if nbytes < reading.short_nbytes:
                stall = max(stall, reading.short_stall)
            if reading.waits and self.is_short(points):
                waits += reading.waits
            if reading.far:
                # Twice as long as what a step waits for hides all, as seen on Zen 4 with AVX-512.
                wait = _TLB_MISS + nbytes / self.target.line_nbytes
                far |= work / self.fma_rate <= 2 * wait
        arithmetic = max(work, LATENCY * self.fma_rate) / self.fma_rate
        if not any(reading.as_it_lies for reading in readings):
            stall += max(min(second / arithmetic, 1.0) - _FREELY, 0.0) * _BUSY_STALL
        stall += _FAR_STALL if far else 0.0
        stall += waits
        return max(arithmetic, loads, second) + arithmetic * stall + 0.15 * loads + beside + 0.3

    def _rows_between(self, source: Source) -> int:
        """Rows along the reduction that are read before one is read again: all of the operand whose
        axis is the innermost loop; of the other one those of the tile, as 0 says."""
        if source.depends.isdisjoint(self.nest.axes[-1:]):
            return 0
        return math.prod(var.extent for var in self.nest.axes if var in source.depends)

    def _is_held(self, rows: int) -> bool:
        """Whether the first cache has room for so many rows along the reduction, and as many of
        the other operand."""
        steps = min(self.steps, MOST_STEPS * self.lanes)
        return 2 * rows * steps * self.nbytes <= self.target.l1_nbytes

    def hides_latency(self, points: int) -> bool:
        """Whether a step of a tile takes as long as a sum of the step before is waited for."""
        return points >= LATENCY * self.fma_rate

    def is_short(self, points: int) -> bool:
        """Whether a step of a tile takes less time than a vector from the second cache."""
        return points / self.fma_rate < _SECOND_CYCLES

    def is_widened(self, source: Source) -> bool:
        """Whether tiles that read an operand as it lies convert it."""
        return source.offset is not None and source.dtype is not self.nest.dtype

    def _is_apart(self, source: Source) -> bool:
        """Whether steps of what tiles read as scalars lie apart where it is widened into scratch,
        in the order of memory."""
        memory = source.memory
        beside = memory is not None and any(memory.coeff(var) == 1 for var in self.nest.reduce)
        return self.is_widened(source) and not source.operations and not beside

    def _widening(self, source: Source) -> float:
        """Operations that convert what one load reads: on the ports that multiply."""
        if source is self.flipped:
            return 1.0
        if not self.is_widened(source):
            return 0.0
        if self.lane not in source.depends:
            return _WIDEN_SCALAR
        return _WIDEN_VECTOR + source.operations

    def _load_cycles(self, source: Source) -> float:
        """One load, on a port that does one vector (or two scalars) a cycle."""
        if self.lane not in source.depends:
            return 0.5
        crossing = any(
            self.lane in window.at.loop_vars() and len(window.at.terms) > 1
            for window in source.windows.values()
        )
        return 1.7 if crossing else 1.0

    def _holds_a_tile(self) -> bool:
        """Whether L1 holds all that a tile reads, or what vectors read are no windows along lanes,
        which are other lines for each row of a result: for those blocks see to it."""
        vector, lane = self.vector, self.lane
        if vector is None or lane is None or self._load_cycles(vector) <= 1.0:
            return True
        tile = dict.fromkeys(self.nest.axes, 1) | {lane: STREAM_VECTORS * self.lanes}
        rows = self.target.vector_registers // (STREAM_VECTORS + 1)
        return (vector.box(tile) + rows * self.steps) * self.nbytes <= self.target.l1_nbytes

    def second_cycles(self, source: Source) -> float:
        """Until a vector of a block that L1 does not hold is there: tiles go through all columns
        before they come back to one. What windows share they find in L1."""
        rows = min(self.steps, MOST_STEPS)
        fits = source.windows or rows * self.row(source) * self.nbytes <= self.target.l1_nbytes
        if fits and not self.across:  # there it depends on the tile, see `_is_held`
            return 0.0
        return self.target.vector_nbytes / self.target.l2_nbytes_a_cycle

    def _evicts(self, source: Source) -> bool:
        """Whether rows of a block, as it lies, evict each other from the second cache, at the same
        place of so many pages, and are waited for. Which pages share a place is chance, so that it
        holds half."""
        if not self.has_few_lines:
            return False
        stride = self.step_nbytes(source)
        most = MOST_STREAMED_STEPS if self.streams(source) else MOST_STEPS * 3 // 2
        page = math.gcd(stride, self.target.page_nbytes)
        return 2 * min(self.steps, most) * page > self.target.l2_nbytes

    def _short_rows(self, source: Source, lane: Var) -> tuple[int, float]:
        """Bytes of each row, of many, that are too few to read, and part of a step that it costs
        to read fewer."""
        row = lane.extent * self.nbytes
        if self.steps * row <= self.target.l1_nbytes:
            return 0, 0.0
        near = self.is_prefetched(source) or self._pages(source) <= _TLB_ENTRIES
        return min(_SHORT_NBYTES, row), _NEAR_SHORT_STALL if near else _SHORT_STALL

    def _pages(self, source: Source) -> float:
        """On which the rows of a block lie."""
        rows = min(self.steps, MOST_STREAMED_STEPS if self.streams(source) else MOST_STEPS)
        page = self.target.page_nbytes
        return rows * min(self.step_nbytes(source), page) / page

    def near_steps(self, source: Source) -> int:
        """Steps whose rows lie on no more pages than the first TLB has entries."""
        page = self.target.page_nbytes
        return _TLB_ENTRIES * page // max(min(self.step_nbytes(source), page), 1)

    def row(self, vector: Source) -> int:
        """Elements that one step of the reduction reads, at one position of what both share."""
        return vector.box(dict.fromkeys((*self.nest.reduce, *self.shared), 1))

    def streams(self, vector: Source) -> bool:
        """The vector operand comes row by row while tiles run: from memory, or from the last cache,
        which few rows wait for where steps of the largest tiles are long enough to fetch others."""
        few = min(_FEW_ROWS, self.steps // _STEPS_A_ROW)
        fetches = self._has_time_to_fetch and self._passes(vector, few)
        return self.is_far(vector) or self.is_passed(vector) or fetches

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

    def next_tile(self, tiling: Tiling) -> tuple[int, Var] | None:
        """The number of the operand of which tiles of dot products, each a piece of memory that
        follows on the one before along an axis, fetch what the next tile reads; and that axis. See
        Note [A page ahead]."""
        if not self.across or any(tiling.pack):
            return None
        for number, source in enumerate(self.sources):
            rows = max(
                (split for split in tiling.splits if split.var in source.depends),
                key=lambda split: split.most,
                default=None,
            )
            if rows is None or not self.asks_a_page_ahead(source):
                continue
            follows = source.stride(rows.var) == self.steps
            nbytes = rows.most * self.steps * source.dtype.itemsize
            if follows and nbytes <= 2 * self.target.page_nbytes:
                return number, rows.var
        return None

    def moving_cycles(self) -> float:
        """Of one core that reads both operands once, from the last cache or from memory."""
        nbytes = sum(source.box({}) * source.dtype.itemsize for source in self.sources)
        return nbytes / self.target.rate_of_core(nbytes) * self.target.cycles_per_second

    def _passes(self, vector: Source, rows: int) -> bool:
        large = vector.box({}) * self.nbytes > self.target.l2_nbytes
        return large and vector.offset is not None and self.rows_beside(vector) <= rows

    def rows_beside(self, vector: Source) -> int:
        """How often each of its elements is used."""
        return math.prod(var.extent for var in self.nest.axes if var not in vector.depends)

    def step_nbytes(self, source: Source) -> int:
        """How far the shortest step of the reduction that moves an operand moves it."""
        strides = [abs(source.stride(var)) * self.nbytes for var in self.nest.reduce]
        return min((stride for stride in strides if stride), default=0)
