"""The lanes and the register tile of a contraction nest, by a model of cycles.

Input: a `Nest`, its operands as `Source`s, a target. Output: `Tiling`s without blocks, for an
axis that runs along the lanes. Invariant: depends on shapes, strides, dtypes and the target only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from stagejit.base.records import record, replace
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source, evaluated_by_tiles
from stagejit.codegen.cpu.contract.tiles.reach import MOST_STEPS, STREAM_VECTORS, STREAMS, WAYS
from stagejit.codegen.cpu.contract.tiles.step_cost import StepCosts
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.cpu.instructions import has_matrices
from stagejit.codegen.ir.byte_matrices import MOST
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.tree import pieces_of
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

_MANY_VECTORS = 16  # columns that make up for reading rows again
_SOME_VECTORS = 8  # columns that make up for packing rows
# To pack a piece of rows that lie side by side: 2 to 4 seen on Cascade Lake, where 8 x 3 vectors
# then take 0.93 of the time of 6 x 4.
_PIECE_CYCLES = 3.0
_KEPT = 3  # registers of a tile beside its sums: of one row, and of a vector that is made wider
# A second tile size must save this part of the time, since it doubles the code; more where each
# tile asks what it may leave out, which smaller tiles leave out more of, too.
_BODY_COST, _ASKING_BODY_COST = 0.005, 0.04
# Cycles of a step of matrices beside its products, and to begin and end a tile: on a Granite Rapids
# a step of 32 x 32 x 64 bytes takes 70 ns, and a tile 100 ns beside.
_MATRIX_STEP, _MATRIX_TILE = 8.0, 300.0
_TILE_CYCLES = 12  # to begin and end a tile, unless it is a row and the next one begins meanwhile
_LAST_WAIT = 0.5  # of an item: what cores wait for the last one


@record
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


@record
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


class TileSearch(StepCosts):
    """Register tiles of one nest whose lanes run along `lane`; see `blocks.choose`."""

    def __init__(self, problem: Problem, lane: Var | None) -> None:
        super().__init__(problem.nest, problem.sources, problem.target, lane)
        self.body_cost = _ASKING_BODY_COST if problem.asks else _BODY_COST
        self.only, self.asks = problem.only, problem.asks

    def candidates(self) -> list[Tiling]:
        """The best register tile; others where the vector operand, or what each tile would widen,
        could be read as it lies but is packed. None where no tile holds what it has to, see
        `_whole`."""
        as_it_lies = tuple(map(self._packs, self.sources))
        vectors = [self.lane in source.depends for source in self.sources]
        widened = [self.is_widened(source) for source in self.sources]
        both = [wide or narrow for wide, narrow in zip(vectors, widened, strict=True)]
        packings = [
            (as_it_lies[0] or more[0], as_it_lies[1] or more[1])
            for more in ((False, False), vectors, widened, both)
        ]
        found, tiles_of = self._in_matrices(), cache(self._tiles)
        sizes = cache(lambda var, most: self._split(var, most).sizes())
        for pack in dict.fromkeys(packings):
            held = tuple(map(self.rows_held, self.sources, pack))
            tiles = tiles_of(self._read_again(pack), held)
            if not tiles:
                continue
            cost = cache(partial(self.step_cycles, self.readings(pack)))
            costs = [self._tile_cycles(tile, sizes, cost) for tile in tiles]
            pieces = self._in_pieces(pack)
            whole = [c + self._pieces_cycles(t, pieces) for c, t in zip(costs, tiles, strict=True)]
            at = whole.index(min(whole))
            best, cycles = tiles[at], costs[at]
            splits = tuple(self._split(var, best.get(var, 1)) for var in self._axis_order())
            order, cut = self._reduce_order(), self.nest.cut
            step = None if cut is None else cut.step
            found.append(
                Tiling(
                    self.lane, self.lanes, splits, pack, order, cycles, cut=step,
                    goes_by_rows=self._goes_by_rows(best), line_nbytes=self.target.line_nbytes,
                )
            )  # fmt: skip
        return found

    def _in_matrices(self) -> list[Tiling]:
        """Tiles in registers of matrices, of which rows are words of what is summed over; one
        operand may lie so. None where there are no such registers."""
        nest, lane, vector, quads = self.nest, self.lane, self.vector, self.nest.quads
        if quads is None or vector is None or not self._fills_matrices():
            return []
        number = self.sources.index(vector)
        beside = self.sources[1 - number]
        rows = max(self.own_axes(beside), key=lambda var: var.extent, default=None)
        depth = next(n for n in range(MOST, 0, -1) if quads.var.extent % n == 0)
        splits = tuple(
            self._split(var, 2 if var is lane else 2 * MOST if var is rows else 1)
            for var in self._axis_order()
        )
        cycles, found = self._matrix_cycles(splits, rows, depth), list[Tiling]()
        for packs in (False, True) if beside.stride(quads.var) == 1 else (True,):
            pack = (packs, True) if number else (True, packs)
            found.append(
                Tiling(
                    lane, self.lanes, splits, pack, nest.reduce, cycles,
                    depth=depth, line_nbytes=self.target.line_nbytes,
                )
            )  # fmt: skip
        return found

    def _fills_matrices(self) -> bool:
        windows = any(source.windows for source in self.sources)
        alone = len(self.nest.reduce) == 1 and self.nest.cut is None and not self.across
        anyhow = self.only is None and not self.asks
        return has_matrices(self.target) and alone and anyhow and not windows

    def _matrix_cycles(self, splits: Sequence[Split], rows: Var | None, depth: int) -> float:
        """A row of a matrix takes a cycle in each product, and half a cycle as it is read."""
        tall = next((split.sizes() for split in splits if split.var is rows), [(1, 1)])
        wide = next(split.sizes() for split in splits if split.var is self.lane)
        total = 0.0
        for (row, many), (vectors, often) in itertools.product(tall, wide):
            step = max(row * vectors, (row + vectors * depth) / 2) + _MATRIX_STEP
            total += many * often * (self.steps / depth * step + _MATRIX_TILE)
        rest = (self._units(v) for v in self.nest.axes if v is not rows and v is not self.lane)
        return total * math.prod(rest)

    def _split(self, var: Var, most: int) -> Split:
        """An axis in groups of at most so many units; an item has one part of what is cut."""
        split, cut = Split.of(var, self.lanes if var is self.lane else 1, most), self.nest.cut
        return replace(split, parts=split.groups) if cut is not None and var is cut.part else split

    # ---------------------------------------------------------------- operands and loops

    def _packs(self, source: Source) -> bool:
        """Whether an operand cannot be read as it lies, or had better not be."""
        flips = source is self.flipped and not self.across
        if flips or source.offset is None or (source.operations and not self._evaluates(source)):
            return True
        if self.lane is not None and self.lane in source.depends:
            return source.stride(self.lane) != 1
        return self._collides(source)

    def _evaluates(self, source: Source) -> bool:
        """Whether tiles know at which element they stand, where that is made of what they read."""
        plain = len(self.nest.reduce) == 1 and self.nest.cut is None and not self.across
        return plain and self.lane in source.depends

    def _collides(self, source: Source) -> bool:
        """Steps of the reduction fall on so few cache sets that they evict each other before they
        are read again, by the next columns or the next rows."""
        stride = self.step_nbytes(source)
        if stride < self.target.line_nbytes:
            return False
        held = self.lines_held(stride)
        columns = math.prod(v.extent for v in self.nest.axes if v not in source.depends)
        often = columns > _MANY_VECTORS * self.lanes
        if held < self.steps and (held <= 2 * WAYS or not often):
            return True
        return self._crowds(columns)

    def _crowds(self, columns: int) -> bool:
        """Lines of a block of steps, of which rows use an element each, leave too little of the
        first cache, where a core has few lines on the way: on two cores of a Cascade Lake `x.T @ y`
        of 4096x768 takes 48 ms, 39 where `x` is packed; of 2000x1000 and 2000x500 22.5, 19.1."""
        lines = min(self.steps, MOST_STEPS) * self.target.line_nbytes
        few = self.has_few_lines
        return few and 2 * lines > self.target.l1_nbytes and columns >= _SOME_VECTORS * self.lanes

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

    def _tiles(self, again: frozenset[Var], held: tuple[int, int]) -> list[dict[Var, int]]:
        """Register tiles that fit: up to two axes of each operand, at most `held` rows of each, and
        all of the axes that have to be in a tile as a whole: those of `_whole`, and `again`. With
        these a tile takes long enough for one panel to be all that it reads: three panels of halves
        of bytes at once take 1.2 times as long on Cascade Lake."""
        per_side: list[list[dict[Var, int]]] = []
        whole, lane = again | self._whole(), self.lane
        if not whole.isdisjoint(self.shared):  # an axis of both operands is in no tile but by lanes
            return []
        for number, source in enumerate(self.sources):
            own = self.own_axes(source)
            always = {v: v.extent for v in own if v in whole}
            own = [v for v in own if v not in whole]
            own.sort(key=lambda v: (v is lane, self._tile_preference(source, v)), reverse=True)
            points = math.prod(always.values()) * self._units(own[0]) if own else 0
            alone = not again.isdisjoint(always) and self.hides_latency(points)
            sides = self._side_tiles(own[: 1 if alone else 2])
            sides = [side for side in sides if math.prod(side.values()) <= held[number]]
            sides += [{}] if number in self.turns else []
            per_side.append([{**always, **side} for side in sides])
        shared = lane is not None and all(lane in source.depends for source in self.sources)
        common: list[dict[Var, int]] = [{}]
        if lane is not None and lane in self.shared:
            common = [{lane: n} for n in range(1, min(4, self._units(lane)) + 1)]
        # An operand that streams past few rows is read in short pieces of several rows.
        is_passed = self.vector is not None and self.is_passed(self.vector)
        widest = self._stream_vectors(self.vector) if is_passed and self.vector else math.inf
        fits = (
            [(p, math.prod(p.values())) for p in parts if lane is None or p.get(lane, 1) <= widest]
            for parts in (*per_side, common)
        )
        fitting, registers = [], self.target.vector_registers
        for (a, left), (b, right), (c, both) in itertools.product(*fits):
            points = left * right * both
            if points >= registers:
                continue
            wanted = self.only is None or self.only.is_of({**a, **b, **c}, lane)
            if wanted and self._fits(left, right, both, shared=shared):
                fitting.append((points, (a, b, c)))
        # Tiles with few accumulators never win against those with many, but by reading row by row.
        most = max((points for points, _ in fitting), default=0)
        found = [
            {**a, **b, **c}
            for points, (a, b, c) in fitting
            if 2 * points >= most or self._goes_by_rows({**a, **b, **c})
        ]
        return found or ([] if whole or self.only else [{}])

    def _goes_by_rows(self, tile: Mapping[Var, int]) -> bool:
        """Whether a tile reads the rows of an operand one by one that others read in turn."""
        return bool(self.turns) and not self._in_turn(tile)

    def _in_turn(self, tile: Mapping[Var, int]) -> float:
        """Cycles until a tile's operands are there of which it reads rows in turn."""
        found = [
            cycles
            for number, cycles in self.turns.items()
            if any(tile.get(var, 1) > 1 for var in self.sources[number].depends)
        ]
        return max(found, default=0.0)

    def _stream_vectors(self, vector: Source) -> int:
        """As many as are `STREAM_VECTORS` of the sums' type, in bytes."""
        return STREAM_VECTORS * max(self.nbytes // vector.dtype.itemsize, 1)

    def _side_tiles(self, axes: Sequence[Var]) -> list[dict[Var, int]]:
        """Tile extents over one operand's own axes; the second axis joins once the first is
        covered."""
        if not axes:
            return [{}]
        first, registers = axes[0], self.target.vector_registers
        units, vector = self._units(first), self.vector
        tiles = [{first: n} for n in range(1, min(units, registers // 2) + 1)]
        passed = vector is not None and self.is_passed(vector) and not self.has_few_lines
        for second in axes[1:]:
            most = registers // (2 * units)
            if passed and vector and second in vector.depends:
                most = max(most, min(STREAMS, (registers - _KEPT) // units))
            tiles += [{first: units, second: n} for n in range(2, min(most, second.extent) + 1)]
        return tiles

    def _read_again(self, pack: Sequence[bool]) -> frozenset[Var]:
        """The axes along which elements that tiles evaluate are made of the same one: what is read
        is used for all of them, and which of them it is for is known."""
        evaluated = filter(None, evaluated_by_tiles(self.sources, pack))
        return frozenset(v for s in evaluated for v in s.depends if not s.stride(v))

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
        in groups of at most so many units; step: see `step_cycles`."""
        left, right = (source.depends for source in self.sources)
        sizes = [sizes_of(var, most) for var, most in tile.items()]
        rest = math.prod(self._units(var) for var in self.nest.axes if var not in tile)
        sides = [(var in left, var in right, var is self.lane) for var in tile]
        steps = self.steps / (self.lanes if self.across else 1)
        begins = 0 if self._goes_by_rows(tile) else _TILE_CYCLES
        total, bodies = 0.0, 0
        for combination in itertools.product(*sizes):
            count = points = lefts = rights = vectors = 1
            for (size, times), (in_left, in_right, is_lane) in zip(combination, sides, strict=True):
                count, points = count * times, points * size
                lefts, rights = lefts * (size if in_left else 1), rights * (size if in_right else 1)
                vectors = size if is_lane else vectors
            total += count * (steps * step((lefts, rights), vectors, points) + 2 * points + begins)
            bodies += 1
        return max(total * rest * (1 + self.body_cost * (bodies - 1)), self._in_turn(tile))

    def shared_cycles(self, tiling: Tiling) -> float:
        """Of all cores, with what items cost: tiles of each read anew what no second cache keeps
        and nothing packs, and cores wait for the last item; 0 where nothing is read anew. On two
        cores of a Granite Rapids 123x51234 by 51234x456 takes 21 ms in 2 items, 27 in 10."""
        seconds, cores = 0.0, self.target.cores
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            nbytes = source.box({}) * source.dtype.itemsize
            if not packs and nbytes > self.target.l2_nbytes:
                beside = (each.parts for each in tiling.splits if each.var not in source.depends)
                seconds += math.prod(beside) * nbytes / self.target.rate_of_core(nbytes)
        rounds = -(-tiling.items // cores) + _LAST_WAIT
        work = tiling.cycles + seconds * self.target.cycles_per_second
        return work * rounds * cores / tiling.items if seconds else 0.0

    def _in_pieces(self, pack: Sequence[bool]) -> list[tuple[Var, int]]:
        """What is packed in panels of rows, see Note [Panels of scratch]: the axis of the rows, and
        how many elements there are."""
        packed = [source for source, packs in zip(self.sources, pack, strict=True) if packs]
        rows = [source for source in packed if self.lane not in source.depends]
        return [(beside, s.box({})) for s in rows if (beside := s.beside) is not None]

    def _pieces_cycles(self, tile: Mapping[Var, int], pieces: Sequence[tuple[Var, int]]) -> float:
        """Cycles to pack panels of rows once."""
        found = 0.0
        for beside, elements in pieces:
            if beside in tile:
                found += elements * self.piece_cycles(tile[beside])
        return found

    def piece_cycles(self, rows: int) -> float:
        """Cycles for an element of what a step of so many rows reads, which is packed in vectors
        without masks."""
        return _PIECE_CYCLES * pieces_of(rows, self.lanes, 1) / rows

    def _units(self, var: Var) -> int:
        return -(-var.extent // (self.lanes if var is self.lane else 1))
