"""A tile of one operand on its way from memory to shared memory, through registers or not.

Input: a side, a tile, how far the block is along rows (or columns) and steps. Output: code.
Invariant: what is beyond the last row or step is a zero that changes no sum.

Note [Zeros that change nothing]: a sum may be -0, to which +0 must not be added. So one operand is
-0 where it has no step, and the other one +0: their product is -0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import and_

from stagejit.codegen.cuda.contract.numbers import apart, each
from stagejit.codegen.cuda.contract.operands import element_of, places_of
from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.contract.tile import Shape, accesses, loads_of, pitch
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.index.affine import Var


class Staging(ABC):
    """One operand of a tile. extent: its rows, or columns. dtype: in shared memory, which has room
    for `tiles`, one behind the other. by_rows: whether the steps of a row lie together, and not the
    rows of a step. missing: what stands for elements that are none."""

    def __init__(
        self, emitter: ThreadEmitter, sides: Sides, side: Side, tile: Shape, name: str,
        missing: float, *, by_rows: bool = False,
    ) -> None:  # fmt: skip
        self.emitter, self.b, self.elements = emitter, emitter.b, emitter.elements
        self.sides, self.side, self.tile, self.dtype = sides, side, tile, tile.operand
        self.extent = tile.rows if side is sides.rows else tile.columns
        self.lanes, self.often = accesses(side, self.extent, tile)
        self.by_rows, self.missing = by_rows, missing
        self.pitch = pitch(tile.depth if by_rows else self.extent, self.dtype.itemsize)
        self.tiles = max(tile.copies, 1) + 1
        self.name, self.elem = name, element_type(self.dtype)
        self.shared = self.room()

    def room(self) -> Buffer:
        """For all tiles."""
        size = self.tiles * self.tile.room(self.extent, self.dtype.itemsize)
        return self.emitter.shared(self.name, self.elem, size)

    @property
    def size(self) -> int:
        """Elements of one tile."""
        return (self.extent if self.by_rows else self.tile.depth) * self.pitch

    def place(self, which: Register, row: Register, step: Register) -> Register:
        """Where an element of one of the tiles is in shared memory."""
        first, then = (row, step) if self.by_rows else (step, row)
        return which * self.size + first * self.pitch + then

    def turn(self, number: Register) -> tuple[Register, Register]:
        """Which row and step of the tile a thread has in one of its turns."""
        at = self.b.thread_of_block() + number * self.tile.threads
        if self.side.along_steps:
            width = self.tile.depth // self.lanes
            return at // width, at % width * self.lanes
        width = self.extent // self.lanes
        return at % width * self.lanes, at // width

    def there(
        self, number: Register, first: Register, steps: Span
    ) -> tuple[dict[Var, Register], list[Register]]:
        """Where variables stand in a turn of a tile, and what tells that there is such an element.
        first: the first of all `steps` that are of the tile."""
        b, side = self.b, self.side
        row, step = self.turn(number)
        row, step = self.emitter.span(side.number).start + row, first + step
        exists = []
        if side.number.extent % self.extent:
            exists.append(b.compare("lt", row, side.number.extent))
        if steps.count is None or steps.count % self.tile.depth:
            exists.append(b.compare("lt", step, steps.stop))
        return {**apart(b, row, side.axes), **apart(b, step, self.sides.steps)}, exists

    @property
    def aligned(self) -> int:
        return self.lanes * self.dtype.itemsize

    @abstractmethod
    def start(self, first: Register, steps: Span, which: Register) -> None:
        """The tile whose steps begin at `first`, of all `steps`, is on its way to shared memory, to
        place `which`, which nobody uses any more."""

    @abstractmethod
    def finish(self, which: Register) -> None:
        """It is there, as far as threads bring it that do not wait for copies."""


class Loading(Staging):
    """Threads load the next tile into registers, and store that."""

    def __init__(
        self, emitter: ThreadEmitter, sides: Sides, side: Side, tile: Shape, name: str,
        missing: float, *, by_rows: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(emitter, sides, side, tile, name, missing, by_rows=by_rows)
        self.ahead: Buffer = self.b.stack(f"next_{name}", self.elem, self.lanes * self.often)

    def start(self, first: Register, steps: Span, which: Register) -> None:
        each(self.b, self.often, lambda number: self._load(number, first, steps))

    def _load(self, number: Register, first: Register, steps: Span) -> None:
        places, exists = self.there(number, first, steps)
        with self._at(places):
            made = element_of(self.side.read, self.elements, self.dtype, exists, self.missing)
        self.b.store(made, self.ahead, number * self.lanes, alignment=self.aligned)

    def _at(self, places: Mapping[Var, Register]) -> AbstractContextManager[None]:
        along = self.side.along if self.lanes > 1 else None
        return self.elements.at(places, vector=along, lanes=self.lanes if along else 0)

    def finish(self, which: Register) -> None:
        each(self.b, self.often, lambda number: self._store(number, which))

    def _store(self, number: Register, which: Register) -> None:
        b, lanes = self.b, self.lanes
        row, step = self.turn(number)
        at = self.place(which, row, step)
        if self.side.along_steps != self.by_rows:
            for k in range(lanes):
                b.store(b.load(self.ahead, number * lanes + k), self.shared, at + k * self.pitch)
        else:
            made = b.load(self.ahead, number * lanes, lanes if lanes > 1 else 0,
                          alignment=self.aligned)  # fmt: skip
            b.store(made, self.shared, at, alignment=self.aligned)


class Copying(Staging):
    """Threads start copies, which somebody else waits for. What is no element, or outside of a
    window, they store themselves."""

    def start(self, first: Register, steps: Span, which: Register) -> None:
        each(self.b, self.often, lambda number: self._copy(number, first, steps, which))

    def _copy(self, number: Register, first: Register, steps: Span, which: Register) -> None:
        b, read, elements = self.b, self.side.read, self.elements
        places, exists = self.there(number, first, steps)
        at = self.place(which, *self.turn(number))
        with elements.at(places):
            _, inside = places_of(read, elements)

            def copy() -> None:
                ((value, form),) = read.reads
                source, offset = elements.address(value, form)
                b.copy_ahead(source, offset, self.shared, at)

            def store(number: float) -> None:
                made = b.const(number, self.elem.with_lanes(self.lanes))
                b.store(made, self.shared, at, alignment=self.aligned)

            def bordered() -> None:
                branch(b, inside, copy, lambda: store(read.border))

            branch(b, exists, bordered, lambda: store(self.missing))

    def finish(self, which: Register) -> None:
        """Copies are waited for by `wait_for_copies`."""


def branch(
    b: GridBuilder,
    conditions: Sequence[Register],
    then: Callable[[], None],
    otherwise: Callable[[], None],
) -> None:
    """`then` where all conditions hold."""
    if conditions:
        b.if_(reduce(and_, conditions), then, otherwise)
    else:
        then()


def staging(
    emitter: ThreadEmitter, sides: Sides, tile: Shape, missing: tuple[float, float],
    loading: type[Loading], copying: type[Copying],
) -> tuple[Staging, Staging]:  # fmt: skip
    """Of the rows and of the columns; for the user to read, why of each of them. loading: where no
    copies bring it; copying: where they do."""
    made, reasons = list[Staging](), list[str]()
    both = (sides.rows, "left"), (sides.columns, "right")
    loads, by_rows = loads_of(sides, tile), tile.by_rows(sides)
    for (side, name), load, along, zero in zip(both, loads, by_rows, missing, strict=True):
        kind: type[Staging] = loading if load.kept else copying
        made.append(kind(emitter, sides, side, tile, name, zero, by_rows=along))
        reasons.append(f"{name} through registers, as {load.kept}" if load.kept else
                       f"{name} by copies of {made[-1].aligned} bytes")  # fmt: skip
    if tile.copies:
        emitter.chose("on their way", "; ".join(reasons))
    return made[0], made[1]
