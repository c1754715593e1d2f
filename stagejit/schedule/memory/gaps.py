"""Ranges of memory that are taken for a time, and the gaps between them.

Input: ranges, each with the positions that touch it. Output: for a buffer to be the smallest gap
that holds it between the ranges that are in use together with it. Invariant: the answer is that of
a look at each range, one by one.

Note [Blocks of ranges]: a look at all ranges for each buffer would take a time that grows with the
square of their number. So neighbours in memory stand in blocks, which know enough of their ranges
to be passed as a whole: none is in use at the time, or all are and no gap between them is as large.
Whether one range is in use is a question of bit sets; most often the last position that touches
one, and the last that is over before the other, tell it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

_MOST_IN_BLOCK = 64


class Range(NamedTuple):
    """Half open, in bytes. users: the positions that touch it; finished: those that are over before
    the first of them starts. Both are bit sets."""

    start: int
    stop: int
    users: int
    finished: int


class _Block:
    """Ranges by where they start.

    stop: the end of all; widest_gap: between two of them, -1 where there is none;
    users, unfinished: of any of them; least_last: each has a user so late or later, counted from 1;
    most_over: what is over before one of them starts is so early or earlier.
    """

    __slots__ = (
        "least_last",
        "most_over",
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
        self.least_last = min(each.users.bit_length() for each in ranges)
        self.most_over = max(each.finished.bit_length() for each in ranges)
        self._measure()

    def add(self, new: Range) -> None:
        """What `_Block([*ranges, new])` would be."""
        bisect.insort(self.ranges, new)
        self.users |= new.users
        self.unfinished |= ~new.finished
        self.least_last = min(self.least_last, new.users.bit_length())
        self.most_over = max(self.most_over, new.finished.bit_length())
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
        return self.least_last > finished.bit_length() and users.bit_length() > self.most_over


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
            if block.is_unused_beside(users, finished):
                continue
            if block.widest_gap < nbytes and block.is_used_beside(users, finished):
                busy: Sequence[tuple[int, int]] = [(block.ranges[0].start, block.stop)]
            else:
                busy = [
                    (start, stop)
                    for start, stop, others, over in block.ranges
                    if others & ~finished and users & ~over
                ]
            for start, stop in busy:
                gap = start - end
                if gap >= nbytes and (best < 0 or gap < best_size):
                    best, best_size = end, gap
                end = max(end, stop)
        return end if best < 0 else best
