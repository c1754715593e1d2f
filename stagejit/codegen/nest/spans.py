"""`Span`: the elements of one variable that a loop covers, as far as they are known.

Input: an extent, or what a loop around left of it. Output: where whole chunks end, and what they
leave over. Invariant: `start` and `stop` are elements of the variable, the first one covered and
the one behind the last.

Note [What is left over]: the blocks of a variable have as many elements as each other but for the
last, which ends where the variable does. If they are whole chunks, what these leave over in the
last one is a number, though where it stands is not; in the other blocks they leave nothing. Where
blocks are no whole chunks, or lie in others that are no whole blocks, it is found out.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.index.affine import Var


@record
class Span:
    """count: how many elements; None where only `end` tells, and there are at least `fewest`,
    and a multiple of `unit`. extent, block: of a span that is one of equal blocks or the last, the
    variable's, and elements of the others; else 0."""

    start: Register
    count: int | None
    end: Register | None = None
    extent: int = 0
    fewest: int = 0
    unit: int = 1
    block: int = 0

    @staticmethod
    def whole(b: Builder, var: Var) -> Span:
        return Span(b.const(0), var.extent)

    @staticmethod
    def of_block(b: Builder, var: Var, size: int, start: Register) -> Span:
        """A block of `size` elements of `var`, or the last one."""
        if size >= var.extent:
            return Span.whole(b, var)
        if not var.extent % size:
            return Span(start, size)
        stop = b.binary("smin", start + size, var.extent)
        return Span(start, None, stop, var.extent, var.extent % size, block=size)

    def block_of(self, var: Var, size: int, start: Register) -> Span:
        """A block of `size` elements of what is covered of `var`, or the last one."""
        b = start.builder
        if self.count == var.extent or self._is_whole(size):
            return Span.of_block(b, var, size, start)
        if self.count is not None and (size >= self.count or not self.count % size):
            return Span(start, min(size, self.count))
        fewest = 1 if self.count is None else self.count % size
        return Span(start, None, b.binary("smin", start + size, self.stop), fewest=fewest)

    def _is_whole(self, size: int) -> bool:
        """Whether all equal blocks but the last are whole chunks of `size` elements."""
        return self.block > 0 and self.block % size == 0

    @staticmethod
    def between(start: Register, stop: Register) -> Span:
        """From `start` to `stop`."""
        count = stop - start
        if count.const is not None:
            return Span(start, int(count.const))
        return Span(start, None, stop)

    @property
    def stop(self) -> Register:
        if self.count is not None:
            return self.start + self.count
        assert self.end is not None
        return self.end

    @property
    def length(self) -> Register:
        if self.count is not None:
            return self.start.builder.const(self.count)  # type: ignore[no-any-return]
        return self.stop - self.start

    @property
    def least(self) -> int:
        """How many elements there are at least."""
        return self.fewest if self.count is None else self.count

    def even(self, size: int) -> Register:
        """Where whole chunks of `size` elements end."""
        if self.count is not None:
            return self.start + self.count // size * size
        stop = self.stop
        if size == 1:
            return stop
        if not self._is_whole(size):
            return stop - (stop - self.start) % size
        return stop - stop % size if self.extent % size else stop

    def left(self, size: int) -> int | None:
        """How many elements whole chunks leave over, if they leave any; None: any number."""
        if self.count is not None or size == 1:
            return (self.count or 0) % size
        return self.extent % size if self._is_whole(size) else None

    def limit(self, size: int) -> Register | int:
        """Below which elements of chunks of `size` exist."""
        return self.extent if self._is_whole(size) else self.stop
