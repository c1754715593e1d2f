"""Ranges of memory that are taken for a time, and the gaps between them.

Input: ranges, each with the positions that touch it. Output: for a buffer to be the smallest gap
that holds it between the ranges that are in use together with it. Invariant: the answer is that of
a look at each range, one by one.

Note [Blocks of ranges]: a look at all ranges for each buffer would take a time that grows with the
square of their number. So neighbours in memory stand in blocks, which know enough of their ranges
to be passed as a whole: none is in use at the time, or all are and no gap between them is as large.
So are they where some of them, which fill the block, are known to be in use: those that did so when
somebody looked at all of them last, for who comes next is often in use with them, too.
Whether one range is in use is a question of bit sets; most often the last position that touches
one, and the last that is over before the other, tell it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MOST_IN_BLOCK = 64


class Range(NamedTuple):
    """Half open, in bytes. users: the positions that touch it; finished: those that are over before
    the first of them starts. Both are bit sets."""

    start: int
    stop: int
    users: int
    finished: int


class _Cover(NamedTuple):
    """Ranges that are in use at once. widest_gap: between two of them, -1 where there is none;
    last, over: see `_Block`."""

    start: int
    stop: int
    widest_gap: int
    last: int
    over: int


def _ends(ranges: Iterable[Range], finished: int = 0) -> tuple[int, int]:
    """The last user of each that is not in `finished`, and what is over before any of them
    starts."""
    last = over = 0
    for one in ranges:
        last |= 1 << (one.users & ~finished).bit_length() >> 1
        over |= one.finished
    return last, over


class _Block:
    """Ranges by where they start.

    stop: the end of all; widest_gap: between two of them, -1 where there is none;
    users, unfinished: of any of them; last: the last user of each; over: what is over before any of
    them starts. cover: some that reached from the start of the block to its end at last.
    """

    __slots__ = (
        "cover",
        "last",
        "over",
        "ranges",
        "stop",
        "unfinished",
        "users",
        "widest_gap",
    )

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = list(ranges)
        self.users = self.unfinished = 0
        for each in ranges:
            self.users |= each.users
            self.unfinished |= ~each.finished
        self.last, self.over = _ends(ranges)
        self.cover: _Cover | None = None
        self._measure()

    def add(self, new: Range) -> None:
        """What `_Block([*ranges, new])` would be."""
        bisect.insort(self.ranges, new)
        self.users |= new.users
        self.unfinished |= ~new.finished
        self.last |= 1 << new.users.bit_length() >> 1
        self.over |= new.finished
        self._measure()

    def _measure(self) -> None:
        """Gaps between the ranges, in order."""
        end, widest = self.ranges[0].stop, -1
        for start, stop, _, _ in self.ranges[1:]:
            if start - end > widest:
                widest = start - end
            if stop > end:
                end = stop
        self.stop, self.widest_gap = end, widest

    def is_unused_beside(self, users: int, finished: int) -> bool:
        """Whether none of the ranges is in use while the positions of the bit set are."""
        return not self.users & ~finished or not users & self.unfinished

    def is_used_beside(self, users: int, finished: int) -> bool:
        """True only where all of the ranges are in use."""
        return not self.last & finished and bool(users & ~self.over)

    def is_full_beside(self, users: int, finished: int, nbytes: int) -> bool:
        """True only where the ranges in use reach from the start of the block to its end, and leave
        no gap of so many bytes."""
        if self.widest_gap < nbytes and self.is_used_beside(users, finished):
            return True
        cover = self.cover
        return (
            cover is not None
            and cover.widest_gap < nbytes
            and cover.start == self.ranges[0].start
            and cover.stop == self.stop
            and not cover.last & finished
            and users & ~cover.over != 0
        )

    def in_use_beside(self, users: int, finished: int) -> list[Range]:
        """Which ranges are in use while the positions of the bit set are."""
        return [one for one in self.ranges if one.users & ~finished and users & ~one.finished]

    def note(self, busy: Sequence[Range], finished: int) -> None:
        """Those are in use when `finished` are over; `cover` if they reach from one end to the
        other."""
        start, end, widest = busy[0].start, busy[0].stop, -1
        chosen = [busy[0]]  # of equal ones the one that is in use longest
        for one in busy[1:]:
            if one.start - end > widest:
                widest = one.start - end
            if one.stop > end:
                end = one.stop
            last = chosen[-1]
            if one.start != last.start or one.stop != last.stop:
                chosen.append(one)
            elif one.users > last.users:
                chosen[-1] = one
        if start == self.ranges[0].start and end == self.stop:
            self.cover = _Cover(start, end, widest, *_ends(chosen, finished))


class Taken:
    """The ranges that are taken so far."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._starts: list[int] = []  # of blocks

    def add(self, new: Range) -> None:
        if not self._blocks:
            self._blocks, self._starts = [_Block([new])], [new.start]
            return
        at = max(bisect.bisect_right(self._starts, new.start) - 1, 0)
        block = self._blocks[at]
        block.add(new)
        half = len(block.ranges) // 2
        made = [block]
        if len(block.ranges) > _MOST_IN_BLOCK:
            made = [_Block(block.ranges[:half]), _Block(block.ranges[half:])]
        self._blocks[at : at + 1] = made
        self._starts[at : at + 1] = [block.ranges[0].start for block in made]

    def best_gap(self, users: int, finished: int, nbytes: int) -> int:
        """Where the smallest gap that fits starts, else the end of the last range in use."""
        best, best_size, end = -1, 0, 0
        for block in self._blocks:
            if block.is_full_beside(users, finished, nbytes):
                busy: Sequence[tuple[int, int]] = [(block.ranges[0].start, block.stop)]
            elif block.is_unused_beside(users, finished):
                continue
            else:
                found = block.in_use_beside(users, finished)
                if found:
                    block.note(found, finished)
                busy = [(one.start, one.stop) for one in found]
            for start, stop in busy:
                gap = start - end
                if gap >= nbytes and (best < 0 or gap < best_size):
                    best, best_size = end, gap
                end = max(end, stop)
        return end if best < 0 else best
