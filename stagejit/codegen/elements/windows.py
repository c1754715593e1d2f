"""Elements of a `window`: the taps of a window, combined where they are wanted.

Input: the op and the index at which its result is wanted. Output: the element. Invariant: what is
no element of the operand is never read: a uniform index is clamped, a lane is masked, and what
comes of it is left out. `places/windows.py` says of all this what a dry run has to know.

Note [Inside and border]: nearly all windows lie within the operand. So where a window may leave it,
one uniform branch decides about all lanes together: inside, there are no masks and no clamps.

Note [Lines of taps]: where lanes are windows along one axis, what they see of a line overlaps. So
vectors go along the lines themselves: they are combined across the other axes first, whatever lies
outside being neutral, and taps along the axis are picked from what is left of all lines, in
registers. It takes a load for each vector of a line, and not for each tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.elements.positions import Positions, clamped, fits_i32, is_inside
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I32, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.strides import picked
from stagejit.codegen.places.windows import MOST_STRAIGHT, open_axes, run_behind
from stagejit.codegen.reducers import Accumulator, Reducer, chosen
from stagejit.graph.dims import WindowDims
from stagejit.graph.ir import Op
from stagejit.graph.ops.windows import chooses
from stagejit.index.affine import Affine, Index, Var, linearize
from stagejit.types import i32

MOST_STRAIGHT_AT_BORDER = 16  # as `MOST_STRAIGHT`, where each tap is compared with the bounds
MOST_VECTORS = 8  # of a line of taps, in registers


class Window:
    """One window of one op, for all lanes."""

    def __init__(self, elements: Positions, op: Op, index: Index) -> None:
        self.elements, self.b, self.op = elements, elements.b, op
        self.dims = WindowDims.of(op.attrs)
        self.operand = op.operands[0]
        self.index = index
        self.first = [
            part * stride - low
            for part, stride, (low, _) in zip(
                index, self.dims.strides, self.dims.padding, strict=True
            )
        ]
        self.open = open_axes(op)
        self.lanes = elements.position.lanes if any(map(elements.varies, index)) else 0

    def value(self) -> Register:
        self.line = self._line()
        if not self.open:
            return self._made(border=False)
        inside = self._all_inside()
        if inside is None:
            return self._made(border=True)

        def within() -> tuple[Register]:
            with self.elements.at(within=True):
                return (self._made(border=False),)

        (made,) = self.b.if_(inside, within, lambda: (self._made(border=True),))
        return made

    def _all_inside(self) -> Register | None:
        """Whether every tap of every lane is an element; None where one would have to ask all."""
        holds = self.b.const(1, I32.with_elem("i1"))
        for axis in self.open:
            part, unit = self._place(self.first, axis)
            coeff, uniform, varying = self.elements.split(part)
            if varying:
                return None
            reach = (self.dims.sizes[axis] - 1) * self.dims.dilation[axis]
            last = (self.operand.shape[axis] - reach) * unit - 1
            low = self.elements.scalar_index(uniform)
            high = low + self._last_lane() * coeff if coeff else low
            if coeff < 0:
                low, high = high, low
            holds = holds & self.b.compare("ge", low, 0) & self.b.compare("le", high, last)
        return holds

    def _place(self, at: Sequence[Affine], axis: int) -> tuple[Affine, int]:
        """What tells whether `at` is inside along an axis, and in how many parts the axis is
        counted: its own part of the index, or the place among all elements of axis and run where
        their loops are one."""
        shape = run_behind(self.op, axis)
        if shape:
            low, high = linearize(at[axis + 1 :], shape).range()
            if low < 0 or high >= math.prod(shape):
                return linearize(at[axis:], (0, *shape)), math.prod(shape)
        return at[axis], 1

    def _last_lane(self) -> Register:
        """The number of the last lane that exists."""
        position = self.elements.position
        assert position.vector is not None
        rest = self.b.const(position.vector.extent - 1) - position.env[position.vector]
        return self.b.binary("smin", rest, position.lanes - 1)

    # ------------------------------------------------------------------ lines of taps

    def _line(self) -> int | None:
        """The axis along which lines are combined, see Note [Lines of taps]; None for none."""
        elements, dims, lanes = self.elements, self.dims, self.lanes
        along = [axis for axis, part in enumerate(self.first) if elements.varies(part)]
        if not lanes or len(along) != 1 or chooses(self.op):
            return None
        if elements.position.wanted is not None:
            return None  # a line may begin before the memory, at a lane that nobody wants
        if any(self._place(self.first, axis)[1] > 1 for axis in self.open):
            return None
        (axis,) = along
        if self.index[axis].range()[1] >= self.op.result.shape[axis]:
            return None  # the loops of two axes are one: lanes go on behind the end of a line
        coeff, _, varying = elements.split(self.first[axis])
        size, stride = dims.sizes[axis], dims.strides[axis]
        vectors, lines = -(-self._reach(axis, lanes) // lanes), math.prod(dims.sizes) // size
        plain = coeff == stride and not varying and size > 1
        few = vectors <= MOST_VECTORS and lines <= MOST_STRAIGHT_AT_BORDER
        return axis if plain and few and (vectors < size or stride > 1) else None

    def _reach(self, axis: int, lanes: int) -> int:
        """Elements of a line from the first one that some lanes see to the last one."""
        dims = self.dims
        taps = (dims.sizes[axis] - 1) * dims.dilation[axis]
        return (lanes - 1) * dims.strides[axis] + taps + 1

    def _along_line(self, axis: int, *, border: bool) -> Register:
        b, dims, lanes = self.b, self.dims, self.lanes
        reducer = self.reducer = _reducer_of(self.op, some=False)
        used = self.elements.used_lanes()
        used = lanes if used is None else max(used, 1)
        reach = self._reach(axis, used)
        columns = [self._column(axis, first, border=border) for first in range(0, reach, lanes)]
        parts = list(zip(*columns, strict=True))
        made: Accumulator | None = None
        for tap in range(dims.sizes[axis]):
            first = tap * dims.dilation[axis]
            places = [first + min(lane, used - 1) * dims.strides[axis] for lane in range(lanes)]
            new = tuple(picked(b, part, places) for part in parts)
            made = new if made is None else reducer.merge(b, made, new)
        assert made is not None
        return self._wide(reducer.result(b, made))

    def _column(self, axis: int, first: int, *, border: bool) -> Accumulator:
        """A vector of all lines, from element `first` on of what the lanes see, combined."""
        elements, b, lanes, reducer = self.elements, self.b, self.lanes, self.reducer
        whole = elements.position.mask is None and first + lanes <= self._reach(axis, lanes)
        var, made = Var(first + lanes, "l"), None
        taps = [range(1 if at == axis else size) for at, size in enumerate(self.dims.sizes)]
        for tap in itertools.product(*taps):
            at = [
                part + k * step
                for part, k, step in zip(self.first, tap, self.dims.dilation, strict=True)
            ]
            holds = self._moved_to_line(at, axis) if border else None
            at[axis] = self.first[axis] + Affine.of(var)
            with elements.at({var: b.const(first)}, vector=var):
                mask = None if whole and not border else self._on_line(at, axis)
                with elements.at(mask=mask, within=True):
                    element = elements.value(self.operand, tuple(at))
            if holds is not None and mask is not None:
                mask = mask & b.splat(holds, lanes)
            new = reducer.lift(b, element, None, lanes, mask)
            made = new if made is None else reducer.merge(b, made, new)
        assert made is not None
        return made

    def _moved_to_line(self, at: list[Affine], axis: int) -> Register | None:
        """Moves an index to a line of the operand. Whether it was on one; None: always."""
        elements, b, holds = self.elements, self.b, None
        for other in self.open:
            extent, (low, high) = self.operand.shape[other], at[other].range()
            if other != axis and (low < 0 or high >= extent):
                where = elements.scalar_index(at[other])
                holds = _both(holds, is_inside(b, where, extent))
                at[other] = elements.dynamic(clamped(b, where, extent), extent)
        return holds

    def _on_line(self, at: Sequence[Affine], axis: int) -> Register:
        """Which lanes are elements of the line that windows see: the others may be no memory, as
        where a lane is no window, and nobody wants it."""
        last, stride = self.op.result.shape[axis] - 1, self.dims.strides[axis]
        low, high = (min(max(end, 0), last) for end in self.index[axis].range())
        before, _ = self.dims.padding[axis]
        first = max(low * stride - before, 0)
        behind = min(high * stride - before + self._reach(axis, 1), self.operand.shape[axis])
        return is_inside(self.b, self._lanes_at(at[axis] - first), behind - first)

    def _lanes_at(self, part: Affine) -> Register:
        """Where each lane is along an axis, perhaps before its first element."""
        return self.elements.lane_index(part, narrow=fits_i32(part))

    # ------------------------------------------------------------------ taps

    def _made(self, *, border: bool) -> Register:
        """All taps combined. border: they may lie outside."""
        if self.line is not None:
            return self._along_line(self.line, border=border)
        most = MOST_STRAIGHT_AT_BORDER if border else MOST_STRAIGHT
        straight = math.prod(self.dims.sizes) <= most
        whole = straight and not border  # the first tap is an element already
        self.reducer = _reducer_of(self.op, some=whole)
        made = None if whole else self.reducer.initial(self.b, self.lanes)
        if made and not straight:
            made = self._looped([], made, border=border)
        else:
            for tap in self.dims.taps:
                made = self._with_tap(made, [Affine((), k) for k in tap], border=border)
        assert made is not None
        return self._wide(self.reducer.result(self.b, made))

    def _looped(self, tap: list[Affine], made: Accumulator, *, border: bool) -> Accumulator:
        """The taps that begin with `tap`, by a loop for each axis that is left."""
        axis = len(tap)
        if axis == len(self.dims.sizes):
            return self._with_tap(made, tap, border=border)
        size = self.dims.sizes[axis]
        if size == 1:
            return self._looped([*tap, Affine()], made, border=border)
        var = Var(size, "k")

        def body(position: Register, *carried: Register) -> Accumulator:
            with self.elements.at({var: position}):
                return self._looped([*tap, Affine.of(var)], carried, border=border)

        return self.b.loop(0, size, 1, made, body)

    def _with_tap(
        self, made: Accumulator | None, tap: Sequence[Affine], *, border: bool
    ) -> Accumulator:
        at = [
            first + k * step
            for first, k, step in zip(self.first, tap, self.dims.dilation, strict=True)
        ]
        if border:
            element, inside = self._at_border(at)
        else:
            element, inside = self.elements.value(self.operand, tuple(at)), None
        number = self._number(tap) if self.reducer.is_arg else None
        new = self.reducer.lift(self.b, self._wide(element), number, self.lanes, None)
        if made is None:
            return new
        merged = self.reducer.merge(self.b, made, new)
        if inside is None:
            return merged
        return chosen(self.b, inside, merged, made)

    def _number(self, tap: Sequence[Affine]) -> Register:
        number = linearize(tap, self.dims.sizes)
        if not number.terms:
            return self.b.const(number.const, I32)
        return self.elements.lane_index(number, narrow=True)

    def _at_border(self, at: list[Affine]) -> tuple[Register, Register | None]:
        """The element at an index that may be outside, and whether it is one."""
        elements, b, holds, lanes = self.elements, self.b, None, None
        exists: Register | None = None  # where it cannot be told without
        for axis in self.open:
            part, unit = self._place(at, axis)
            extent = self.operand.shape[axis] * unit
            low, high = part.range()
            if low >= 0 and high < extent:
                continue
            if elements.varies(part):
                lanes = _both(lanes, is_inside(b, self._lanes_at(part), extent))
            elif unit > 1:
                exists = _both(exists, is_inside(b, elements.scalar_index(part), extent))
            else:
                where = elements.scalar_index(part)
                holds = _both(holds, is_inside(b, where, extent))
                at[axis] = elements.dynamic(clamped(b, where, extent), extent)
        if exists is not None:
            return self._by_branch(at, exists, holds, lanes)
        return self._masked(at, holds, lanes)

    def _by_branch(
        self,
        at: Sequence[Affine],
        exists: Register,
        holds: Register | None,
        lanes: Register | None,
    ) -> tuple[Register, Register | None]:
        """As `_masked`, if `exists`; nothing else is read."""
        nothing = element_type(self.operand.type.dtype).with_lanes(self.lanes)

        def element() -> tuple[Register]:
            with self.elements.at(within=True):
                return (self._wide(self._masked(at, None, lanes)[0]),)

        (made,) = self.b.if_(exists, element, lambda: (self.b.const(0, nothing),))
        holds = _both(holds, exists)
        return made, holds if lanes is None else lanes & self.b.splat(holds, self.lanes)

    def _masked(
        self, at: Sequence[Affine], holds: Register | None, lanes: Register | None
    ) -> tuple[Register, Register | None]:
        """The element in `lanes`, and whether it counts."""
        elements, b = self.elements, self.b
        if lanes is None:
            return elements.value(self.operand, tuple(at)), holds
        mask = elements.position.mask
        with elements.at(mask=lanes if mask is None else mask & lanes, within=True):
            element = elements.value(self.operand, tuple(at))
        if holds is not None:
            lanes = lanes & b.splat(holds, self.lanes)
        return element, lanes

    def _wide(self, register: Register) -> Register:
        """In all lanes where the index varies."""
        return self.b.splat(register, self.lanes) if self.lanes else register


def _both(first: Register | None, second: Register) -> Register:
    return second if first is None else first & second


def _reducer_of(op: Op, *, some: bool) -> Reducer:
    """How taps are combined. some: there is one that is an element, from the first on."""
    fn, dtype = op.attrs["fn"], op.operands[0].type.dtype
    return _Choice(fn, dtype, i32, some) if chooses(op) else Reducer(fn, dtype)


@record
class _Choice(Reducer):
    """The element that is chosen, in its own type, and the number of its tap; -1 for none."""

    some: bool = False

    @property
    def is_arg(self) -> bool:
        return True

    def initial(self, b: Builder, lanes: int) -> Accumulator:
        elem = element_type(self.accumulator_dtype).with_lanes(lanes)
        return b.const(0, elem), b.const(-1, I32.with_lanes(lanes))

    def merge(self, b: Builder, first: Accumulator, second: Accumulator) -> Accumulator:
        (best, chosen), (new, number) = first, second
        keeps = "ge" if self.fn == "first_max" else "le"
        kept = b.compare(keeps, best, new, signed=self.dtype.is_signed)
        if not self.some:
            kept = kept & b.compare("ge", chosen, 0)
        return b.select(kept, best, new), b.select(kept, chosen, number)
