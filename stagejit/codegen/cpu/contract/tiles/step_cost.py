"""What a step of the reduction costs in a register tile: cycles of ports, caches, pages.

Input: a `Nest`, its operands as `Source`s, a target, the axis of the lanes. Output: cycles of a
step of any tile. Invariant: depends on shapes, strides, dtypes and the target only; what was seen
on which CPU stands with each number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.tiles.reach import (
    MOST_STEPS,
    MOST_STREAMED_STEPS,
    STREAM_VECTORS,
    TLB_ENTRIES,
    TLB_MISS,
    Reach,
)
from stagejit.index.affine import Var

LATENCY = 4  # cycles until a fused multiply-add's result can be used
_STEPS_ALONE = 32  # of a row after which none of the next one has begun, see Note [Row by row]
_SHORT_NBYTES = 192  # reading less of each row than this defeats the prefetchers
_SHORT_STALL = 0.2  # part of a step that it costs
_NEAR_SHORT_STALL = 0.1  # where tiles fetch ahead, or rows lie on few pages
# Part of the time that the second cache gives packed vectors without delay, and part of a step
# that the rest would cost. With AVX2 on Zen 3, 512x768x3072 takes 14.4 ms in tiles of 4 x 3, which
# keep it busy for 0.75 of the time, and 13.3 in tiles of 6 x 2, for 0.5.
_FREELY, _BUSY_STALL = 0.6, 0.5
_FAR_STALL = 0.2  # part of a step that it costs: 0.15 seen on Zen 5, 0.3 with AVX2 on Zen 4
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


@record
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


class StepCosts(Reach):
    """Of one nest whose lanes run along `lane`."""

    def readings(self, pack: Sequence[bool]) -> list[_Reading]:
        """What the operands cost a step, whatever the tile."""
        lane, found = self.lane, list[_Reading]()
        for source, packs in zip(self.sources, pack, strict=True):
            wide, load = lane in source.depends, self._load_cycles(source)
            widening = 0.0 if packs else self._widening(source)
            second = self.second_cycles(source) if wide else 0.0
            if lane is not None and wide and not self.across and not packs:
                short, far = self._short_rows(source, lane), self.pages(source) > TLB_ENTRIES
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
                wait = TLB_MISS + nbytes / self.target.line_nbytes
                far |= work / self.fma_rate <= 2 * wait
        arithmetic = max(work / self.fma_rate, self._latency())
        if not any(reading.as_it_lies for reading in readings):
            stall += max(min(second / arithmetic, 1.0) - _FREELY, 0.0) * _BUSY_STALL
        stall += _FAR_STALL if far else 0.0
        stall += waits
        return max(arithmetic, loads, second) + arithmetic * stall + 0.15 * loads + beside + 0.3

    def _latency(self) -> float:
        """What a step takes at least: rows of few steps, which are read one by one, go side by side
        through a core."""
        steps = self.steps / self.lanes
        return LATENCY * min(steps / _STEPS_ALONE, 1.0) if self.turns else LATENCY

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
        near = self.is_prefetched(source) or self.pages(source) <= TLB_ENTRIES
        return min(_SHORT_NBYTES, row), _NEAR_SHORT_STALL if near else _SHORT_STALL
