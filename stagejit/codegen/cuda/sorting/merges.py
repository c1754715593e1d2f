"""Sorted runs become one: searches for where a part of the result begins, and merges in order.

Input: records in shared memory, or what reads them; lengths of two runs. Output: code of one thread
of a block. Invariant: stable: of equal records, those of the first run come first.

Note [Parts of a result]: the first `diagonal` records of what two runs become are the first i of
one and the first `diagonal - i` of the other one; i is found by bisection (Odeh, Green, Mwassi,
Shmueli, Birk, "Merge Path"). So each thread finds where its part begins, and merges that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagejit.codegen.cuda.sorting.records import Record, Records
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.nodes import I32, Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.networks import exchanges

Read = Callable[[Register], Record]  # of a place in a run, an i32


@dataclass(frozen=True)
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
        self.buffers: list[Buffer] = [
            b.shared("tile", records.type, self.size) for _ in records.words
        ]

    # ---------------------------------------------------------------- memory

    def wide(self, place: Register) -> Register:
        return self.b.cast("zext", place, "i64")

    def at(self, place: Register, mask: Register | None = None) -> Record:
        """The record at a place, an i32; any, where it is masked off."""
        at = self.wide(place)
        return tuple(self.b.load(buffer, at, mask=mask) for buffer in self.buffers)

    def put(self, record: Record, place: Register) -> None:
        """Of which other threads know after a barrier."""
        for word, buffer in zip(record, self.buffers, strict=True):
            self.b.store(word, buffer, self.wide(place))

    def own(self, first: Register) -> list[Record]:
        """The records of this thread, from its first place on."""
        return [self.at(first + k) for k in range(self.each)]

    def share(self, own: Sequence[Record], first: Register) -> None:
        """Puts the records of all threads where all can read them."""
        self.b.barrier()
        for k, record in enumerate(own):
            self.put(record, first + k)
        self.b.barrier()

    # ---------------------------------------------------------------- order

    def sorted(self, own: Sequence[Record]) -> list[Record]:
        """The records of a thread in order, by a network."""
        records, made = self.records, [(record, self.records.order(record)) for record in own]
        for low, high in exchanges(len(own)) if records.is_total else _neighbours(len(own)):
            (x, by_x), (y, by_y) = made[low], made[high]
            wrong = records.less(by_y, by_x)
            first = records.chosen(wrong, y, x), records.chosen(wrong, by_y, by_x)
            last = records.chosen(wrong, x, y), records.chosen(wrong, by_x, by_y)
            made[low], made[high] = first, last
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
        more_i, more_j = b.compare("lt", i, stop_i), b.compare("lt", j, stop_j)
        x, y = self.at(i, more_i), self.at(j, more_j)
        by_x, by_y, made = records.order(x), records.order(y), []
        for k in range(self.each):
            takes = more_i & (~more_j | ~records.less(by_y, by_x))
            made.append(records.chosen(takes, x, y))
            if k == self.each - 1:
                break
            next_ = b.select(takes, i, j) + 1
            more = b.compare("lt", next_, b.select(takes, stop_i, stop_j))
            new = self.at(next_, more)
            by_new = records.order(new)
            i, j = b.select(takes, next_, i), b.select(takes, j, next_)
            more_i, more_j = _chosen(b, takes, more, more_i), _chosen(b, takes, more_j, more)
            x, y = records.chosen(takes, new, x), records.chosen(takes, y, new)
            by_x, by_y = records.chosen(takes, by_new, by_x), records.chosen(takes, by_y, by_new)
        return made


def _chosen(b: GridBuilder, condition: Register, x: Register, y: Register) -> Register:
    """Of conditions."""
    return (condition & x) | (~condition & y)


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
