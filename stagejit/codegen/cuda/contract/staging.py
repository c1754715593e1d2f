"""A tile of one operand on its way from memory to registers to shared memory.

Input: a side, a tile, how far the block is along rows (or columns) and steps. Output: code.
Invariant: what is beyond the last row or step is a zero that changes no sum.

Note [Zeros that change nothing]: a sum may be -0, to which +0 must not be added. So one operand is
-0 where it has no step, and the other one +0: their product is -0.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from stagejit.codegen.cuda.contract.numbers import apart, each
from stagejit.codegen.cuda.contract.operands import element_of
from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.contract.tile import Shape, accesses, pitch
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.index.affine import Var
from stagejit.types import DType


class Staging:
    """One operand of a tile. extent: its rows, or columns. dtype: in shared memory, which has room
    for two tiles, the second behind the first. by_rows: whether the steps of a row lie together,
    and not the rows of a step. missing: what stands for elements that are none."""

    def __init__(
        self, emitter: ThreadEmitter, sides: Sides, side: Side, tile: Shape, dtype: DType,
        name: str, missing: float, *, by_rows: bool = False,
    ) -> None:  # fmt: skip
        self.emitter, self.b, self.elements = emitter, emitter.b, emitter.elements
        self.sides, self.side, self.tile, self.dtype = sides, side, tile, dtype
        self.extent = tile.rows if side is sides.rows else tile.columns
        self.lanes, self.often = accesses(side, self.extent, tile)
        self.by_rows, self.missing = by_rows, missing
        self.pitch = pitch(tile.depth if by_rows else self.extent, dtype.itemsize)
        self.name, self.elem = name, element_type(dtype)
        self.ahead: Buffer = self.b.stack(f"next_{name}", self.elem, self.lanes * self.often)
        self.shared = self.room()

    def room(self) -> Buffer:
        """For two tiles."""
        size = 2 * self.tile.room(self.extent, self.dtype.itemsize)
        return self.emitter.shared(self.name, self.elem, size)

    @property
    def size(self) -> int:
        """Elements of one tile."""
        return (self.extent if self.by_rows else self.tile.depth) * self.pitch

    def place(self, which: Register, row: Register, step: Register) -> Register:
        """Where an element of one of the two tiles is in shared memory."""
        first, then = (row, step) if self.by_rows else (step, row)
        return which * self.size + first * self.pitch + then

    def _turn(self, number: Register) -> tuple[Register, Register]:
        """Which row and step of the tile a thread has in one of its turns."""
        at = self.b.thread_of_block() + number * self.tile.threads
        if self.side.along_steps:
            width = self.tile.depth // self.lanes
            return at // width, at % width * self.lanes
        width = self.extent // self.lanes
        return at % width * self.lanes, at // width

    # ---------------------------------------------------------------- memory to registers

    def load(self, first: Register, steps: Span) -> None:
        """The tile whose steps begin at `first`, of all `steps`."""
        each(self.b, self.often, lambda number: self._load(number, first, steps))

    def _load(self, number: Register, first: Register, steps: Span) -> None:
        b, side = self.b, self.side
        row, step = self._turn(number)
        row, step = self.emitter.span(side.number).start + row, first + step
        exists = []
        if side.number.extent % self.extent:
            exists.append(b.compare("lt", row, side.number.extent))
        if steps.count is None or steps.count % self.tile.depth:
            exists.append(b.compare("lt", step, steps.stop))
        places = {**apart(b, row, side.axes), **apart(b, step, self.sides.steps)}
        with self._at(places):
            made = element_of(side.read, self.elements, self.dtype, exists, self.missing)
        self.b.store(made, self.ahead, number * self.lanes, alignment=self._aligned)

    def _at(self, places: Mapping[Var, Register]) -> AbstractContextManager[None]:
        along = self.side.along if self.lanes > 1 else None
        return self.elements.at(places, vector=along, lanes=self.lanes if along else 0)

    @property
    def _aligned(self) -> int:
        return self.lanes * self.dtype.itemsize

    # ---------------------------------------------------------------- registers to shared memory

    def store(self, which: Register) -> None:
        """What was loaded becomes tile `which` of the two."""
        each(self.b, self.often, lambda number: self._store(number, which))

    def _store(self, number: Register, which: Register) -> None:
        b, lanes = self.b, self.lanes
        row, step = self._turn(number)
        at = self.place(which, row, step)
        if self.side.along_steps != self.by_rows:
            for k in range(lanes):
                b.store(b.load(self.ahead, number * lanes + k), self.shared, at + k * self.pitch)
        else:
            made = b.load(self.ahead, number * lanes, lanes if lanes > 1 else 0,
                          alignment=self._aligned)  # fmt: skip
            b.store(made, self.shared, at, alignment=self._aligned)
