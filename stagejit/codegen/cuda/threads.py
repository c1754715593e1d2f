"""Loops as threads: the emitter of trees for blocks of threads.

Input: as for `nest/emitter.py`. Output: the code of one thread. Invariant: as there; threads of a
block come to the same barriers, threads of a warp to the same exchanges.

Note [Items and threads]: `Parallel.together` items share a block, so an item has `width` threads:
one, some of a warp, or the whole block; or, where they are `apart`, one of every so many. A loop
over vectors gives each of them as many neighbouring elements as a vector has for each thread, then
the next ones. What is not in such a loop each thread of the item does for itself, with the same
values: only statements that merge know of the others.

Note [Items that are none]: where an item has one thread or whole warps, those without one do
nothing. Where several share a warp, which exchanges registers, or their threads are apart and meet
at barriers, those without one do what the last item does, and `exists` is off, so that they store
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import At, Chunk, Parallel
from stagejit.errors import InternalError
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

_WIDEST_NBYTES = 16  # of an access


class ThreadElements(Elements):
    """Elements of one thread, or a few neighbouring ones. aligned: whether memory starts at whole
    accesses."""

    def __init__(self, b: GridBuilder, memory: Mapping[Value, Memory], *, aligned: bool) -> None:
        super().__init__(b, memory)
        self.aligned = aligned
        self._staged: dict[tuple[Buffer, Affine], tuple[Buffer, Register]] = {}

    def raw(self, value: Value, form: Affine) -> Register:
        """The element of an input at an offset, as it lies in memory."""
        memory = self.memory[value]
        return self._fetch(value, memory, form - memory.base)

    def address(self, value: Value, form: Affine) -> tuple[Buffer, Register]:
        """The element of an input at an offset: where it lies."""
        memory = self.memory[value]
        return memory.buffer, self.scalar_index(form - memory.base)

    @contextmanager
    def staging(
        self, places: Mapping[tuple[Value, Affine], tuple[Buffer, Register]]
    ) -> Iterator[None]:
        """Inside, elements of inputs at some offsets are read where they are staged."""
        before, memory = self._staged, self.memory
        self._staged = {
            (memory[value].buffer, form - memory[value].base): place
            for (value, form), place in places.items()
        }
        try:
            yield
        finally:
            self._staged = before

    def _fetch(self, value: Value, memory: Memory, offset: Affine) -> Register:
        staged = self._staged.get((memory.buffer, offset))
        return self.b.load(*staged) if staged else super()._fetch(value, memory, offset)

    def alignment(self, buffer: Buffer, base: int, uniform: Affine) -> int:
        """Bytes of which the place is a multiple: of the vector, if that can be told."""
        lanes, size = self.position.lanes, buffer.elem.bits // 8
        steps = [base, uniform.const]
        steps += [coeff for var, coeff in uniform.terms if var is not self.position.vector]
        whole = self.aligned and not any(step % lanes for step in steps)
        return min(lanes * size, _WIDEST_NBYTES) if whole else 0


class ThreadEmitter(Emitter):
    """Emits trees for blocks of threads. exists: see Note [Items that are none]; None where all
    do. width: threads of an item."""

    b: GridBuilder
    elements: ThreadElements
    width: int
    apart: bool
    exists: Register | None

    def __init__(self, elements: ThreadElements, builder: GridBuilder) -> None:
        super().__init__(elements)
        self.b, self.elements = builder, elements
        self.width, self.apart, self.exists = 1, False, None
        self.threads = math.prod(builder.threads)
        self._shared: dict[tuple[str, Type, int, int], Buffer] = {}

    @property
    def member(self) -> Register:
        """The number of this thread among those of its item."""
        thread = self.b.thread_of_block()
        if self.width == self.threads:
            return thread
        return thread // (self.threads // self.width) if self.apart else thread % self.width

    def shared(self, name: str, elem: Type, size: int, *, alignment: int = 0) -> Buffer:
        """Memory of a block, which one nest after the other has; each ends with a barrier."""
        key = name, elem, size, alignment
        if key not in self._shared:
            self._shared[key] = self.b.shared(name, elem, size, alignment=alignment)
        return self._shared[key]

    # ---------------------------------------------------------------- items

    def _parallel(self, node: Parallel) -> None:
        """The items of the shares that this block is given, one share by one."""
        b, before, together = self.b, node.before or 0, node.together
        self.width, self.apart = self.threads // together, node.apart
        warps = self.apart or self.width <= WARP or together == 1
        if self.width * together != self.threads or not warps:
            what = f"{together} items cannot share {self.threads} threads"
            raise InternalError(what, step="codegen")
        low = b.lo if node.before is None else b.binary("smax", b.lo, before)
        high = b.hi if node.last else b.binary("smin", b.hi, before + node.shares)
        # Block k takes shares lo + k, lo + k + n, ... of all, those of this nest here.
        first, every = b.lo + b.block_id(), b.block_count()
        if node.before is not None:
            skipped = b.binary("smax", low - first, 0)
            first = first + (skipped + every - 1) // every * every

        def share(number: Register) -> Sequence[Register]:
            self._share(node, (number - before) * together)
            return ()

        b.loop(first, high, every, (), share)

    def _share(self, node: Parallel, start: Register) -> None:
        b, items, even = self.b, node.items, node.items % node.together == 0
        number, thread = start, b.thread_of_block()
        if node.together > 1:
            number = start + (thread % node.together if self.apart else thread // self.width)
        alone = self.width == 1 or (self.width % WARP == 0 and not self.apart)
        some = None if even else b.compare("lt", number, items)
        self.exists = None if alone else some
        if some is not None and not alone:
            number = b.binary("smin", number, items - 1)
        if items < 1 << 31:  # divisions of 32 bits take a third of those of 64
            number = b.cast("trunc", number, "i32")

        def item() -> None:
            spans = self._handed(node, number)
            at = {var: span.start for var, span in spans.items()}
            with self.covering(spans), self.elements.at(at):
                self.emit(node.body)

        self._guarded(some if alone else None, (node.body,), item)

    # ---------------------------------------------------------------- vectors

    def _cover(self, var: Var, chunks: Sequence[Chunk], span: Span) -> None:
        first = chunks[0] if chunks else None
        if first is None or not first.vector:
            super()._cover(var, chunks, span)
            return
        if first.tail not in ("masked", "all masked") and span.left(first.size) != 0:
            raise InternalError("elements are left over between threads", step="codegen")
        lanes = self._lanes(first.size)
        start = span.start + self.member * lanes if self.width > 1 else span.start
        ragged = (span.unit if span.count is None else span.count) % lanes

        @contextmanager
        def inside(position: Register) -> Iterator[None]:
            mask = self.b.mask_below(position, span.stop, lanes) if lanes > 1 and ragged else None
            with self._vector(var, lanes, position, mask):
                yield

        def once() -> None:
            with inside(start):
                self.emit(first.body)

        if span.count is None or span.count > first.size:
            self._for(start, span.stop, first.size, first.body, inside, runs=self.width == 1)
            return
        whole = span.count == first.size or self.width == 1
        some = None if whole else self.b.compare("lt", start, span.stop)
        self._guarded(some, (first.body,), once)

    def _lanes(self, size: int) -> int:
        """Elements of a vector that a thread has."""
        if size % self.width:
            raise InternalError(f"{self.width} threads cannot share {size}", step="codegen")
        return size // self.width

    @contextmanager
    def _vector(
        self, var: Var, lanes: int, position: Register, mask: Register | None
    ) -> Iterator[None]:
        """A thread's elements: one, or a vector of them."""
        if lanes == 1:
            with self.elements.at({var: position}):
                yield
        else:
            with self.elements.at({var: position}, vector=var, lanes=lanes, mask=mask):
                yield

    def _at(self, node: At) -> None:
        if node.vector is None:
            super()._at(node)
            return
        var, lanes = node.vector, self._lanes(node.lanes)
        env = self.elements.position.env
        places = {v: env.get(v, self.b.const(0)) + step for v, step in node.steps}
        first = places.setdefault(var, env.get(var, self.b.const(0)))
        start = first + self.member * lanes if self.width > 1 else first
        ragged = node.used % lanes > 0
        mask = self.b.mask_below(start, first + node.used, lanes) if ragged else None
        some = None if node.used == node.lanes else self.b.compare("lt", start, first + node.used)

        def there() -> None:
            with (
                self.elements.at({v: at for v, at in places.items() if v is not var}),
                self._vector(var, lanes, start, mask),
            ):
                self.emit(node.body)

        self._guarded(some, (node.body,), there)
