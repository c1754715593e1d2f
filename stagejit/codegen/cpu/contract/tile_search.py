"""The lanes and the register tile of a contraction nest, by a model of cycles.

Input: a `Nest`, its operands as `Source`s, a target. Output: `Tiling`s without blocks, for an
axis that runs along the lanes. Invariant: depends on shapes, strides, dtypes and the target only;
the rules are those of KERNELS.md, "Parameters from a target description".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

MOST_STEPS = 512  # of the reduction in a block: rows of the broadcast operand stay in L1
MOST_STREAMED_STEPS = 64  # where the vector operand comes from memory
_LATENCY = 4  # cycles until a fused multiply-add's result can be used
_SHORT_NBYTES = 192  # reading less of each row than this defeats the prefetchers
_SHORT_STALL = 0.2  # part of a step that it costs
_NEAR_SHORT_STALL = 0.1  # where tiles fetch ahead, or rows lie on few pages
# Part of the time that the second cache gives packed vectors without delay, and part of a step
# that the rest would cost. With AVX2 on Zen 3, 512x768x3072 takes 14.4 ms in tiles of 4 x 3, which
# keep it busy for 0.75 of the time, and 13.3 in tiles of 6 x 2, for 0.5.
_FREELY, _BUSY_STALL = 0.6, 0.5
_STREAM_VECTORS = 4
# Rows that wait for the last cache: on Zen 4, short blocks that fetch the next one take 0.8 of the
# time of long ones for 64 rows, 0.9 for 128, 1.02 for 512, and more where there are few steps.
# One or two wait less than fetches take.
_FEW_ROWS, _STEPS_A_ROW, _FETCHED_ROWS = 128, 6, 3
# Rows that lie a page apart each need an entry of the first TLB (64 on Zen 3, 72 on Zen 4, 96 on
# Zen 5 and Golden Cove); where they have none, a step waits for the second one and for its lines.
_TLB_ENTRIES = 64
_TLB_MISS = 7  # cycles
_FAR_STALL = 0.2  # part of a step that it costs: 0.15 seen on Zen 5, 0.3 with AVX2 on Zen 4
_WAYS = 8  # lines at addresses that agree modulo a page which L1 can hold
_PAGE = 4096
_LINE = 64
_MANY_VECTORS = 16  # columns that make up for reading rows again
# A second tile size must save this part of the time, since it doubles the code; more where each
# tile asks what it may leave out, which smaller tiles leave out more of, too.
_BODY_COST, _ASKING_BODY_COST = 0.005, 0.04


@dataclass(frozen=True)
class _Reading:
    """What one operand costs a step: cycles of a load, on one port, and until a vector is there
    from the second cache; where its vectors are read as they lie: bytes of a row that are too few,
    what these cost, and whether rows lie on many pages."""

    load: float
    second: float
    short_nbytes: int = 0
    short_stall: float = 0.0
    far: bool = False
    as_it_lies: bool = False


@dataclass(frozen=True)
class TileSize:
    """rows: elements of a tile beside the lanes. vectors: along them."""

    rows: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.vectors} vectors"

    def is_of(self, tile: Mapping[Var, int], lane: Var | None) -> bool:
        """Whether a tile, so many units along each axis, is one of this size."""
        rows = math.prod(units for var, units in tile.items() if var is not lane)
        return (rows, tile.get(lane, 1) if lane else 1) == (self.rows, self.vectors)


@dataclass(frozen=True)
class Problem:
    """What is tiled. stored: memory offset of what the nest's first store writes. plain: the sums
    may accumulate there. asks: each tile asks what it may leave out. only: the rows and vectors of
    a tile, where a user says; any where not."""

    nest: Nest
    sources: tuple[Source, Source]
    target: Target
    stored: Affine
    plain: bool
    asks: bool
    only: TileSize | None = None


class TileSearch:
    """Register tiles of one nest whose lanes run along `lane`; see `tile_blocks.choose`."""

    def __init__(self, problem: Problem, lane: Var | None) -> None:
        nest, sources, target = problem.nest, problem.sources, problem.target
        self.body_cost = _ASKING_BODY_COST if problem.asks else _BODY_COST
        self.nest, self.sources, self.lane, self.target = nest, sources, lane, target
        self.only = problem.only
        self.lanes = target.lanes(element_type(nest.dtype)) if lane is not None else 1
        self.steps = math.prod(var.extent for var in nest.reduce)
        self.shared = [var for var in nest.axes if all(var in s.depends for s in sources)]
        self.across = lane in nest.reduce
        wide = [source for source in sources if lane in source.depends]
        self.vector = wide[0] if len(wide) == 1 else None  # what is read as vectors, if only one is
        self.fma_rate = float(target.fma_ports)
        self.nbytes = nest.dtype.itemsize

    def candidates(self) -> list[Tiling]:
        """The best register tile; another where the vector operand could be read as it lies but is
        packed. None where no tile holds what it has to, see `_whole`."""
        left, right = self.sources
        as_it_lies = self._packs(left), self._packs(right)
        packed = (
            as_it_lies[0] or self.lane in left.depends,
            as_it_lies[1] or self.lane in right.depends,
        )
        tiles, found = self._tiles(), []
        sizes = cache(lambda var, most: self._split(var, most).sizes())
        for pack in dict.fromkeys((as_it_lies, packed)) if tiles else ():
            cost = cache(partial(self._step_cycles, self._readings(pack)))
            costs = [self._tile_cycles(tile, sizes, cost) for tile in tiles]
            best, cycles = tiles[costs.index(min(costs))], min(costs)
            splits = tuple(self._split(var, best.get(var, 1)) for var in self._axis_order())
            order, cut = self._reduce_order(), self.nest.cut
            step = None if cut is None else cut.step
            found.append(Tiling(self.lane, self.lanes, splits, pack, order, cycles, cut=step))
        return found

    def _split(self, var: Var, most: int) -> Split:
        """An axis in groups of at most so many units; an item has one part of what is cut."""
        split, cut = Split.of(var, self.lanes if var is self.lane else 1, most), self.nest.cut
        return replace(split, parts=split.groups) if cut is not None and var is cut.part else split

    # ---------------------------------------------------------------- operands and loops

    def _packs(self, source: Source) -> bool:
        """Whether an operand cannot be read as it lies, or had better not be."""
        if source.offset is None:
            return True
        if self.lane is not None and self.lane in source.depends:
            return source.stride(self.lane) != 1
        return self._collides(source)

    def _collides(self, source: Source) -> bool:
        """Steps of the reduction fall on so few cache sets that they evict each other before they
        are read again, by the next columns or the next rows."""
        stride = self._step_nbytes(source)
        if stride < _LINE:
            return False
        held = _PAGE // math.gcd(stride, _PAGE) * _WAYS
        columns = math.prod(v.extent for v in self.nest.axes if v not in source.depends)
        often = columns > _MANY_VECTORS * self.lanes
        return held < self.steps and (held <= 2 * _WAYS or not often)

    def _step_nbytes(self, source: Source) -> int:
        """How far the shortest step of the reduction that moves an operand moves it."""
        strides = [abs(source.stride(var)) * self.nbytes for var in self.nest.reduce]
        return min((stride for stride in strides if stride), default=0)

    def _reduce_order(self) -> tuple[Var, ...]:
        """Reduction axes so that the vector operand is read in memory order, lanes innermost."""
        left, right = self.sources
        first, other = (left, right) if self.lane in left.depends else (right, left)
        known = first if first.offset is not None else other

        def stride(var: Var) -> tuple[int, int, int]:
            return (var is not self.lane, abs(known.stride(var)), -self.nest.reduce.index(var))

        return tuple(sorted(self.nest.reduce, key=stride, reverse=True))

    def _axis_order(self) -> list[Var]:
        """Loops of an item, outermost first: shared axes, then rows, then those of the vector
        operand, the lanes last."""

        def rank(var: Var) -> int:
            if var is self.lane or var in self.shared:
                return 3 if var is self.lane else 0
            return 1 + any(var in s.depends for s in self.sources if self.lane in s.depends)

        return sorted(self.nest.axes, key=rank)

    # ---------------------------------------------------------------- tiles

    def _tiles(self) -> list[dict[Var, int]]:
        """Register tiles that fit: up to two axes of each operand beside the lanes, and all of the
        axes that have to be in a tile as a whole."""
        per_side: list[list[dict[Var, int]]] = []
        whole, lane = self._whole(), self.lane
        for source, other in (self.sources, self.sources[::-1]):
            own = [v for v in self.nest.axes if v in source.depends - other.depends]
            always = {v: v.extent for v in own if v in whole}
            own = [v for v in own if v not in whole]
            own.sort(key=lambda v: (v is lane, self._tile_preference(source, v)), reverse=True)
            per_side.append([{**always, **side} for side in self._side_tiles(own[:2])])
        shared = lane is not None and all(lane in source.depends for source in self.sources)
        common: list[dict[Var, int]] = [{}]
        if lane is not None and lane in self.shared:
            common = [{lane: n} for n in range(1, min(4, self._units(lane)) + 1)]
        # An operand that streams past few rows is read in short pieces of several rows.
        is_passed = self.vector is not None and self.is_passed(self.vector)
        widest = self._stream_vectors(self.vector) if is_passed and self.vector else math.inf
        sides = (
            [(p, math.prod(p.values())) for p in parts if lane is None or p.get(lane, 1) <= widest]
            for parts in (*per_side, common)
        )
        fitting = []
        for (a, left), (b, right), (c, both) in itertools.product(*sides):
            wanted = self.only is None or self.only.is_of({**a, **b, **c}, lane)
            if wanted and self._fits(left, right, both, shared=shared):
                fitting.append((left * right * both, (a, b, c)))
        # Tiles with few accumulators never win against those with many.
        most = max((points for points, _ in fitting), default=0)
        found = [{**a, **b, **c} for points, (a, b, c) in fitting if 2 * points >= most]
        return found or ([] if whole or self.only else [{}])

    def _stream_vectors(self, vector: Source) -> int:
        """As many as are `_STREAM_VECTORS` of the sums' type, in bytes."""
        return _STREAM_VECTORS * max(self.nbytes // vector.dtype.itemsize, 1)

    def _side_tiles(self, axes: Sequence[Var]) -> list[dict[Var, int]]:
        """Tile extents over one operand's own axes; the second axis joins once the first is
        covered."""
        if not axes:
            return [{}]
        first, registers = axes[0], self.target.vector_registers
        units = self._units(first)
        tiles = [{first: n} for n in range(1, min(units, registers // 2) + 1)]
        for second in axes[1:]:
            most = min(second.extent, registers // (2 * units))
            tiles += [{first: units, second: n} for n in range(2, most + 1)]
        return tiles

    def _whole(self) -> frozenset[Var]:
        """The axes that are in a tile as a whole: they move a window by less than a lane does.
        Scratch holds the positions of such a window by their remainder (see `packing.Dim`), so that
        a tile's registers are known only where it starts at a remainder of 0."""
        found: set[Var] = set()
        for window in (w for s in self.sources for w in s.windows.values()):
            step = window.at.coeff(self.lane) if self.lane is not None else 0
            if step > 1:
                found |= {v for v, coeff in window.at.terms if coeff % step} & set(self.nest.axes)
        return frozenset(found)

    def _fits(self, left: int, right: int, both: int, *, shared: bool) -> bool:
        """Accumulators, the operand that is kept, and one more. Where both operands have lanes
        nothing is broadcast, and what neighbouring taps share is kept instead."""
        points = left * right * both
        kept = points + 2 if shared else min(left, right) * both
        return points + kept + 1 <= self.target.vector_registers

    def _tile_preference(self, source: Source, var: Var) -> tuple[int, int, int]:
        """Longest axes first; among long ones those that lie close together."""
        stride = abs(source.stride(var))
        return (min(var.extent, 8), -stride, self.nest.axes.index(var))

    # ---------------------------------------------------------------- cycles

    def _tile_cycles(
        self,
        tile: Mapping[Var, int],
        sizes_of: Callable[[Var, int], list[tuple[int, int]]],
        step: Callable[..., float],
    ) -> float:
        """Modelled cycles of the whole nest with this tile. sizes_of: `Split.sizes` of a variable
        in groups of at most so many units; step: see `_step_cycles`."""
        left, right = (source.depends for source in self.sources)
        sizes = [sizes_of(var, most) for var, most in tile.items()]
        rest = math.prod(self._units(var) for var in self.nest.axes if var not in tile)
        sides = [(var in left, var in right, var is self.lane) for var in tile]
        steps = self.steps / (self.lanes if self.across else 1)
        total, bodies = 0.0, 0
        for combination in itertools.product(*sizes):
            count = points = lefts = rights = vectors = 1
            for (size, times), (in_left, in_right, is_lane) in zip(combination, sides, strict=True):
                count, points = count * times, points * size
                lefts, rights = lefts * (size if in_left else 1), rights * (size if in_right else 1)
                vectors = size if is_lane else vectors
            total += count * (steps * step((lefts, rights), vectors, points) + 2 * points + 12)
            bodies += 1
        return total * rest * (1 + self.body_cost * (bodies - 1))

    def _units(self, var: Var) -> int:
        return -(-var.extent // (self.lanes if var is self.lane else 1))

    def _readings(self, pack: Sequence[bool]) -> list[_Reading]:
        """What the operands cost a step, whatever the tile."""
        lane, found = self.lane, list[_Reading]()
        for source, packs in zip(self.sources, pack, strict=True):
            wide, load = lane in source.depends, self._load_cycles(source, packs)
            second = self._second_level_cycles(source) if wide and not self.across else 0.0
            if lane is not None and wide and not self.across and not packs:
                short, far = self._short_rows(source, lane), self._pages(source) > _TLB_ENTRIES
                found.append(_Reading(load, second, *short, far, as_it_lies=True))
            else:
                found.append(_Reading(load, second))
        return found

    def _step_cycles(
        self, readings: Sequence[_Reading], counts: Sequence[int], vectors: int, points: int
    ) -> float:
        """Of a tile of so many points, which loads `counts` of each operand, with so many vectors
        along the lanes."""
        loads, second, stall, far = 0.0, 0.0, 0.0, False
        nbytes = vectors * self.lanes * self.nbytes
        for reading, count in zip(readings, counts, strict=True):
            loads += count * reading.load / self.fma_rate
            second += count * reading.second
            if nbytes < reading.short_nbytes:
                stall = max(stall, reading.short_stall)
            # Twice as long as what a step waits for hides all, as seen on Zen 4 with AVX-512.
            hidden = points / self.fma_rate > 2 * (_TLB_MISS + nbytes / _LINE)
            far |= reading.far and not hidden
        arithmetic = max(points, _LATENCY * self.fma_rate) / self.fma_rate
        if not any(reading.as_it_lies for reading in readings):
            stall += max(min(second / arithmetic, 1.0) - _FREELY, 0.0) * _BUSY_STALL
        stall += _FAR_STALL if far else 0.0
        return max(arithmetic, loads, second) + arithmetic * stall + 0.15 * loads + 0.3

    def _load_cycles(self, source: Source, packs: bool) -> float:
        """One load, on a port that does one vector (or two scalars) a cycle."""
        convert = 0.0 if packs or source.dtype is self.nest.dtype else 1.0
        if self.lane not in source.depends:
            return 0.5 + convert
        crossing = any(
            self.lane in window.at.loop_vars() and len(window.at.terms) > 1
            for window in source.windows.values()
        )
        return (1.7 if crossing else 1.0) + convert

    def _second_level_cycles(self, source: Source) -> float:
        """Until a vector of a block that L1 does not hold is there: tiles go through all columns
        before they come back to one. What windows share they find in L1."""
        rows = min(self.steps, MOST_STEPS)
        if source.windows or rows * self.row(source) * self.nbytes <= self.target.l1_nbytes:
            return 0.0
        return self.target.vector_nbytes / self.target.l2_nbytes_a_cycle

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
        return rows * min(self._step_nbytes(source), _PAGE) / _PAGE

    def near_steps(self, source: Source) -> int:
        """Steps whose rows lie on no more pages than the first TLB has entries."""
        return _TLB_ENTRIES * _PAGE // max(min(self._step_nbytes(source), _PAGE), 1)

    def row(self, vector: Source) -> int:
        """Elements that one step of the reduction reads, at one position of what both share."""
        return vector.box(dict.fromkeys((*self.nest.reduce, *self.shared), 1))

    def streams(self, vector: Source) -> bool:
        """The vector operand comes row by row while tiles run: from memory, or from the last cache,
        which few rows wait for where steps of the largest tiles are long enough to fetch others."""
        long = self.target.vector_registers * 0.75 / self.fma_rate
        few = min(_FEW_ROWS, self.steps // _STEPS_A_ROW)
        fetches = long > 2 * (_TLB_MISS + _STREAM_VECTORS) and self._passes(vector, few)
        return self.is_far(vector) or self.is_passed(vector) or fetches

    def is_prefetched(self, vector: Source) -> bool:
        """Where it is read as it lies, each block of it fetches the next one."""
        if len(self.nest.reduce) > 1 or not self.streams(vector):
            return False
        return self.is_far(vector) or self.rows_beside(vector) >= _FETCHED_ROWS

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

    def rows_beside(self, vector: Source) -> int:
        """How often each of its elements is used."""
        return math.prod(var.extent for var in self.nest.axes if var not in vector.depends)
