"""Execution order: few switches between native dispatches and delegated equations; small dispatches
next to others.

Input: positions in program order, and which of them have to come first, as bit sets. Output: a
permutation. Invariant: every conflict keeps its direction; without delegated equations
`execution_order` is that of the program, but for what reads what a later one could overwrite.

Note [Beside]: a chain of small dispatches cannot use several cores, two of them can: a.1 a.2 b.1
b.2 becomes a.1 b.1 a.2 b.2, and neighbours that do not depend on each other share a parallel
region. This is list scheduling (Graham, "Bounds on multiprocessing timing anomalies", 1969) with
the given order as its priority; only small ones move, and only to an earlier place: large
dispatches use all cores by themselves and may find in the caches what the one before them left.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from stagejit.index.bit_sets import bits

BESIDE = "run-beside"
_MOST_BESIDE = 16  # more dispatches than cores in one region gain little, and keep memory alive


class _Waiting:
    """Positions that are still to come, and for how many each of them waits."""

    def __init__(self, count: int, predecessors: Mapping[int, int]) -> None:
        self.counts = [predecessors.get(at, 0).bit_count() for at in range(count)]
        self.successors: list[list[int]] = [[] for _ in range(count)]
        for at, before in predecessors.items():
            for earlier in bits(before):
                self.successors[earlier].append(at)

    def take(self, at: int) -> list[int]:
        """Those that wait for nobody now that `at` has come."""
        free = []
        for after in self.successors[at]:
            self.counts[after] -= 1
            if not self.counts[after]:
                free.append(after)
        return free


def execution_order(delegated: Sequence[bool], predecessors: Mapping[int, int]) -> list[int]:
    """Positions in execution order: all native dispatches that can run, then all delegated ones."""
    waiting = _Waiting(len(delegated), predecessors)
    ready: dict[bool, list[int]] = {False: [], True: []}
    for at, count in enumerate(waiting.counts):
        if not count:
            ready[delegated[at]].append(at)
    order: list[int] = []
    kind = False
    while ready[False] or ready[True]:
        if not ready[kind]:
            kind = not kind
        order.append(heapq.heappop(ready[kind]))
        for after in waiting.take(order[-1]):
            heapq.heappush(ready[delegated[after]], after)
    return order


def readers_first(
    readers: Sequence[int], writers: Sequence[int], predecessors: dict[int, int]
) -> None:
    """Has `readers` of an argument come before `writers` of the result that could then take its
    place, unless one of them has to come after a writer. Extends `predecessors`."""
    others = [at for at in readers if at not in writers]
    if any(_needs(at, writers, predecessors) for at in others):
        return
    for writer in writers:
        for reader in others:
            predecessors[writer] = predecessors.get(writer, 0) | 1 << reader


def _needs(at: int, others: Sequence[int], predecessors: Mapping[int, int]) -> bool:
    """Whether position `at` comes, directly or not, after one of `others`."""
    seen = pending = predecessors.get(at, 0)
    while pending:
        lowest = pending & -pending
        pending ^= lowest
        new = predecessors.get(lowest.bit_length() - 1, 0) & ~seen
        seen |= new
        pending |= new
    return any(seen >> other & 1 for other in others)


def runs(delegated: Sequence[bool]) -> list[int]:
    """For each position in execution order the number of its segment: neighbours of one kind share
    a native run, each delegated equation is a segment of its own."""
    numbers: list[int] = []
    for at, is_delegated in enumerate(delegated):
        numbers.append(numbers[-1] + (is_delegated or delegated[at - 1]) if at else 0)
    return numbers


def brought_together(
    order: Sequence[int], predecessors: Mapping[int, int], small: Sequence[bool]
) -> list[int]:
    """The positions of `order`, the small ones maybe earlier: see Note [Beside].

    small: by position."""
    return _Grouping(order, predecessors, small).run()


class _Grouping:
    """The order that grows. group: its last dispatches, which do not depend on each other."""

    def __init__(
        self, order: Sequence[int], predecessors: Mapping[int, int], small: Sequence[bool]
    ) -> None:
        self.order, self.small, self.predecessors = order, small, predecessors
        self.rank = {at: number for number, at in enumerate(order)}
        self.waiting = _Waiting(len(order), predecessors)
        self.made: list[int] = []
        self.taken = self.group = 0  # bit sets
        counts = self.waiting.counts
        self.fitting = [self.rank[at] for at in order if small[at] and not counts[at]]
        self.freed: list[int] = []  # ranks of small ones that wait for nobody but the group

    def run(self) -> list[int]:
        for at in self.order:
            if self.taken >> at & 1:
                continue
            if self.group & self.predecessors.get(at, 0):
                self._fill_group()
                self._end_group()
            self._take(at)
        return self.made

    def _fill_group(self) -> None:
        while self.fitting and self.group.bit_count() < _MOST_BESIDE:
            at = self.order[heapq.heappop(self.fitting)]
            if not self.taken >> at & 1:
                self._take(at)

    def _end_group(self) -> None:
        self.group = 0
        for rank in self.freed:
            heapq.heappush(self.fitting, rank)
        self.freed = []

    def _take(self, at: int) -> None:
        self.made.append(at)
        self.taken |= 1 << at
        self.group |= 1 << at
        self.freed += [self.rank[after] for after in self.waiting.take(at) if self.small[after]]
