"""Sorted runs become one: searches for where a part of the result begins, and merges in order.

Input: records in shared memory, or what reads them; lengths of two runs. Output: code of one thread
of a block. Invariant: stable: of equal records, those of the first run come first.

Note [Parts of a result]: the first `diagonal` records of what two runs become are the first i of
one and the first `diagonal - i` of the other one; i is found by bisection (Odeh, Green, Mwassi,
Shmueli, Birk, "Merge Path"). So each thread finds where its part begins, and merges that alone. In
global memory a whole warp searches: it looks at 32 places at once, which leaves a 32nd of what was
to be searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.base.records import record
from stagejit.codegen.cuda.sorting.records import Record, Records
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import I1, I32, Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.networks import exchanges

Read = Callable[[Register], Record]  # of a place in a run, an i32


@record
class Run:
    """Sorted records. Both numbers are i32."""

    start: Register
    length: Register


class Tile:
    """Records in shared memory, of which each thread of a block sorts and merges `each` that follow
    each other."""

    def __init__(self, b: GridBuilder, records: Records, each: int) -> None:
        self.b, self.records, self.each = b, records, each
        self.size = each * b.threads[0]
        # A merge looks one behind the last, and does not use it.
        self.buffers: list[Buffer] = [
            b.shared("tile", records.type, self.size + 1) for _ in records.words
        ]

    # ---------------------------------------------------------------- memory

    def wide(self, place: Register) -> Register:
        return self.b.cast("zext", place, "i64")

    def at(self, place: Register) -> Record:
        """The record at a place, an i32."""
        at = self.wide(place)
        return tuple(self.b.load(buffer, at) for buffer in self.buffers)

    def put(self, record: Record, place: Register) -> None:
        """Of which other threads know after a barrier."""
        for word, buffer in zip(record, self.buffers, strict=True):
            self.b.store(word, buffer, self.wide(place))

    def own(self, first: Register) -> list[Record]:
        """The records of this thread, from its first place on."""
        return [self.at(first + k) for k in range(self.each)]

    def share(self, own: Sequence[Record], first: Register) -> None:
        """Puts the records of all threads where all can read them."""
        self.put_back(own, first)
        self.b.barrier()

    def put_back(self, own: Sequence[Record], first: Register) -> None:
        """The same, when nobody reads any more what was there; without a barrier behind it."""
        self.b.barrier()
        for k, each in enumerate(own):
            self.put(each, first + k)

    # ---------------------------------------------------------------- order

    def sorted(self, own: Sequence[Record]) -> list[Record]:
        """The records of a thread in order, by a network."""
        records, made = self.records, [(record, self.records.order(record)) for record in own]
        for low, high in exchanges(len(own)) if records.is_total else _neighbours(len(own)):
            x, y = made[low], made[high]
            wrong = records.less(y[1], x[1])
            made[low], made[high] = self._chosen(wrong, y, x), self._chosen(wrong, x, y)
        return [record for record, _ in made]

    def merged(self, first: Run, second: Run, diagonal: Register, steps: Register) -> list[Record]:
        """The records of this thread of what two runs in the tile become. steps: see `split`."""
        b, records = self.b, self.records
        skipped = split(
            b, records, lambda place: self.at(first.start + place),
            lambda place: self.at(second.start + place), (first.length, second.length), diagonal,
            steps,
        )  # fmt: skip
        i, j = first.start + skipped, second.start + (diagonal - skipped)
        stop_i, stop_j = first.start + first.length, second.start + second.length
        x, y, made = self._with_order(i), self._with_order(j), []
        for k in range(self.each):
            later = b.compare("lt", j, stop_j) & records.less(y[1], x[1])
            takes = b.compare("lt", i, stop_i) & ~later
            made.append(records.chosen(takes, x[0], y[0]))
            if k == self.each - 1:
                break
            next_ = b.select(takes, i, j) + 1
            new = self._with_order(next_)
            i, j = b.select(takes, next_, i), b.select(takes, j, next_)
            x, y = self._chosen(takes, new, x), self._chosen(takes, y, new)
        return made

    def _with_order(self, place: Register) -> tuple[Record, Record]:
        """The record at a place, which may be the one behind the tile, and what is compared."""
        record = self.at(place)
        return record, self.records.order(record)

    def _chosen(
        self, first: Register, x: tuple[Record, Record], y: tuple[Record, Record]
    ) -> tuple[Record, Record]:
        return self.records.chosen(first, x[0], y[0]), self.records.chosen(first, x[1], y[1])


def _neighbours(count: int) -> list[tuple[int, int]]:
    """Exchanges of neighbours only, which keep equal ones in order (odd-even transposition sort;
    Knuth, TAOCP 3, 5.3.4, exercise 37)."""
    return [(at, at + 1) for step in range(count) for at in range(step % 2, count - 1, 2)]


def split(
    b: GridBuilder,
    records: Records,
    first: Read,
    second: Read,
    lengths: tuple[Register, Register],
    diagonal: Register,
    steps: Register,
) -> Register:
    """How many records of the first run are among the first `diagonal` of what two runs become.
    steps: so many bisections leave nothing of the shorter one, or more."""

    def bisect(_: Register, low: Register, high: Register) -> Sequence[Register]:
        def halved() -> Sequence[Register]:
            middle = (low + high) >> 1
            x, y = records.order(first(middle)), records.order(second(diagonal - 1 - middle))
            before = ~records.less(y, x)
            return [b.select(before, middle + 1, low), b.select(before, high, middle)]

        return b.if_(b.compare("lt", low, high), halved, lambda: (low, high))

    low = b.binary("smax", diagonal - lengths[1], b.const(0, I32))
    high = b.binary("smin", diagonal, lengths[0])
    found, _ = b.loop(0, steps, 1, (low, high), bisect)
    return found


def splits_by_warp(
    b: GridBuilder,
    records: Records,
    first: Read,
    second: Read,
    lengths: tuple[Register, Register],
    diagonals: Sequence[Register],
    longest: int,
) -> list[Register]:
    """The same of several diagonals, by all threads of a warp. longest: of both runs."""

    def narrowed(_: Register, *bounds: Register) -> Sequence[Register]:
        found: list[Register] = []
        for diagonal, low, high in zip(diagonals, bounds[::2], bounds[1::2], strict=True):
            found += _narrowed(b, records, first, second, diagonal, low, high)
        return found

    bounds: list[Register] = []
    for diagonal in diagonals:
        bounds.append(b.binary("smax", diagonal - lengths[1], b.const(0, I32)))
        bounds.append(b.binary("smin", diagonal, lengths[0]))
    return list(b.loop(0, warp_steps(longest), 1, bounds, narrowed)[::2])


def _narrowed(
    b: GridBuilder, records: Records, first: Read, second: Read, diagonal: Register,
    low: Register, high: Register,
) -> Sequence[Register]:  # fmt: skip
    """What is left to search, after a look at 32 places."""
    size = high - low

    def place(number: Register) -> Register:
        """So many 32nds of the way, of which the product could be too wide."""
        return low + (size >> 5) * number + ((size & 31) * number >> 5)

    def before() -> Sequence[Register]:
        at = place(b.cast("trunc", b.lane(), "i32"))
        x, y = records.order(first(at)), records.order(second(diagonal - 1 - at))
        return [~records.less(y, x)]

    (holds,) = b.if_(b.compare("lt", low, high), before, lambda: [b.const(0, I1)])
    count = b.unary("ctpop", b.vote("ballot", holds))  # those before the split
    some = b.compare("gt", count, 0)
    return [b.select(some, place(count - 1) + 1, low), place(count)]


def warp_steps(longest: int) -> int:
    """Until nothing is left to search of a run of that length."""
    steps = 0
    while longest:
        longest, steps = -(-longest // WARP) - 1, steps + 1
    return steps
