"""Products in tiles: a block of threads has a tile of sums, each thread a few in registers.

Input: a plan, its sides, a tile. Output: the tree of the nest. Invariant: the last steps of a tile
that are none add nothing; a row or column beyond the last one is never stored.

Note [One tile ahead]: while threads multiply what lies in shared memory they wait for the next
tile of memory, which they load into registers and store into the other half of shared memory. So a
block waits at one barrier a tile, and the last of these ends the item.

Note [Several tiles ahead]: where copies bring tiles, `ahead` of them are on their way, and shared
memory has room for one more. A turn first starts the tile that is `ahead` turns later, in the place
of the last one, with which all are done since the barrier; then multiplies its own; then waits
until all groups of copies but the last `ahead - 1` have arrived, the next tile's among them. So
that this counts right, each turn commits a group, an empty one where there is nothing to start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from operator import and_

from stagejit.codegen.contraction.parts import steps_of
from stagejit.codegen.cuda.contract.numbers import apart, each
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.staging import Copying, Loading, staging
from stagejit.codegen.cuda.contract.tile import Shape
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Chunk, Do, Loop, Parallel, Within


class TiledSums(ABC):
    """The tree of one nest."""

    loading, copying = Loading, Copying

    def __init__(
        self,
        plan: Plan,
        sides: Sides,
        tile: Shape,
        emitter: ThreadEmitter,
        memory: Sequence[Memory],
    ) -> None:
        self.plan, self.sides, self.tile, self.emitter = plan, sides, tile, emitter
        self.elements, self.b, self.dtype = emitter.elements, emitter.b, plan.nest.dtype
        self.elem = element_type(self.dtype)
        self.stores = Stores(plan.region, self.elements, memory, plan.offsets)
        zeros = self._missing()
        self.rows, self.columns = staging(emitter, sides, tile, zeros, self.loading, self.copying)
        self.ahead = max(tile.copies, 1)
        self.sums = self.b.stack("sums", self.elem, tile.sums)

    @abstractmethod
    def _multiply(self, which: Register) -> None:
        """All steps of one of the tiles in shared memory."""

    @abstractmethod
    def _store(self) -> None:
        """All sums of this thread, by `_store_at`."""

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
        cut, steps = self.plan.nest.cut, self.sides.step
        if cut is None:
            self.limit = Span.whole(self.b, steps)
        else:
            self.limit = steps_of(cut, self.emitter, steps.extent // cut.step.extent)
        with self.emitter.covering({steps: self.limit}):
            yield

    def _clear(self) -> None:
        zero = self.b.const(self.plan.nest.zero if self.elem.is_float else 0, self.elem)
        each(self.b, self.sums.size, lambda at: self.b.store(zero, self.sums, at))

    def _first(self) -> None:
        """The first tiles: some of them if there are no more."""
        for number in range(self.ahead):
            which = self.b.const(number)
            self._bring(self.b.const(number * self.tile.depth), which, lambda: None)
        self._wait()

    def _turn(self) -> None:
        b, depth = self.b, self.tile.depth
        at = self.elements.position.env[self.sides.step]
        number, places = at // depth, self.ahead + 1
        if self.sides.step.extent <= depth:
            self._multiply(number % places)
            b.barrier()
            return
        later = (number + self.ahead) % places
        self._bring(at + depth * self.ahead, later, lambda: self._multiply(number % places))
        self._wait()

    def _bring(self, first: Register, which: Register, meanwhile: Callable[[], None]) -> None:
        """The tile whose steps begin at `first`, if there is one, to place `which`."""
        self._if_there(first, lambda: self._start(first, which))
        if self.tile.copies:
            self.b.commit_copies()
        meanwhile()
        if any(isinstance(operand, Loading) for operand in (self.rows, self.columns)):
            self._if_there(first, lambda: self._finish(which))

    def _if_there(self, first: Register, body: Callable[[], None]) -> None:
        """Does it if there is a tile whose steps begin at `first`."""
        if first.const is not None and first.const < self.limit.least:
            body()
        else:
            self.b.if_(self.b.compare("lt", first, self.limit.stop), body)

    def _start(self, first: Register, which: Register) -> None:
        for operand in (self.rows, self.columns):
            operand.start(first, self.limit, which)

    def _finish(self, which: Register) -> None:
        for operand in (self.rows, self.columns):
            operand.finish(which)

    def _wait(self) -> None:
        """Until the next tile is there, for all threads."""
        if self.tile.copies:
            self.b.wait_for_copies(self.ahead - 1)
        self.b.barrier()

    # ---------------------------------------------------------------- what is stored

    def _bound(self) -> AbstractContextManager[None]:
        """The anchor's result is the sum at `self.at`."""
        result = self.plan.region.anchor_op.result

        def read() -> Register:
            lanes = self.elements.position.lanes
            raw = self.b.load(
                self.sums, self.at, lanes, alignment=max(lanes, 1) * self.elem.bits // 8
            )
            return vmath.convert(self.b, raw, self.dtype, result.type.dtype)

        return self.elements.giving(result, read)

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
