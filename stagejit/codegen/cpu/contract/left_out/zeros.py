"""Steps of a contraction in which an operand that is mostly zero has nothing but zeros.

Input: a micro-kernel, the number of that operand, the axis that is summed over. Output: loops that
look, in each block of the reduction, for the first and the last step in which a group of rows has
anything else; and what makes tiles begin and end there. Invariant: every sum has the bits of one
over all steps.

Note [What zeros change]: a step that is left out would have added zeros, or NaN where the other
operand is not finite: a tile then takes all steps. A zero changes a sum only if that is -0, and so
are all its terms between the ends. If an item has such a sum in the end, it is done once more, over
all steps: few have, and asking the sums of each tile would be much code. Where nothing lies between
the ends all sums would be -0. If then all zeros are +0, and each column of the other operand has a
number without a sign, every sum has a term of +0: it is +0, and starts from that. Otherwise the
tile takes all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import or_

from stagejit.codegen.contraction.sources import Source, evaluated_by_tiles
from stagejit.codegen.cpu.contract.left_out.blocks import Block, Check, any_lane
from stagejit.codegen.cpu.contract.microkernel import MicroKernel, SumTile
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import I1, I32, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Choice
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, Tail, When, serial, vectors
from stagejit.graph.ir import Op
from stagejit.index.affine import Var

Vectors = Sequence[tuple[int, Register | None]]  # how far from where loops stand; which lanes are

_ENTRIES = 3  # first step with anything but zero, the one behind the last, whether there is a -0

# Of an item. Checking an element of the other operand takes as long as multiplying it by a row or
# two: in tiles of six rows, items of six take 25 % longer where nothing is left out, of many 4 %.
_FEWEST_ROWS, _FEWEST_COLUMNS = 16, 16
_FEWEST_STEPS = 32


def mostly_zero(
    anchor: Op, tiling: Tiling, sources: tuple[Source, Source]
) -> tuple[tuple[Var, int] | None, tuple[Choice, ...]]:
    """The axis that is summed over and the number of the operand that may be mostly zero, where it
    is worth looking for its zeros, and what is told of it."""
    number = anchor.attrs.get("zeros")
    if number is None:
        return None, ()
    axes = [axis for axis in tiling.reduce if tiling.count(axis) != 1]
    own, other = sources[number].depends, sources[1 - number].depends
    rows, columns = (
        math.prod(min(s.span, s.var.extent) for s in tiling.splits if s.var in side)
        for side in (own - other, other - own)
    )
    few = rows < _FEWEST_ROWS or columns < _FEWEST_COLUMNS
    if any(evaluated_by_tiles(sources, tiling.pack)):
        reason = "all steps: tiles evaluate what they read"
    elif len(axes) != 1 or tiling.across:
        reason = "all steps: they are no single loop of broadcasts"
    elif few or tiling.extents.get(axes[0], axes[0].extent) < _FEWEST_STEPS:
        reason = "all steps: there are too few rows, columns or steps to look for zeros"
    else:
        side = ("left", "right")[number]
        reason = f"from the first to the last step in which the {side} is not zero"
        return (axes[0], number), (Choice("zeros", reason),)
    return None, (Choice("zeros", reason),)


class Zeros:
    """Where the elements of an operand begin and end to be anything but zero, by the steps of the
    block: of each of them where vectors run along its axis, else of each group of a tile."""

    def __init__(self, kernel: MicroKernel, axis: Var, number: int) -> None:
        self.kernel, self.b, self.emitter = kernel, kernel.b, kernel.emitter
        self.block = Block(kernel, axis, number)
        self.check = Check(Block(kernel, axis, 1 - number))
        self.lanes = self.block.lanes if self.block.unit or self.block.along else 0
        self.strides, self.size = dict[Var, int](), 1
        order = sorted(self.block.splits, key=lambda split: split.var is not self.block.unit)
        for split in order:
            self.strides[split.var] = self.size
            whole = self.lanes if split.var is self.block.unit else 1
            self.size *= -(-split.span // whole) * whole
        self.table = self.b.scratch("ends", I32, self.size * _ENTRIES)
        self.seen, self.origin = Cell("first, end, signs"), Cell("origin")
        self.all = Cell("all steps")
        self._tiled = [split.var for split in kernel.tiling.splits]

    # ---------------------------------------------------------------- before the tiles

    def tree(self, groups: Callable[[Callable[[Mapping[Var, int]], Node]], Node]) -> Node:
        """Looks at both operands. groups: loops over the groups of tiles, of an operand."""
        unit, begin = self.block.unit, Do("begin", self._begin, (self.origin,))
        if unit is None:
            looks = groups(lambda sizes: self._one(partial(self._group, sizes)))
        else:
            several = [var for var in self.block.own if var is not unit]
            one = self._one(lambda: [(0, self.emitter.elements.position.mask)])
            looks = serial(several, vectors(unit, self.lanes, one, tail="masked"))
        return (self.check.tree(), self.block.begin(), begin, looks)

    def _begin(self) -> None:
        """The table begins where the item does."""
        origin = self.b.const(0)
        for var, stride in self.strides.items():
            origin = origin + self.emitter.span(var).start * stride
        self.emitter.cells[self.origin] = (origin,)

    def _one(self, vectors_of: Callable[[], Vectors]) -> Node:
        """Notes the ends of what the loops stand at, which is made of some vectors."""
        look = Do("look", lambda: self._look(vectors_of()), (self.seen,))
        return (
            Do("clear", self._clear, (self.seen,)),
            self.block.over(look, vector=self.block.along),
            Do("note the ends", self._note),
        )

    def _clear(self) -> None:
        b, lanes = self.b, 0 if self.block.along else self.lanes
        bits = element_type(self.block.view.dtype).as_int.with_lanes(self.lanes)
        none, length = b.const(0, I32.with_lanes(lanes)), self._number(self.block.length, lanes)
        self.emitter.cells[self.seen] = length, none, b.const(0, bits)

    def _look(self, vectors: Vectors) -> None:
        b, block, along = self.b, self.block, self.block.along
        first, end, signs = self.emitter.cells[self.seen]
        step, length = block.step, block.length
        raw = [block.load(self.lanes, mask, further) for further, mask in vectors]
        bits = reduce(or_, [b.cast("bitcast", each, signs.type.elem) for each in raw])
        some = b.compare("ne", bits << 1, 0)
        some = any_lane(some) if along else some
        behind = b.binary("smin", step + self.lanes, length) if along else step + 1
        here, behind, length = (
            self._number(each, first.type.lanes) for each in (step, behind, length)
        )
        first = b.binary("smin", first, b.select(some, here, length))
        self.emitter.cells[self.seen] = first, b.select(some, behind, end), signs | bits

    def _number(self, index: Register, lanes: int) -> Register:
        number = self.b.cast("trunc", index, "i32")
        return self.b.splat(number, lanes) if lanes else number

    def _group(self, sizes: Mapping[Var, int]) -> Vectors:
        """What a step reads of a group of tiles: how far from the first element, which lanes."""
        mask = self.emitter.elements.position.mask if self.block.along else None
        points = self.kernel.points(sizes)
        return [(self.block.view.constant(point), mask) for point in points]

    def _note(self) -> None:
        b, place, (first, end, signs) = self.b, self._place(), self.emitter.cells[self.seen]
        minus = signs < 0
        minus = b.cast("zext", any_lane(minus) if self.block.along else minus, "i32")
        for number, entry in enumerate((b.binary("smin", first, end), end, minus)):
            b.store(entry, self.table, place + number * self.size)

    def _place(self) -> Register:
        """Where the loops stand in the table."""
        env = self.emitter.elements.position.env
        place = -self.emitter.cells[self.origin][0]
        for var, stride in self.strides.items():
            place = place + env[var] * stride
        return place

    # ---------------------------------------------------------------- in a tile

    def around(self, tile: SumTile, loops: Node) -> Node:
        """`loops` over the steps between the ends, or over all."""
        ends, (steps,) = Cell("ends"), tile.plain

        def between() -> dict[Var, Span]:
            return {steps.var: Span.between(*self.emitter.cells[ends])}

        enter = Do("begin", lambda: self._enter(tile, ends), (tile.sums, ends))
        return (enter, self.emitter.within("steps", between, loops))

    def _enter(self, tile: SumTile, ends: Cell) -> None:
        b, cells, (steps,) = self.b, self.emitter.cells, tile.plain
        finite, signless = cells[self.check.told]
        first, end, minus = self._ends(tile.sizes)
        none = b.compare("eq", first, end)
        plus = none & b.compare("eq", minus, 0) & signless
        every = (none ^ plus) | (finite ^ True) | cells[self.all][0]
        span = self.emitter.span(steps.var)
        start = b.select(every, span.start, b.cast("sext", first, "i64"))
        stop = b.select(every, span.stop, b.cast("sext", end, "i64"))
        if span.count is None:  # perhaps the tile is left out as a whole
            stop = b.binary("smin", stop, span.stop)
        sums = tuple(b.select(plus, 0.0, total) for total in cells[tile.sums])
        cells.update({tile.sums: sums, ends: (start, stop)})

    def _ends(self, sizes: Mapping[Var, int]) -> list[Register]:
        """The entries of the table for a tile: those that lie furthest apart of its elements."""
        b, place, unit = self.b, self._place(), self.block.unit
        if unit is None:
            return [b.load(self.table, place + number * self.size) for number in range(_ENTRIES)]
        found: list[list[Register]] = [[], [], []]
        for point in self.kernel.points({s.var: sizes[s.var] for s in self.block.splits}):
            left = sizes[unit] - point[unit] if unit is not self.kernel.tiling.lane else self.lanes
            if unit is not self.kernel.tiling.lane and point[unit] % self.lanes:
                continue
            mask = None if left >= self.lanes else b.active(left, self.lanes)
            at = place + sum(self.strides[var] * step for var, step in point.items())
            for number, registers in enumerate(found):
                entry = b.load(self.table, at + number * self.size, self.lanes, mask=mask)
                if mask is not None and number == 0:  # lanes that are none have no end before 0
                    entry = b.select(mask, entry, 2**31 - 1)
                registers.append(entry)
        return [
            b.reduce(fn, reduce(partial(b.binary, fn), registers))
            for fn, registers in zip(("smin", "smax", "smax"), found, strict=True)
        ]

    # ---------------------------------------------------------------- around an item

    def again(self, item: Node) -> Node:
        """The sums of an item; if a sum is -0, once more over all steps."""
        turn, start = Var(2, "turn"), Cell("start")

        def begin() -> None:
            self.emitter.cells[self.all] = (self.b.const(False, I1),)

        def wanted() -> Register:
            first = self.b.compare("eq", self.emitter.elements.position.env[turn], 0)
            return first | self.emitter.cells[self.all][0]

        look = Do("look for -0", lambda: self._minus(start), (self.all,))
        tiling = self.kernel.tiling
        axes, lane = list(self._tiled), tiling.lane
        if lane is not None:
            tail: Tail = "masked" if lane.extent % tiling.lanes else "none"
            looks: Node = vectors(lane, tiling.lanes, look, tail=tail)
            axes.remove(lane)
        else:
            looks = look
        looks = (Do("begin", lambda: self._start(start), (start,)), serial(axes, looks))
        turns = serial([turn], When("sums may be others", wanted, (item, looks)))
        return (Do("begin", begin, (self.all,)), turns)

    def _start(self, start: Cell) -> None:
        """Where the panel would begin if the item were the first."""
        origin = self.kernel.panel.origin(self.emitter.span, self._tiled)
        self.emitter.cells[start] = (origin,)

    def _minus(self, start: Cell) -> None:
        """Notes whether a sum where the loops stand is -0."""
        b, panel, tiling, position = (
            self.b, self.kernel.panel, self.kernel.tiling, self.emitter.elements.position,
        )  # fmt: skip
        (offset,), lanes = self.emitter.cells[start], tiling.lanes if tiling.lane else 0
        offset = panel.offset(offset, self._tiled, position.env)
        sums = b.load(panel.buffer, offset, lanes, mask=position.mask)
        bits = b.cast("bitcast", sums, sums.type.as_int.elem)
        minus = any_lane(b.compare("eq", bits, -(1 << bits.type.bits - 1)))
        self.emitter.cells[self.all] = (self.emitter.cells[self.all][0] | minus,)
