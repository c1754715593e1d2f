"""The register tile: accumulators carried through the reduction loops of a contraction nest.

Input: a `Tiling`, a `View` of each operand and of the result panel, the tile's place. Output:
loop-nest IR that adds one block of the reduction to one tile. Invariant: distinct elements are
loaded once a step; lanes beyond the lane axis are never stored, nor read from memory that is not
ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, Type, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.index.affine import Var
from stagejit.types import DType

# What runs at offsets of the operands and fixed positions of some axes: sums in, sums out.
_Body = Callable[[Sequence[Register], Mapping[Var, int], Sequence[Register]], Sequence[Register]]

_UNROLLED = 4  # reduction axes up to this extent may be unrolled


@dataclass(frozen=True)
class Phased:
    """A scratch dimension whose positions are stored by remainder: position p lies at
    `p % modulus * plane + p // modulus * stride`. It makes strided windows contiguous along
    lanes."""

    coeffs: Mapping[Var, int]
    modulus: int
    plane: int
    stride: int


@dataclass(frozen=True)
class View:
    """How the nest reads or writes one array: an element offset per axis.

    base: offset where all axes stand at the start of their block. depends: axes that choose the
    element. padded: reading whole vectors past the end of the lane axis stays inside the array.
    """

    buffer: Buffer
    dtype: DType
    strides: Mapping[Var, int]
    base: Register
    depends: frozenset[Var]
    padded: bool = False
    phased: tuple[Phased, ...] = field(default=())

    def moved(self, axis: Var, position: Register) -> Register:
        """The change of offset when `axis` moves from its block's start to `position`."""
        offset = position * self.strides.get(axis, 0)
        for dim in self.phased:
            coeff = dim.coeffs.get(axis, 0)
            offset = offset + position * (coeff // dim.modulus * dim.stride)
        return offset

    def constant(self, steps: Mapping[Var, int]) -> int:
        """The change of offset for constant steps along several axes at once."""
        offset = sum(self.strides.get(axis, 0) * step for axis, step in steps.items())
        for dim in self.phased:
            at = sum(dim.coeffs.get(axis, 0) * step for axis, step in steps.items())
            offset += at % dim.modulus * dim.plane + at // dim.modulus * dim.stride
        return offset

    def residues(self, axis: Var) -> int:
        """Steps of `axis` after which the offset is linear again (1: it always is)."""
        return math.lcm(
            *(dim.modulus // math.gcd(dim.coeffs.get(axis, 0), dim.modulus) for dim in self.phased)
        )


@dataclass(frozen=True)
class _Loop:
    """One reduction loop after merging: `trips` iterations that move the operands by `steps`."""

    trips: Register
    steps: tuple[int, int]
    axis: Var
    known: int | None  # trips, where constant


@dataclass(frozen=True)
class MicroKernel:
    """Emits tiles of one nest. zero: what sums of floats start from."""

    b: Builder
    tiling: Tiling
    operands: tuple[View, View]
    panel: View
    dtype: DType
    zero: float

    @property
    def elem(self) -> Type:
        return element_type(self.dtype)

    @property
    def across(self) -> bool:
        """Whether lanes run along the reduction."""
        return self.tiling.lane in self.tiling.reduce

    def tile(
        self,
        sizes: Mapping[Var, int],
        at: Mapping[Var, Register],
        lengths: Mapping[Var, Register],
        first: Register | None,
        mask: Register | None,
    ) -> None:
        """One tile of `sizes` units per axis at block positions `at`. lengths: iterations of each
        reduction axis in this block. first: whether the panel
        holds nothing yet (None: always). mask: lanes of the last vector that exist."""
        points = self._points(sizes)
        starts = [self._start(view, at) for view in self.operands]
        target = self._start(self.panel, at)
        if first is not None:  # the sums so far are wanted at the end, when they would stall
            for point in points:
                self.b.prefetch(
                    self.panel.buffer,
                    target + self.panel.constant(self._elements(point)),
                    write=True,
                )
        sums = self._reduce(points, starts, lengths, mask)
        if self.across:
            sums = [self.b.reduce("fadd" if self.elem.is_float else "add", total) for total in sums]
        if first is None:
            self._store(points, target, sums, mask, add=False)
        else:
            self.b.if_(
                first,
                lambda: self._store(points, target, sums, mask, add=False),
                lambda: self._store(points, target, sums, mask, add=True),
            )

    def _store(
        self,
        points: Sequence[dict[Var, int]],
        target: Register,
        sums: Sequence[Register],
        mask: Register | None,
        *,
        add: bool,
    ) -> None:
        """Blocks of the reduction are summed on their own and then added, which also keeps errors
        small."""
        buffer = self.panel.buffer
        for point, total in zip(points, sums, strict=True):
            offset = target + self.panel.constant(self._elements(point))
            lanes_on = self._mask(point, points, mask)
            if add:
                total = total + self.b.load(buffer, offset, total.type.lanes, mask=lanes_on)
            self.b.store(total, buffer, offset, mask=lanes_on)

    # ---------------------------------------------------------------- points

    def _points(self, sizes: Mapping[Var, int]) -> list[dict[Var, int]]:
        """All positions of the tile in units. The axes of the operand with fewer loads vary
        fastest, so that its registers are kept and those of the other live shortly."""
        counts = [
            math.prod(n for v, n in sizes.items() if v in view.depends) for view in self.operands
        ]
        kept = self.operands[counts.index(min(counts))].depends
        axes = sorted(sizes, key=lambda v: v in kept)
        return [
            dict(zip(axes, combination, strict=True))
            for combination in itertools.product(*(range(sizes[axis]) for axis in axes))
        ]

    def _elements(self, point: Mapping[Var, int]) -> dict[Var, int]:
        lane, lanes = self.tiling.lane, self.tiling.lanes
        return {axis: step * (lanes if axis is lane else 1) for axis, step in point.items()}

    def _start(self, view: View, at: Mapping[Var, Register]) -> Register:
        offset = view.base
        for axis, position in at.items():
            offset = offset + view.moved(axis, position)
        return offset

    def _mask(
        self, point: Mapping[Var, int], points: Sequence[Mapping[Var, int]], mask: Register | None
    ) -> Register | None:
        """The mask applies to the last vector along the lane axis."""
        lane = self.tiling.lane
        if mask is None or lane is None or self.across:
            return None
        return mask if point.get(lane, 0) == points[-1].get(lane, 0) else None

    # ---------------------------------------------------------------- reduction

    def _reduce(
        self,
        points: Sequence[dict[Var, int]],
        starts: Sequence[Register],
        lengths: Mapping[Var, Register],
        mask: Register | None,
    ) -> Sequence[Register]:
        lanes = self.tiling.lanes if self.tiling.lane is not None else 0
        zero = self.b.const(self.zero if self.elem.is_float else 0, self.elem.with_lanes(lanes))
        axes = [axis for axis in self.tiling.reduce if lengths[axis].const != 1]
        # The outermost loop must remain, or loads that do not move pile up outside.
        unrolled = [axis for axis in axes[1:] if self._is_unrolled(axis, lengths[axis], points)]
        residues = {axis: self._residues(axis) for axis in axes if axis not in unrolled}
        loops = self._merged([axis for axis in residues if residues[axis] == 1], lengths)
        split = [axis for axis in residues if residues[axis] > 1]
        step = _Step(self, points, mask, unrolled)

        body: _Body = step.unrolled
        for axis in reversed(split):
            body = self._residue_loops(axis, residues[axis], lengths[axis], body)
        for loop in reversed(loops):
            body = self._loop(loop, body, step)
        return body(list(starts), {}, [zero] * len(points))

    def _is_unrolled(
        self, axis: Var, length: Register, points: Sequence[Mapping[Var, int]]
    ) -> bool:
        """Short windows: taps that are neighbours in memory cost no loop."""
        if axis is self.tiling.lane or axis.extent > _UNROLLED or length.const != axis.extent:
            return False
        if self._residues(axis) > 1:
            return True
        shared = all(self.tiling.lane in view.depends for view in self.operands)
        return axis is self.tiling.reduce[-1] and (shared or not self._repeats(axis, points))

    def _repeats(self, axis: Var, points: Sequence[Mapping[Var, int]]) -> bool:
        """Different taps load the same elements: unrolled, these would crowd the registers."""
        for view in self.operands:
            once = {view.constant(self._elements(point)) for point in points}
            taps = {
                view.constant({**self._elements(point), axis: tap})
                for point in points
                for tap in range(axis.extent)
            }
            if axis in view.depends and len(taps) < len(once) * axis.extent:
                return True
        return False

    def _residues(self, axis: Var) -> int:
        return math.lcm(*(view.residues(axis) for view in self.operands))

    def _merged(self, axes: Sequence[Var], lengths: Mapping[Var, Register]) -> list[_Loop]:
        """Reduction loops, those that run on into the next one joined with it."""
        loops: list[_Loop] = []
        for axis in axes:
            length = lengths[axis]
            known = length.const if isinstance(length.const, int) else None
            steps = (self._stride(0, axis), self._stride(1, axis))
            if (
                loops
                and known is not None
                and axis is not self.tiling.lane
                and loops[-1].steps == (steps[0] * known, steps[1] * known)
            ):
                outer = loops.pop()
                joint = None if outer.known is None else outer.known * known
                loops.append(_Loop(outer.trips * known, steps, axis, joint))
            else:
                loops.append(_Loop(length, steps, axis, known))
        return loops

    def _stride(self, operand: int, axis: Var) -> int:
        return self.operands[operand].constant({axis: 1})

    def _loop(self, loop: _Loop, body: _Body, step: _Step) -> _Body:
        def run(
            offsets: Sequence[Register], fixed: Mapping[Var, int], sums: Sequence[Register]
        ) -> Sequence[Register]:
            def iteration(k: Register, *inner: Register) -> Sequence[Register]:
                at = [o + k * s for o, s in zip(offsets, loop.steps, strict=True)]
                return body(at, fixed, inner)

            if loop.axis is not self.tiling.lane:
                return self.b.loop(0, loop.trips, 1, sums, iteration)
            lanes = self.tiling.lanes
            if loop.known is not None and loop.known % lanes == 0:
                return self.b.loop(0, loop.trips, lanes, sums, iteration)
            whole = loop.trips - self.b.urem(loop.trips, lanes)
            sums = self.b.loop(0, whole, lanes, sums, iteration)
            with step.tail(self.b.mask_below(whole, loop.trips, lanes)):
                return iteration(whole, *sums)

        return run

    def _residue_loops(self, axis: Var, count: int, length: Register, body: _Body) -> _Body:
        """`count` loops, one for each remainder of the axis, since offsets are linear only in
        each."""
        moves = [view.constant({axis: count}) for view in self.operands]

        def run(
            offsets: Sequence[Register], fixed: Mapping[Var, int], sums: Sequence[Register]
        ) -> Sequence[Register]:
            for residue in range(min(count, axis.extent)):
                trips = self.b.udiv(length + (count - 1 - residue), count)

                def iteration(
                    k: Register, *inner: Register, residue: int = residue
                ) -> Sequence[Register]:
                    at = [o + k * m for o, m in zip(offsets, moves, strict=True)]
                    return body(at, {**fixed, axis: residue}, inner)

                sums = self.b.loop(0, trips, 1, sums, iteration)
            return sums

        return run


class _Step:
    """One reduction step for all points: loads, then fused multiply-adds."""

    def __init__(
        self,
        kernel: MicroKernel,
        points: Sequence[dict[Var, int]],
        mask: Register | None,
        axes: Sequence[Var],
    ) -> None:
        self.kernel, self.points, self.lane_mask, self.axes = kernel, points, mask, axes
        self.tail_mask: Register | None = None
        self.b = kernel.b

    @contextmanager
    def tail(self, mask: Register) -> Iterator[None]:
        """Within it, loads along the reduction are masked."""
        self.tail_mask = mask
        yield
        self.tail_mask = None

    def unrolled(
        self, offsets: Sequence[Register], fixed: Mapping[Var, int], sums: Sequence[Register]
    ) -> list[Register]:
        """All combinations of the unrolled axes; equal loads are shared between them."""
        loaded: dict[tuple[int, int, bool], Register] = {}
        current = list(sums)
        for combination in itertools.product(*(range(axis.extent) for axis in self.axes)):
            steps = {**fixed, **dict(zip(self.axes, combination, strict=True))}
            for position, point in enumerate(self.points):
                a, b = (self._load(i, offsets[i], steps, point, loaded) for i in (0, 1))
                current[position] = self._multiply_add(a, b, current[position])
        return current

    def _multiply_add(self, a: Register, b: Register, total: Register) -> Register:
        lanes = total.type.lanes
        if lanes:
            a, b = self.b.splat(a, lanes), self.b.splat(b, lanes)
        if not total.type.is_float:
            return total + a * b
        added = self.b.fma(a, b, total)
        # Lanes past the end hold +0, which is not neutral.
        return added if self.tail_mask is None else self.b.select(self.tail_mask, added, total)

    def _load(
        self,
        operand: int,
        offset: Register,
        steps: Mapping[Var, int],
        point: Mapping[Var, int],
        loaded: dict[tuple[int, int, bool], Register],
    ) -> Register:
        kernel = self.kernel
        view, tiling = kernel.operands[operand], kernel.tiling
        constant = view.constant({**steps, **kernel._elements(point)})
        vector = tiling.lane is not None and tiling.lane in view.depends
        mask = self.tail_mask
        if vector and mask is None and not view.padded:
            mask = kernel._mask(point, self.points, self.lane_mask)
        key = (operand, constant, mask is not None)
        if key not in loaded:
            raw = self.b.load(
                view.buffer,
                offset + constant,
                tiling.lanes if vector else 0,
                mask=mask if vector else None,
            )
            loaded[key] = vmath.convert(self.b, raw, view.dtype, kernel.dtype)
        return loaded[key]
