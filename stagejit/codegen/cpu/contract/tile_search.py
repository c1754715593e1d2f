"""The lanes and the register tile of a contraction nest, by a model of cycles.

Input: a `Nest`, its operands as `Source`s, a target. Output: a `Tiling` for each axis that could
run along the lanes, without blocks. Invariant: depends on shapes, strides, dtypes and the target
only; the rules are those of KERNELS.md, "Parameters from a target description".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from stagejit.codegen.cpu.contract.nest import Nest
from stagejit.codegen.cpu.contract.tiling import Source, Tiling
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

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
# Rows that lie a page apart each need an entry of the first TLB (64 on Zen 3, 72 on Zen 4, 96 on
# Zen 5 and Golden Cove); where they have none, a step waits for the second one and for its lines.
_TLB_ENTRIES = 64
_TLB_MISS = 7  # cycles
_FAR_STALL = 0.2  # part of a step that it costs: 0.15 seen on Zen 5, 0.3 with AVX2 on Zen 4
_WAYS = 8  # lines at addresses that agree modulo a page which L1 can hold
_PAGE = 4096
_LINE = 64
_MANY_VECTORS = 16  # columns that make up for reading rows again
_BODY_COST = 0.005  # a second tile size must save this part of the time, since it doubles the code


class TileSearch:
    """Register tiles for one nest. See `tile_blocks.choose` for the arguments."""

    def __init__(
        self,
        nest: Nest,
        sources: tuple[Source, Source],
        target: Target,
    ) -> None:
        self.nest, self.sources = nest, sources
        self.target, self.lanes = target, target.lanes(element_type(nest.dtype))
        self.steps = math.prod(var.extent for var in nest.reduce)
        self.shared = [var for var in nest.axes if all(var in s.depends for s in sources)]
        self.fma_rate = float(target.fma_ports)
        self.nbytes = nest.dtype.itemsize

    # ---------------------------------------------------------------- lanes and register tile

    def lane_choices(self) -> list[Var | None]:
        choices: list[Var | None] = list(self.nest.axes)
        for var in self.nest.reduce:
            # Lanes along the reduction pay off only where both operands are read as they lie.
            if all(source.stride(var) == 1 for source in self.sources):
                choices.append(var)
        return choices or [max(self.nest.reduce, key=lambda var: var.extent, default=None)]

    def candidates(self, lane: Var | None) -> list[Tiling]:
        """The best register tile for a lane axis; another where the vector operand could be read as
        it lies but is packed. None where no tile holds what it has to, see `_whole`."""
        as_it_lies = tuple(self._packs(source, lane) for source in self.sources)
        packed = tuple(
            packs or lane in source.depends
            for packs, source in zip(as_it_lies, self.sources, strict=True)
        )
        lanes = self.lanes if lane is not None else 1
        tiles = self._tiles(lane, lanes)
        found = []
        for pack in dict.fromkeys((as_it_lies, packed)) if tiles else ():
            splits, cycles = self._best_tile(lane, lanes, pack, tiles)
            order = self._reduce_order(lane)
            found.append(Tiling(lane, lanes, splits, (pack[0], pack[1]), order, None, 0, cycles))
        return found

    def _packs(self, source: Source, lane: Var | None) -> bool:
        """Whether an operand cannot be read as it lies, or had better not be."""
        if source.offset is None:
            return True
        if lane is not None and lane in source.depends:
            return source.stride(lane) != 1
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

    def _reduce_order(self, lane: Var | None) -> tuple[Var, ...]:
        """Reduction axes so that the vector operand is read in memory order, lanes innermost."""
        source = next((s for s in self.sources if lane in s.depends), self.sources[1])
        other = self.sources[0] if source is self.sources[1] else self.sources[1]

        def stride(var: Var) -> tuple[int, int, int]:
            known = source if source.offset is not None else other
            return (var is not lane, abs(known.stride(var)), -self.nest.reduce.index(var))

        return tuple(sorted(self.nest.reduce, key=stride, reverse=True))

    def _best_tile(
        self,
        lane: Var | None,
        lanes: int,
        pack: Sequence[bool],
        tiles: Sequence[dict[Var, int]],
    ) -> tuple[tuple[Split, ...], float]:
        order = self._axis_order(lane)
        costs = [self._tile_cycles(tile, lane, lanes, pack) for tile in tiles]
        best = tiles[costs.index(min(costs))]
        splits = tuple(
            Split.of(var, lanes if var is lane else 1, best.get(var, 1)) for var in order
        )
        return splits, min(costs)

    def _axis_order(self, lane: Var | None) -> list[Var]:
        """Loops of an item, outermost first: shared axes, then rows, then those of the vector
        operand."""

        def rank(var: Var) -> tuple[int, int]:
            owners = [var in source.depends for source in self.sources]
            if all(owners):
                group = 0
            elif lane is not None and any(
                var in s.depends and lane in s.depends for s in self.sources
            ):
                group = 2
            else:
                group = 1
            return (3 if var is lane else group, self.nest.axes.index(var))

        return sorted(self.nest.axes, key=rank)

    def _tiles(self, lane: Var | None, lanes: int) -> list[dict[Var, int]]:
        """Register tiles that fit: up to two axes of each operand beside the lanes, and all of the
        axes that have to be in a tile as a whole."""
        per_side: list[list[dict[Var, int]]] = []
        registers = self.target.vector_registers
        whole = self._whole(lane)
        for source, other in (self.sources, self.sources[::-1]):
            own = [v for v in self.nest.axes if v in source.depends - other.depends]
            always = {v: v.extent for v in own if v in whole}
            own = [v for v in own if v not in whole]
            own.sort(key=lambda v: (v is lane, self._tile_preference(source, v)), reverse=True)
            sides = _side_tiles(own[:2], lane, lanes, registers)
            per_side.append([{**always, **side} for side in sides])
        shared = lane if lane in self.sources[0].depends & self.sources[1].depends else None
        common: list[dict[Var, int]] = [{}]
        if shared is not None and shared in self.nest.axes:
            common = [{shared: n} for n in range(1, min(4, -(-shared.extent // lanes)) + 1)]
        fitting = []
        for a, b, c in itertools.product(*per_side, common):
            left, right, both = (math.prod(part.values()) for part in (a, b, c))
            tile = {**a, **b, **c}
            if self._fits(left, right, both, shared=shared is not None) and self._flows(tile, lane):
                fitting.append((left * right * both, tile))
        # Tiles with few accumulators never win against those with many.
        most = max((points for points, _ in fitting), default=0)
        found = [tile for points, tile in fitting if 2 * points >= most]
        return found or ([] if whole else [{}])

    def _whole(self, lane: Var | None) -> frozenset[Var]:
        """The axes that are in a tile as a whole: they move a window by less than a lane does.
        Scratch holds the positions of such a window by their remainder (see `microkernel.Phased`),
        so that a tile's registers are known only where it starts at a remainder of 0."""
        found: set[Var] = set()
        for window in (w for s in self.sources for w in s.operand.windows.values()):
            step = window.at.coeff(lane) if lane is not None else 0
            if step > 1:
                found |= {v for v, coeff in window.at.terms if coeff % step} & set(self.nest.axes)
        return frozenset(found)

    def _fits(self, left: int, right: int, both: int, *, shared: bool) -> bool:
        """Accumulators, the operand that is kept, and one more. Where both operands have lanes
        nothing is broadcast, and what neighbouring taps share is kept instead."""
        points = left * right * both
        kept = points + 2 if shared else min(left, right) * both
        return points + kept + 1 <= self.target.vector_registers

    def _flows(self, tile: Mapping[Var, int], lane: Var | None) -> bool:
        """An operand that streams past few rows is read in short pieces of several rows."""
        vector = self.vector_source(lane)
        return (
            vector is None
            or lane is None
            or lane in self.nest.reduce
            or not self.passes(vector)
            or (tile.get(lane, 1) <= _STREAM_VECTORS)
        )

    def _tile_preference(self, source: Source, var: Var) -> tuple[int, int, int]:
        """Longest axes first; among long ones those that lie close together."""
        stride = abs(source.stride(var))
        return (min(var.extent, 8), -stride, self.nest.axes.index(var))

    def _loads(self, tile: Mapping[Var, int]) -> tuple[int, int]:
        a, b = (
            math.prod(n for v, n in tile.items() if v in source.depends) for source in self.sources
        )
        return a, b

    def _tile_cycles(
        self, tile: Mapping[Var, int], lane: Var | None, lanes: int, pack: Sequence[bool]
    ) -> float:
        """Modelled cycles of the whole nest with this tile."""
        sizes = [
            [
                (var, size, count)
                for size, count in Split.of(var, lanes if var is lane else 1, most).sizes()
            ]
            for var, most in tile.items()
        ]
        rest = math.prod(
            -(-var.extent // (lanes if var is lane else 1))
            for var in self.nest.axes
            if var not in tile
        )
        steps = self.steps / (lanes if lane in self.nest.reduce else 1)
        total = 0.0
        for combination in itertools.product(*sizes):
            shape = {var: size for var, size, _ in combination}
            count = math.prod(n for _, _, n in combination)
            points = math.prod(shape.values())
            total += count * (
                steps * self._step_cycles(shape, points, lane, pack) + 2 * points + 12
            )
        bodies = math.prod(len(choices) for choices in sizes)
        return total * rest * (1 + _BODY_COST * (bodies - 1))

    def _step_cycles(
        self, shape: Mapping[Var, int], points: int, lane: Var | None, pack: Sequence[bool]
    ) -> float:
        loads, second, stall, far = 0.0, 0.0, 0.0, False
        for source, packs, count in zip(self.sources, pack, self._loads(shape), strict=True):
            each = self._load_cycles(source, lane, packs)
            loads += count * each / self.fma_rate
            if lane is not None and lane in source.depends and lane in self.nest.axes:
                second += count * self._second_level_cycles(source)
                if not packs:
                    stall = max(stall, self._short_rows_stall(source, shape.get(lane, 1), lane))
                    far |= self._reads_far_rows(source, shape.get(lane, 1), points)
        arithmetic = max(points, _LATENCY * self.fma_rate) / self.fma_rate
        if all(p for s, p in zip(self.sources, pack, strict=True) if lane in s.depends):
            stall += max(min(second / arithmetic, 1.0) - _FREELY, 0.0) * _BUSY_STALL
        stall += _FAR_STALL if far else 0.0
        return max(arithmetic, loads, second) + arithmetic * stall + 0.15 * loads + 0.3

    def _load_cycles(self, source: Source, lane: Var | None, packs: bool) -> float:
        """One load, on a port that does one vector (or two scalars) a cycle."""
        convert = 1.0 if source.narrow and not packs else 0.0
        if lane is None or lane not in source.depends:
            return 0.5 + convert
        crossing = any(
            lane in window.at.loop_vars() and len(window.at.terms) > 1
            for window in source.operand.windows.values()
        )
        return (1.7 if crossing else 1.0) + convert

    def _second_level_cycles(self, source: Source) -> float:
        """Until a vector of a block that L1 does not hold is there: tiles go through all columns
        before they come back to one. What windows share they find in L1."""
        rows = min(self.steps, MOST_STEPS)
        if source.operand.windows or rows * self.row(source) * self.nbytes <= self.target.l1_nbytes:
            return 0.0
        return self.target.vector_nbytes / self.target.l2_nbytes_a_cycle

    def _short_rows_stall(self, source: Source, vectors: int, lane: Var) -> float:
        """Part of a step that it costs to read little of each row, of many."""
        chunk = vectors * self.lanes * self.nbytes
        row = lane.extent * self.nbytes
        if chunk >= min(_SHORT_NBYTES, row) or self.steps * row <= self.target.l1_nbytes:
            return 0.0
        near = self.is_prefetched(source) or self._pages(source) <= _TLB_ENTRIES
        return _NEAR_SHORT_STALL if near else _SHORT_STALL

    def _reads_far_rows(self, source: Source, vectors: int, points: int) -> bool:
        """Whether steps miss the first TLB, and arithmetic is too short to hide it: twice as long
        as what a step waits for hides all, as seen on Zen 4 with AVX-512."""
        lines = vectors * self.lanes * self.nbytes / _LINE
        return self._pages(source) > _TLB_ENTRIES and points / self.fma_rate <= 2 * (
            _TLB_MISS + lines
        )

    def _pages(self, source: Source) -> float:
        """On which the rows of a block lie."""
        rows = min(self.steps, MOST_STREAMED_STEPS if self.streams(source) else MOST_STEPS)
        return rows * min(self._step_nbytes(source), _PAGE) / _PAGE

    def vector_source(self, lane: Var | None) -> Source | None:
        """The operand that is read as vectors, if it is only one."""
        found = [source for source in self.sources if lane in source.depends]
        return found[0] if len(found) == 1 else None

    def row(self, vector: Source) -> int:
        """Elements that one step of the reduction reads, at one position of what both share."""
        return vector.box(dict.fromkeys((*self.nest.reduce, *self.shared), 1))

    def streams(self, vector: Source) -> bool:
        """The vector operand comes from memory, row by row; a nest may read a part of it."""
        nbytes = max(vector.box({}) * self.nbytes, vector.operand.value.type.nbytes)
        return self.passes(vector) or (vector.offset is not None and nbytes > self.target.l3_nbytes)

    def is_prefetched(self, vector: Source) -> bool:
        """Where it is read as it lies, tiles fetch blocks of it that come later."""
        return len(self.nest.reduce) == 1 and self.streams(vector) and not self.passes(vector)

    def passes(self, vector: Source) -> bool:
        """A large operand of which each element is used in one register tile only."""
        rows = math.prod(var.extent for var in self.nest.axes if var not in vector.depends)
        return (
            vector.offset is not None
            and rows <= self.target.vector_registers // 2
            and vector.box({}) * self.nbytes > self.target.l2_nbytes
        )


def _side_tiles(
    axes: Sequence[Var], lane: Var | None, lanes: int, registers: int
) -> list[dict[Var, int]]:
    """Tile extents over one operand's own axes; the second axis joins once the first is covered."""
    if not axes:
        return [{}]
    first = axes[0]
    units = -(-first.extent // lanes) if first is lane else first.extent
    most = min(units, registers // 2)
    tiles = [{first: n} for n in range(1, most + 1)]
    if len(axes) > 1 and most == units:
        tiles += [
            {first: units, axes[1]: n}
            for n in range(2, min(axes[1].extent, registers // (2 * units)) + 1)
        ]
    return tiles
