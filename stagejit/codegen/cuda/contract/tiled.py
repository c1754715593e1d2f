"""Products in tiles: a block of threads has a tile of sums, each thread a few in registers.

Input: a plan, its sides, a tile. Output: the tree of the nest. Invariant: the last steps of a tile
that are none add nothing; a row or column beyond the last one is never stored.

Note [One tile ahead]: while threads multiply what lies in shared memory they wait for the next
tile of memory, which they load into registers and store into the other half of shared memory. So a
block waits at one barrier a tile, and the last of these ends the item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import and_

from stagejit.codegen.cuda.contract.numbers import apart, each
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.contract.single import multiply_add
from stagejit.codegen.cuda.contract.staging import Staging
from stagejit.codegen.cuda.contract.tile import Tile
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory, Stores
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Chunk, Do, Loop, Parallel, Within


class TiledSums:
    """The tree of one nest."""

    def __init__(
        self, plan: Plan, sides: Sides, tile: Tile, emitter: ThreadEmitter, memory: Sequence[Memory]
    ) -> None:
        self.plan, self.sides, self.tile, self.emitter = plan, sides, tile, emitter
        self.elements, self.b, self.dtype = emitter.elements, emitter.b, plan.nest.dtype
        self.elem = element_type(self.dtype)
        self.stores = Stores(plan.region, self.elements, memory, plan.offsets)
        missing = self._missing()
        self.operands = self.rows, self.columns = tuple(
            Staging(emitter, sides, side, tile, self.dtype, name, zero)
            for side, name, zero in zip(
                (sides.rows, sides.columns), ("left", "right"), missing, strict=True
            )
        )
        b, elem = self.b, self.elem
        self.sums = b.stack("sums", elem, tile.height * tile.width)
        self.left = b.stack("left_of_step", elem, tile.height)
        self.right = b.stack("right_of_step", elem, tile.width)

    def _missing(self) -> tuple[float, float]:
        """See Note [Zeros that change nothing]; a border is +0 itself."""
        if not self.elem.is_float:
            return 0, 0
        return (0.0, -0.0) if self.sides.rows.read.windows else (-0.0, 0.0)

    # ---------------------------------------------------------------- loops

    def tree(self) -> Parallel:
        sides, tile = self.sides, self.tile
        multiply = Do("multiply and add, with the next tile on its way", self._turn)
        loop = Loop(sides.step, (Chunk(tile.depth, multiply, tail="padded"),))
        body = (Do("clear", self._clear), Do("first tile", self._first), loop,
                Within("sums", self._bound, Do("store", self._store)))  # fmt: skip
        loops = (*((var, 1) for var in sides.batch), (sides.rows.number, tile.rows),
                 (sides.columns.number, tile.columns))  # fmt: skip
        return Parallel(loops, Within("steps", self._part, body))

    @contextmanager
    def _part(self) -> Iterator[None]:
        """As many steps as there are, where not all parts of a sum have as many."""
        cut, b, steps = self.plan.nest.cut, self.b, self.sides.step
        self.limit = Span.whole(b, steps)
        if cut is not None:
            at = self.elements.position.env.get(cut.part, b.const(0))
            is_last = b.compare("eq", at, cut.part.extent - 1)
            times = steps.extent // cut.step.extent
            stop = b.select(is_last, b.const(cut.last * times), b.const(steps.extent))
            self.limit = Span(b.const(0), None, stop, fewest=cut.last * times)
        with self.emitter.covering({steps: self.limit}):
            yield

    def _clear(self) -> None:
        zero = self.b.const(self.plan.nest.zero if self.elem.is_float else 0, self.elem)
        each(self.b, self.sums.size, lambda at: self.b.store(zero, self.sums, at))

    def _first(self) -> None:
        self._load(self.b.const(0))
        self._fill(self.b.const(0))
        self.b.barrier()

    def _turn(self) -> None:
        b, depth = self.b, self.tile.depth
        at = self.elements.position.env[self.sides.step]
        which = at // depth % 2
        if self.sides.step.extent <= depth:
            self._multiply(which)
            b.barrier()
            return
        is_more = b.compare("lt", at + depth, self.limit.stop)
        b.if_(is_more, lambda: self._load(at + depth))
        self._multiply(which)
        b.if_(is_more, lambda: self._fill(which ^ 1))
        b.barrier()

    def _load(self, first: Register) -> None:
        for operand in self.operands:
            operand.load(first, self.limit)

    def _fill(self, which: Register) -> None:
        for operand in self.operands:
            operand.store(which)

    # ---------------------------------------------------------------- one tile

    def _threads(self) -> tuple[Register, Register]:
        """Where this thread is among those of the block, down and across."""
        b, tile = self.b, self.tile
        down, across = tile.warp
        warp, lane, warps = b.warp(), b.lane(), tile.across // across
        return warp // warps * down + lane // across, warp % warps * across + lane % across

    def _group(self, side: Side, number: Register) -> Register:
        """The first of a group of neighbours that a thread has along a side."""
        tile, (down, across) = self.tile, self._threads()
        of_rows = side is self.sides.rows
        threads, own = (tile.down, down) if of_rows else (tile.across, across)
        return (number * threads + own) * tile.lanes

    def _multiply(self, which: Register) -> None:
        """All steps of a tile in shared memory."""
        each(self.b, self.tile.depth, partial(self._step, which))

    def _step(self, which: Register, step: Register) -> None:
        for staging, own in ((self.rows, self.left), (self.columns, self.right)):
            at = which * staging.size + step * staging.pitch
            groups = own.size // self.tile.lanes
            each(self.b, groups, partial(self._read, staging, own, at))
        each(self.b, self.tile.height, self._row)

    def _read(self, staging: Staging, own: Buffer, at: Register, number: Register) -> None:
        """A group of neighbours of one step."""
        place = at + self._group(staging.side, number)
        made = self.b.load(staging.shared, place, self._lanes, alignment=self._aligned)
        self.b.store(made, own, number * self.tile.lanes, alignment=self._aligned)

    def _row(self, i: Register) -> None:
        b, width = self.b, self.tile.width
        x = b.load(self.left, i)

        def column(j: Register) -> None:
            y, at = b.load(self.right, j), i * width + j
            b.store(multiply_add(b, x, y, b.load(self.sums, at)), self.sums, at)

        each(b, width, column)

    @property
    def _lanes(self) -> int:
        return self.tile.lanes if self.tile.lanes > 1 else 0

    @property
    def _aligned(self) -> int:
        return self.tile.lanes * self.dtype.itemsize

    # ---------------------------------------------------------------- what is stored

    @contextmanager
    def _bound(self) -> Iterator[None]:
        """The anchor's result is the sum at `self.at`."""
        result = self.plan.region.anchor_op.result

        def read(lanes: int) -> Register:
            raw = self.b.load(
                self.sums, self.at, lanes, alignment=max(lanes, 1) * self.elem.bits // 8
            )
            return vmath.convert(self.b, raw, self.dtype, result.type.dtype)

        self.elements.bound[result] = lambda _: read(self.elements.position.lanes)
        yield
        del self.elements.bound[result]

    def _store(self) -> None:
        each(self.b, self.tile.height, self._store_row)

    def _store_row(self, i: Register) -> None:
        b, tile, sides = self.b, self.tile, self.sides
        row = self._group(sides.rows, i // tile.lanes) + i % tile.lanes
        lanes = min(sides.lanes, tile.lanes)

        def group(j: Register) -> None:
            first = j * lanes
            column = self._group(sides.columns, first // tile.lanes) + first % tile.lanes
            self._store_at(row, column, i * tile.width + first, lanes)

        each(b, tile.width // lanes, group)

    def _store_at(self, row: Register, column: Register, at: Register, lanes: int) -> None:
        """Neighbours along the columns, if they exist."""
        b, sides, exist, places = self.b, self.sides, list[Register](), {}
        for side, number, extent in (
            (sides.rows, row, self.tile.rows),
            (sides.columns, column, self.tile.columns),
        ):
            number = self.emitter.span(side.number).start + number
            if side.number.extent % extent:
                exist.append(b.compare("lt", number, side.number.extent))
            places.update(apart(b, number, side.axes))
        vector = sides.columns.axes[-1] if lanes > 1 else None

        def there() -> None:
            self.at = at
            with self.elements.at(places, vector=vector, lanes=lanes if vector else 0):
                self.stores.write(enumerate(self.plan.indices))

        if exist:
            b.if_(reduce(and_, exist), there)
        else:
            there()
