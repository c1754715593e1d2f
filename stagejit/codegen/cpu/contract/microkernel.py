"""The register tile: accumulators carried through the reduction loops of a contraction nest.

Input: a `Tiling`, a `View` of each operand and of the result panel, the tile's size. Output: the
loops that add one block of the reduction to the tile where the loops around stand. Invariant:
distinct elements are loaded once a step; lanes beyond the lane axis are never stored, nor read from
memory that is not ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from operator import and_
from typing import NamedTuple

from stagejit.base.records import record
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.evaluated import evaluated
from stagejit.codegen.cpu.contract.fetches import Fetches
from stagejit.codegen.cpu.contract.joining import joined
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.cpu.contract.tiling import Steps, Tiling
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Type, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Cell, Do, Node, Within, serial, vectors
from stagejit.index.affine import Var
from stagejit.types import DType

# What stands around the loops of a tile's reduction, which it is given.
Around = Callable[["SumTile", Node], Node]

_UNROLLED = 4  # reduction axes up to this extent may be unrolled


@record(eq=False)
class MicroKernel:
    """The tiles of one nest. evaluated: the operands that are made, element by element, of what the
    views show. most_joined: sums in a vector, see Note [Joined sums]."""

    emitter: Emitter
    tiling: Tiling
    operands: tuple[View, View]
    panel: View
    nest: Nest
    most_joined: int
    evaluated: Sequence[Source | None] = (None, None)

    @property
    def b(self) -> Builder:
        return self.emitter.b

    @property
    def dtype(self) -> DType:
        return self.nest.dtype

    @property
    def elem(self) -> Type:
        return element_type(self.dtype)

    @property
    def zero(self) -> float:
        return self.nest.zero if self.elem.is_float else 0

    def start(self, view: View) -> Register:
        """The offset of the first element of the tile where the loops stand."""
        offset, (panels, size) = view.base(), view.panel
        for split in self.tiling.splits:
            if split.var is panels:
                offset = offset + self.emitter.groups[split.var] * size
            else:
                offset = offset + view.moved(split.var, self.emitter.offset(split.var))
        return offset

    def tile(self, sizes: Mapping[Var, int]) -> SumTile:
        return SumTile(self, sizes)

    # ---------------------------------------------------------------- points

    def points(self, sizes: Mapping[Var, int]) -> list[dict[Var, int]]:
        """All positions of the tile, in elements, a vector at a time. The axes of the operand with
        fewer loads vary fastest, so that its registers are kept and those of the other live
        shortly."""
        counts = [
            math.prod(n for v, n in sizes.items() if v in view.depends) for view in self.operands
        ]
        kept = self.operands[counts.index(min(counts))].depends
        axes = sorted(sizes, key=lambda v: v in kept)
        units = [self.tiling.lanes if axis is self.tiling.lane else 1 for axis in axes]
        places = [range(0, sizes[v] * unit, unit) for v, unit in zip(axes, units, strict=True)]
        return [dict(zip(axes, place, strict=True)) for place in itertools.product(*places)]

    def first(self) -> Register | None:
        """Whether the panel holds nothing yet; None where it never does."""
        axis, b = self.tiling.blocked, self.b
        if axis is None:
            return None
        starts = [self.emitter.span(var).start for var in (*self.tiling.serial, axis)]
        return reduce(and_, [b.compare("eq", start, 0) for start in starts])

    # ---------------------------------------------------------------- reduction

    def loops(self, points: Sequence[dict[Var, int]]) -> tuple[list[Var], list[Steps], list[Var]]:
        """The axes of the reduction: those that are unrolled, the loops over others outside of
        that, and axes between them that have a loop for each remainder."""
        count = self.tiling.count
        axes = [axis for axis in self.tiling.reduce if count(axis) != 1]
        # The outermost loop must remain, or loads that do not move pile up outside.
        unrolled = [axis for axis in axes[1:] if self._is_unrolled(axis, points)]
        rest = [axis for axis in axes if axis not in unrolled]
        plain = [axis for axis in rest if self.residues(axis) == 1]
        return unrolled, self._merged(plain), [axis for axis in rest if axis not in plain]

    def _is_unrolled(self, axis: Var, points: Sequence[Mapping[Var, int]]) -> bool:
        """Short windows: taps that are neighbours in memory cost no loop."""
        if axis is self.tiling.lane or axis.extent > _UNROLLED:
            return False
        if self.tiling.count(axis) != axis.extent:
            return False
        if self.residues(axis) > 1:
            return True
        shared = all(self.tiling.lane in view.depends for view in self.operands)
        return axis is self.tiling.reduce[-1] and (shared or not self._repeats(axis, points))

    def _repeats(self, axis: Var, points: Sequence[Mapping[Var, int]]) -> bool:
        """Different taps load the same elements: unrolled, these would crowd the registers."""
        for view in self.operands:
            once = {view.constant(point) for point in points}
            taps = {
                view.constant({**point, axis: tap})
                for point in points
                for tap in range(axis.extent)
            }
            if axis in view.depends and len(taps) < len(once) * axis.extent:
                return True
        return False

    def residues(self, axis: Var) -> int:
        return math.lcm(*(view.residues(axis) for view in self.operands))

    def moves(self, axis: Var, steps: int = 1) -> tuple[int, int]:
        """How far so many steps of an axis move the operands."""
        left, right = self.operands
        return left.constant({axis: steps}), right.constant({axis: steps})

    def steps(self, axis: Var, first: int = 0, apart: int = 1) -> Steps:
        """A loop over one axis, or over each `apart`-th of its steps, from `first` on."""
        known, vector = self.tiling.count(axis), axis is self.tiling.lane
        var = Var(-(-((known or axis.extent) - first) // apart), axis.name)
        return Steps(var, self.moves(axis, apart), None if known else axis, 1, first, apart, vector)

    def _merged(self, axes: Sequence[Var]) -> list[Steps]:
        """Loops over axes, those that run on into the next one joined with it."""
        loops: list[Steps] = []
        for axis in axes:
            known, moves = self.tiling.count(axis), self.moves(axis)
            if (
                loops
                and known is not None
                and axis is not self.tiling.lane
                and loops[-1].moves == (moves[0] * known, moves[1] * known)
            ):
                outer = loops.pop()
                joint = Var(outer.var.extent * known, axis.name)
                loops.append(Steps(joint, moves, outer.axis, outer.times * known))
            else:
                loops.append(self.steps(axis))
        return loops


class Stored(NamedTuple):
    """Sums of a tile. place: of the first, from where the tile starts. mask: lanes that exist."""

    place: int
    sums: Register
    mask: Register | None = None


class SumTile:
    """The loops of one tile of `sizes` units per axis, where the loops over the axes stand, and
    what they do to its sums. A mask there is of the last vector."""

    def __init__(self, kernel: MicroKernel, sizes: Mapping[Var, int]) -> None:
        self.kernel, self.sizes, self.points = kernel, sizes, kernel.points(sizes)
        self.emitter, self.b, self.tiling = kernel.emitter, kernel.b, kernel.tiling
        self.panel, self.sums = kernel.panel, Cell("sums")
        self.unrolled, self.plain, self.split = kernel.loops(self.points)
        self.loops = list(self.plain)  # all of them
        self.starts: list[Register] = []

    def node(self, around: Sequence[Around]) -> Node:
        """around: what stands around the loops of the reduction, inside out."""
        body = self._residue_loops(self.split, self.plain, {})
        for loop in reversed(self.plain):
            if loop.vector:
                body = vectors(loop.var, self.tiling.lanes, body)
            else:
                body = serial([loop.var], body)
        for outer in around:
            body = outer(self, body)
        what = f"tile of {' x '.join(map(str, self.sizes.values())) or 1}"
        clear, store = Do("clear", self._clear, (self.sums,)), Do("add to the sums", self._store)
        return Within(what, self._inside, (clear, body, store))

    def _residue_loops(
        self, axes: Sequence[Var], loops: Sequence[Steps], fixed: Mapping[Var, int]
    ) -> Node:
        """Loops over axes, one for each remainder, since offsets are linear only in each."""
        if not axes:
            return Do("multiply and add", lambda: self._step(loops, fixed), (self.sums,))
        nodes, axis, count = list[Node](), axes[0], self.kernel.residues(axes[0])
        for first in range(min(count, axis.extent)):
            steps = self.kernel.steps(axis, first, count)
            if steps.var.extent > 0:
                self.loops.append(steps)
                inner = self._residue_loops(axes[1:], (*loops, steps), {**fixed, axis: first})
                nodes.append(serial([steps.var], inner))
        return tuple(nodes)

    # ---------------------------------------------------------------- statements

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Where the tile starts; `first` is whether the panel holds nothing yet."""
        kernel, emitter = self.kernel, self.emitter
        self.starts = [kernel.start(view) for view in kernel.operands]
        self.target, self.first = kernel.start(self.panel), kernel.first()
        self.mask = emitter.elements.position.mask
        if self.first is not None:  # the sums so far are wanted at the end, when they would stall
            for point in self.points:
                offset = self.target + self.panel.constant(point)
                self.b.prefetch(self.panel.buffer, offset, write=True)
        handed = {var: span for loop in self.loops for var, span in loop.handed(emitter).items()}
        with emitter.covering(handed):
            yield

    def _clear(self) -> None:
        lanes = self.tiling.lanes if self.tiling.lane is not None else 0
        zero = self.b.const(self.kernel.zero, self.kernel.elem.with_lanes(lanes))
        self.emitter.cells[self.sums] = (zero,) * len(self.points)

    def _store(self) -> None:
        sums = list(self._placed(self._totals()))
        write, add_to = partial(self._write, sums, add=False), partial(self._write, sums, add=True)
        if self.first is None:
            write()
        else:
            self.b.if_(self.first, write, add_to)

    def _totals(self) -> tuple[Register, ...]:
        """Of the block, in the type of the panel."""
        kernel, cell = self.kernel, self.emitter.cells[self.sums]
        return tuple(vmath.convert(self.b, s, kernel.dtype, self.panel.dtype) for s in cell)

    def _placed(self, totals: Sequence[Register]) -> Iterator[Stored]:
        """What is stored, each by one store."""
        places, across = map(self.panel.constant, self.points), self.tiling.across
        if self.tiling.lanes > 1 and not across:
            yield from map(Stored, places, totals, map(self.exist, self.points))
        else:
            sums, most = list(zip(places, totals, strict=True)), self.kernel.most_joined
            yield from (Stored(*each) for each in joined(self.b, sums, most, across=across))

    def _write(self, stored: Sequence[Stored], *, add: bool) -> None:
        """Blocks of the reduction are summed on their own and then added, which also keeps errors
        small."""
        buffer = self.panel.buffer
        for place, sums, mask in stored:
            offset = self.target + place
            total = sums + self.b.load(buffer, offset, sums.type.lanes, mask=mask) if add else sums
            self.b.store(total, buffer, offset, mask=mask)

    def exist(self, point: Mapping[Var, int]) -> Register | None:
        """Which lanes there are, where that is not all: a mask is of the last vector."""
        lane = self.tiling.lane
        if self.mask is None or lane is None or self.tiling.across:
            return None
        return self.mask if point.get(lane, 0) == self.points[-1].get(lane, 0) else None

    # ---------------------------------------------------------------- one step

    def _step(self, loops: Sequence[Steps], fixed: Mapping[Var, int]) -> None:
        """Loads, then fused multiply-adds, for all combinations of the unrolled axes; equal loads
        are shared between them."""
        kernel, position = self.kernel, self.emitter.elements.position
        offsets, places = list(self.starts), [position.env[loop.var] for loop in loops]
        for loop in loops:
            k = position.env[loop.var]
            offsets = [o + k * move for o, move in zip(offsets, loop.moves, strict=True)]
        tail = position.mask if position.vector is not None else None  # along the reduction

        @cache
        def load(operand: int, constant: int, mask: Register | None) -> Register:
            view, at = kernel.operands[operand], offsets[operand] + constant
            raw = self.b.load(view.buffer, at, self._lanes(view), mask=mask)
            fetches.beside(operand, at)
            return self._operand(view, raw)

        @cache
        def evaluate(
            number: int, at: frozenset[tuple[Var, int]], mask: Register | None
        ) -> Register:
            source = kernel.evaluated[number]
            assert source is not None
            own = {var: step for var, step in at if var in source.depends}
            return evaluated(self.emitter, self.tiling, kernel.dtype, source, own, places, mask)

        fetches = Fetches(
            self.emitter, self.tiling, kernel.operands, kernel.dtype, self.sizes, self.points,
            self.starts, loops, offsets,
        )  # fmt: skip
        fetches.of_step()
        current = list(self.emitter.cells[self.sums])
        for combination in itertools.product(*(range(axis.extent) for axis in self.unrolled)):
            steps = {**fixed, **dict(zip(self.unrolled, combination, strict=True))}
            for number, point in enumerate(self.points):
                at = {**steps, **point}
                a, b = (
                    load(i, view.constant(at), self._read(view, point, tail))
                    if kernel.evaluated[i] is None
                    else evaluate(i, frozenset(at.items()), self._read(view, point, tail))
                    for i, view in enumerate(kernel.operands)
                )
                current[number] = self._multiply_add(a, b, current[number], tail)
        self.emitter.cells[self.sums] = tuple(current)

    def _lanes(self, view: View) -> int:
        """Of what is loaded of an operand; 0: scalars."""
        return self.tiling.lanes if self.tiling.lane in view.depends else 0

    def _operand(self, view: View, raw: Register) -> Register:
        """What is multiplied, of what an operand holds."""
        return vmath.convert(self.b, raw, view.dtype, self.kernel.dtype)

    def _read(self, view: View, point: Mapping[Var, int], tail: Register | None) -> Register | None:
        """Which lanes of an operand are loaded, where that is not all."""
        if not self._lanes(view):
            return None
        return self.exist(point) if tail is None and not view.padded else tail

    def _multiply_add(
        self, a: Register, b: Register, total: Register, tail: Register | None
    ) -> Register:
        lanes = total.type.lanes
        if lanes:
            a, b = self.b.splat(a, lanes), self.b.splat(b, lanes)
        if not total.type.is_float:
            return total + a * b
        added = self.b.fma(a, b, total)
        # Lanes past the end hold +0, which is not neutral.
        return added if tail is None else self.b.select(tail, added, total)
