"""Chooses how a contraction nest runs: lanes, register tile, blocks, packing and parallel items.

Input: a `Nest`, the memory strides of its operands where they are read directly, a target. Output: a
`Tiling`. Invariant: depends on shapes, strides, dtypes and the target only, and any tiling gives the right
values; the rules are those of KERNELS.md, "Parameters from a target description".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.codegen.contract_nest import Nest, Operand
from stagejit.codegen.ir import element_type
from stagejit.codegen.target import Target
from stagejit.dispatch.affine import Affine, Var

_LATENCY = 4  # cycles until a fused multiply-add's result can be used
_MOST_K = 512  # reduction steps per block: rows of the broadcast operand stay in L1
_MOST_WINDOW_K = 2048  # the same where windows overlap, so that fewer bytes stand for more steps
_SMALL_CYCLES = 20_000  # one item below this: about 5 us
_ITEMS_PER_CORE = 8
_STREAM_STEPS = 8  # rows in flight where an operand streams from memory
_SHORT_NBYTES = 192  # reading less of each row than this defeats the prefetchers
_SHORT_STALL = 0.2  # part of a step that it costs
_STREAM_CHUNK = 4096  # bytes of each row that an item should read at least when streaming
_STREAM_VECTORS = 4
_STREAM_AHEAD = 3  # blocks of the reduction; with them the vector operand fills half of L2
_WAYS = 8  # lines at addresses that agree modulo a page which L1 can hold
_PAGE = 4096
_BODY_COST = 0.005  # a second tile size must save this part of the time, since it doubles the code


@dataclass(frozen=True)
class Source:
    """One operand as the tiling sees it.

    offset: the memory offset in terms of axes, None where the operand must be evaluated. Either way it
    may be packed. memory: the same in terms of the variables of its index, borders aside; None where it
    is not simply read. narrow: its elements are converted when loaded.
    """

    operand: Operand
    depends: frozenset[Var]
    offset: Affine | None
    memory: Affine | None
    narrow: bool = False

    def stride(self, var: Var) -> int:
        return self.offset.coeff(var) if self.offset is not None else 0

    def box(self, extents: Mapping[Var, int]) -> int:
        """Elements of the smallest box that holds what a block of these extents reads."""
        size = 1
        seen: set[Var] = set()
        for window in self.operand.windows.values():
            size *= 1 + sum(c * (extents.get(v, v.extent) - 1) for v, c in window.at.terms)
            seen |= window.at.loop_vars()
        for var in self.depends - seen:
            size *= extents.get(var, var.extent)
        return size


@dataclass(frozen=True)
class Split:
    """An axis cut into `groups` of nearly equal numbers of units: the first `big` have one more than
    `small`. A unit is one element, or one vector of the lane axis. An item takes `block` groups."""

    var: Var
    unit: int
    groups: int
    small: int
    big: int
    block: int

    @staticmethod
    def of(var: Var, unit: int, most: int) -> Split:
        units = -(-var.extent // unit)
        groups = -(-units // most)
        small, big = divmod(units, groups)
        return Split(var, unit, groups, small, big, groups)

    @property
    def items(self) -> int:
        return -(-self.groups // self.block)

    @property
    def most(self) -> int:
        """Units of the largest group."""
        return self.small + (self.big > 0)

    @property
    def span(self) -> int:
        """Elements of the largest block, rounded up to whole units."""
        whole = min(self.block, self.big) * (self.small + 1) + max(self.block - self.big, 0) * self.small
        return whole * self.unit

    def sizes(self) -> list[tuple[int, int]]:
        """(units, number of groups) for each distinct group size."""
        runs = [(self.small + 1, self.big), (self.small, self.groups - self.big)]
        return [(size, count) for size, count in runs if count]


@dataclass(frozen=True)
class Tiling:
    """How a nest runs.

    lane: the axis of the vector lanes, a reduction axis for dot products; None: scalars.
    splits: one per result axis, outermost loop first. pack: for (left, right), whether to copy into
    scratch first. blocked: the reduction axis that is cut into blocks of `k_block` steps.
    reduce: reduction axes, outermost first. ahead: blocks by which the vector operand is prefetched.
    """

    lane: Var | None
    lanes: int
    splits: tuple[Split, ...]
    pack: tuple[bool, bool]
    reduce: tuple[Var, ...]
    blocked: Var | None
    k_block: int
    cycles: float
    ahead: int = 0

    @property
    def items(self) -> int:
        return math.prod(split.items for split in self.splits)

    def split(self, var: Var) -> Split | None:
        return next((split for split in self.splits if split.var is var), None)

    @property
    def k_blocks(self) -> int:
        return 1 if self.blocked is None else -(-self.blocked.extent // self.k_block)


def choose(nest: Nest, left: Source, right: Source, result: Affine | None, target: Target) -> Tiling:
    """The cheapest tiling. result: memory offset of the result, None where it is not stored plainly."""
    lanes = target.lanes(element_type(nest.dtype))
    planner = _Planner(nest, (left, right), result, target, lanes)
    complete = [planner.complete(planner.candidate(lane, copied=copied))
                for lane in planner.lane_choices() for copied in (False, True)]
    return min(complete, key=lambda tiling: tiling.cycles)


class _Planner:
    def __init__(self, nest: Nest, sources: tuple[Source, Source], result: Affine | None,
                 target: Target, lanes: int) -> None:
        self.nest, self.sources, self.result = nest, sources, result
        self.target, self.lanes = target, lanes
        self.steps = math.prod(var.extent for var in nest.reduce)
        self.fma_rate = 1.0 if target.has_avx512 else 2.0
        self.nbytes = nest.dtype.itemsize

    # ---------------------------------------------------------------- lanes and register tile

    def lane_choices(self) -> list[Var | None]:
        choices: list[Var | None] = list(self.nest.axes)
        for var in self.nest.reduce:
            # Lanes along the reduction pay off only where both operands are read as they lie.
            if all(source.stride(var) == 1 for source in self.sources):
                choices.append(var)
        return choices or [max(self.nest.reduce, key=lambda var: var.extent, default=None)]

    def candidate(self, lane: Var | None, *, copied: bool) -> Tiling:
        """The best register tile for a lane axis. copied: pack the vector operand in any case."""
        pack = tuple(self._packs(source, lane) or (copied and lane in source.depends)
                     for source in self.sources)
        lanes = self.lanes if lane is not None else 1
        splits, cycles = self._best_tile(lane, lanes, pack)
        return Tiling(lane, lanes, splits, (pack[0], pack[1]), self._reduce_order(lane), None, 0, cycles)

    def complete(self, tiling: Tiling) -> Tiling:
        """With blocks and items; what these make of packing and storing joins the cost."""
        tiling = self.with_items(self.with_blocks(tiling))
        extents = self._extents(tiling)
        moved = sum(tiling.items * tiling.k_blocks * source.box(extents)
                    * self._pack_cycles(source, tiling.lane)
                    for source, packs in zip(self.sources, tiling.pack, strict=True) if packs)
        return replace(tiling, cycles=tiling.cycles + moved + self._store_cycles(tiling.lane))

    def _packs(self, source: Source, lane: Var | None) -> bool:
        """Whether an operand cannot be read as it lies, or had better not be."""
        if source.offset is None:
            return True
        if lane is not None and lane in source.depends:
            return source.stride(lane) != 1
        return self._collides(source)

    def _collides(self, source: Source) -> bool:
        """Steps of the reduction fall on so few cache sets that they evict each other."""
        strides = [abs(source.stride(var)) * self.nbytes for var in self.nest.reduce]
        stride = min((stride for stride in strides if stride), default=0)
        if stride < 64:
            return False
        held = _PAGE // math.gcd(stride, _PAGE) * _WAYS
        return held <= 2 * _WAYS < self.steps

    def _pack_cycles(self, source: Source, lane: Var | None) -> float:
        """Cycles to copy one element: few along lanes, more when transposing or de-interleaving."""
        along = [(var, window.at.coeff(lane)) for var, window in source.operand.windows.items()
                 if lane is not None] + ([(lane, 1)] if lane is not None else [])
        coeff = next(((var, c) for var, c in along if c), None)
        if lane not in source.depends or coeff is None:
            return 4.0 / self.lanes
        if coeff[1] > 1:
            return 3.0
        unit = source.memory is not None and source.memory.coeff(coeff[0]) == 1
        return 4.0 / self.lanes if unit else 0.8

    def _store_cycles(self, lane: Var | None) -> float:
        elements = math.prod(var.extent for var in self.nest.axes)
        if lane in self.nest.reduce:
            return elements * 8.0
        plain = self.result is not None and lane is not None and self.result.coeff(lane) == 1
        return elements * (1.0 / self.lanes if plain else 5.0)

    def _reduce_order(self, lane: Var | None) -> tuple[Var, ...]:
        """Reduction axes so that the vector operand is read in memory order, lanes innermost."""
        source = next((s for s in self.sources if lane in s.depends), self.sources[1])
        other = self.sources[0] if source is self.sources[1] else self.sources[1]

        def stride(var: Var) -> tuple[int, int, int]:
            known = source if source.offset is not None else other
            return (var is not lane, abs(known.stride(var)), -self.nest.reduce.index(var))

        return tuple(sorted(self.nest.reduce, key=stride, reverse=True))

    def _best_tile(self, lane: Var | None, lanes: int,
                   pack: Sequence[bool]) -> tuple[tuple[Split, ...], float]:
        order = self._axis_order(lane)
        best: tuple[float, dict[Var, int]] = (math.inf, {})
        for tile in self._tiles(lane, lanes):
            cycles = self._tile_cycles(tile, lane, lanes, pack)
            if cycles < best[0]:
                best = (cycles, tile)
        splits = tuple(Split.of(var, lanes if var is lane else 1, best[1].get(var, 1)) for var in order)
        return splits, best[0]

    def _axis_order(self, lane: Var | None) -> list[Var]:
        """Loops of an item, outermost first: shared axes, then rows, then those of the vector operand."""
        def rank(var: Var) -> tuple[int, int]:
            owners = [var in source.depends for source in self.sources]
            if all(owners):
                group = 0
            elif lane is not None and any(var in s.depends and lane in s.depends for s in self.sources):
                group = 2
            else:
                group = 1
            return (3 if var is lane else group, self.nest.axes.index(var))

        return sorted(self.nest.axes, key=rank)

    def _tiles(self, lane: Var | None, lanes: int) -> list[dict[Var, int]]:
        """Register tiles that fit: up to two axes of each operand beside the lanes."""
        per_side: list[list[dict[Var, int]]] = []
        registers = self.target.vector_registers
        for source, other in (self.sources, self.sources[::-1]):
            own = [v for v in self.nest.axes if v in source.depends - other.depends]
            own.sort(key=lambda v: (v is lane, self._tile_preference(source, v)), reverse=True)
            per_side.append(_side_tiles(own[:2], lane, lanes, registers))
        shared = lane if lane in self.sources[0].depends & self.sources[1].depends else None
        common: list[dict[Var, int]] = [{}]
        if shared is not None and shared in self.nest.axes:
            common = [{shared: n} for n in range(1, min(4, -(-shared.extent // lanes)) + 1)]
        tiles = [{**a, **b, **c} for a, b, c in itertools.product(*per_side, common)]
        return [tile for tile in tiles if self._fits(tile, shared is not None)
                and self._flows(tile, lane)] or [{}]

    def _flows(self, tile: Mapping[Var, int], lane: Var | None) -> bool:
        """An operand that streams past few rows is read in short pieces of several rows."""
        vector = self._vector_source(lane)
        return vector is None or lane is None or lane in self.nest.reduce or not self._passes(vector) or (
            tile.get(lane, 1) <= _STREAM_VECTORS)

    def _tile_preference(self, source: Source, var: Var) -> tuple[int, int, int]:
        """Longest axes first; among long ones those that lie close together."""
        stride = abs(source.stride(var))
        return (min(var.extent, 8), -stride, self.nest.axes.index(var))

    def _loads(self, tile: Mapping[Var, int]) -> tuple[int, int]:
        a, b = (math.prod(n for v, n in tile.items() if v in source.depends)
                for source in self.sources)
        return a, b

    def _fits(self, tile: Mapping[Var, int], shared: bool) -> bool:
        """Accumulators, the operand that is kept, and one more. Where both operands have lanes nothing
        is broadcast, and what neighbouring taps share is kept instead."""
        points = math.prod(tile.values())
        kept = points + 2 if shared else min(self._loads(tile))
        return points + kept + 1 <= self.target.vector_registers

    def _tile_cycles(self, tile: Mapping[Var, int], lane: Var | None, lanes: int,
                     pack: Sequence[bool]) -> float:
        """Modelled cycles of the whole nest with this tile."""
        sizes = [[(var, size, count) for size, count in
                  Split.of(var, lanes if var is lane else 1, most).sizes()]
                 for var, most in tile.items()]
        rest = math.prod(-(-var.extent // (lanes if var is lane else 1))
                         for var in self.nest.axes if var not in tile)
        steps = self.steps / (lanes if lane in self.nest.reduce else 1)
        total = 0.0
        for combination in itertools.product(*sizes):
            shape = {var: size for var, size, _ in combination}
            count = math.prod(n for _, _, n in combination)
            points = math.prod(shape.values())
            total += count * (steps * self._step_cycles(shape, points, lane, pack) + 2 * points + 12)
        bodies = math.prod(len(choices) for choices in sizes)
        return total * rest * (1 + _BODY_COST * (bodies - 1))

    def _step_cycles(self, shape: Mapping[Var, int], points: int, lane: Var | None,
                     pack: Sequence[bool]) -> float:
        loads, stalls = 0.0, False
        for source, packs, count in zip(self.sources, pack, self._loads(shape), strict=True):
            each = self._load_cycles(source, lane, packs)
            loads += count * each / self.fma_rate
            if not packs and lane is not None and lane in source.depends and lane in self.nest.axes:
                stalls |= self._reads_short_rows(shape.get(lane, 1), lane)
        arithmetic = max(points, _LATENCY * self.fma_rate) / self.fma_rate
        stall = _SHORT_STALL * arithmetic if stalls else 0.0
        return max(arithmetic, loads) + stall + 0.15 * loads + 0.3

    def _load_cycles(self, source: Source, lane: Var | None, packs: bool) -> float:
        """One load, on a port that does one vector (or two scalars) a cycle."""
        convert = 1.0 if source.narrow and not packs else 0.0
        if lane is None or lane not in source.depends:
            return 0.5 + convert
        crossing = any(lane in window.at.loop_vars() and len(window.at.terms) > 1
                       for window in source.operand.windows.values())
        return (1.7 if crossing else 1.0 if packs else 1.3) + convert

    def _reads_short_rows(self, vectors: int, lane: Var) -> bool:
        chunk = vectors * self.lanes * self.nbytes
        row = lane.extent * self.nbytes
        return chunk < min(_SHORT_NBYTES, row) and self.steps * row > self.target.l1_nbytes

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
        most = _MOST_K * lane_step
        if any(source.operand.windows for source in self.sources):
            most = _MOST_WINDOW_K
        vector = self._vector_source(tiling.lane)
        if vector is not None and self._streams(vector):
            columns = vector.box({var: 1 for var in self.nest.reduce})
            fitting = self.target.l2_nbytes // (8 * self.nbytes * max(columns, 1))
            most = min(most, max(_STREAM_STEPS, fitting // _STREAM_STEPS * _STREAM_STEPS))
        if self.steps <= most * 3 // 2 or not tiling.reduce:
            return tiling
        axis = max(tiling.reduce, key=lambda var: var.extent)
        rest = self.steps // axis.extent
        wanted = max(most // rest, 1)
        blocks = -(-axis.extent // wanted)
        size = -(-axis.extent // blocks)
        size = -(-size // lane_step) * lane_step
        if size >= axis.extent:
            return tiling
        ahead = _STREAM_AHEAD if vector is not None and len(tiling.reduce) == 1 and (
            self._streams(vector) and not self._passes(vector) and not tiling.pack[
                self.sources.index(vector)]) else 0
        return replace(tiling, blocked=axis, k_block=size, ahead=ahead)

    def _vector_source(self, lane: Var | None) -> Source | None:
        """The operand that is read as vectors, if it is only one."""
        found = [source for source in self.sources if lane in source.depends]
        return found[0] if len(found) == 1 else None

    def _streams(self, vector: Source) -> bool:
        """The vector operand comes from memory, row by row."""
        return self._passes(vector) or (
            vector.offset is not None and vector.box({}) * self.nbytes > self.target.l3_nbytes)

    def _passes(self, vector: Source) -> bool:
        """A large operand of which each element is used in one register tile only."""
        rows = math.prod(var.extent for var in self.nest.axes if var not in vector.depends)
        return (vector.offset is not None and rows <= self.target.vector_registers // 2
                and vector.box({}) * self.nbytes > self.target.l2_nbytes)

    def _extents(self, tiling: Tiling) -> dict[Var, int]:
        extents = {split.var: split.span for split in tiling.splits}
        if tiling.blocked is not None:
            extents[tiling.blocked] = tiling.k_block
        return extents

    def _excess(self, tiling: Tiling) -> list[frozenset[Var]]:
        """For each block that is too large, the axes that it depends on."""
        extents = self._extents(tiling)
        half = self.target.l2_nbytes // 2
        found = []
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            vector = tiling.lane in source.depends
            if (packs or (vector and self.steps > 1)) and source.box(extents) * self.nbytes > half:
                streamed = not packs and self._streams(source)
                if not streamed:
                    found.append(source.depends)
        panel = math.prod(split.span for split in tiling.splits) * self.nbytes
        if panel > half and not self.is_direct(tiling):
            found.append(frozenset(self.nest.axes))
        return found

    def is_direct(self, tiling: Tiling) -> bool:
        """Accumulators go straight to the result's memory."""
        if self.result is None:
            return False
        return tiling.lane in self.nest.reduce or tiling.lane is None or (
            self.result.coeff(tiling.lane) == 1)

    def _halved(self, tiling: Tiling, excess: Sequence[frozenset[Var]]) -> Tiling | None:
        guilty = frozenset().union(*excess)
        moves = [self._with_block(tiling, split, -(-split.block // 2)) for split in tiling.splits
                 if split.var in guilty and split.block > 1]
        axis = tiling.blocked or max(tiling.reduce, key=lambda v: v.extent, default=None)
        if axis is not None and axis in guilty and axis is not tiling.lane:
            size = tiling.k_block or axis.extent
            if size * (self.steps // axis.extent) >= _MOST_K // 2 and size > 1:
                moves.append(replace(tiling, blocked=axis, k_block=-(-size // 2)))
        return min(moves, key=self._traffic, default=None)

    def _with_block(self, tiling: Tiling, split: Split, block: int) -> Tiling:
        items = -(-split.groups // block)
        even = replace(split, block=-(-split.groups // items))
        return replace(tiling, splits=tuple(even if s is split else s for s in tiling.splits))

    def _traffic(self, tiling: Tiling) -> float:
        """Elements moved by all items, packed ones counted as often as they are copied."""
        extents = self._extents(tiling)
        total = 0.0
        for source, packs in zip(self.sources, tiling.pack, strict=True):
            total += tiling.items * tiling.k_blocks * source.box(extents) * (4 if packs else 1)
        if tiling.k_blocks > 1:
            total += 2 * tiling.k_blocks * math.prod(var.extent for var in self.nest.axes)
        return total

    # ---------------------------------------------------------------- items

    def with_items(self, tiling: Tiling) -> Tiling:
        """Split over cores: the axes whose splitting moves least."""
        wanted = min(_ITEMS_PER_CORE * self.target.cores, int(tiling.cycles / _SMALL_CYCLES))
        vector = self._vector_source(tiling.lane)
        if vector is not None and self._streams(vector) and not any(tiling.pack):
            row = vector.box({var: 1 for var in self.nest.reduce}) * self.nbytes
            wanted = min(wanted, max(self.target.cores, row // _STREAM_CHUNK))
        while tiling.items < wanted:
            moves = [self._with_block(tiling, split, -(-split.block // 2)) for split in tiling.splits
                     if split.block > 1]
            if not moves:
                break
            tiling = min(moves, key=self._traffic)
        return tiling


def _side_tiles(axes: Sequence[Var], lane: Var | None, lanes: int,
                registers: int) -> list[dict[Var, int]]:
    """Tile extents over one operand's own axes; the second axis joins once the first is covered."""
    if not axes:
        return [{}]
    first = axes[0]
    units = -(-first.extent // lanes) if first is lane else first.extent
    most = min(units, registers // 2)
    tiles = [{first: n} for n in range(1, most + 1)]
    if len(axes) > 1 and most == units:
        tiles += [{first: units, axes[1]: n}
                  for n in range(2, min(axes[1].extent, registers // (2 * units)) + 1)]
    return tiles
