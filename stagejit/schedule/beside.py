"""run-beside: small dispatches are brought next to dispatches that they do not depend on.

Input: an execution order and what has to come before what. Output: another order. Invariant: every
dependence keeps its direction; only small dispatches move, and only to an earlier place.

A chain of small dispatches cannot use several cores, two of them can: a.1 a.2 b.1 b.2 becomes
a.1 b.1 a.2 b.2, and neighbours that do not depend on each other share a parallel region. This is
list scheduling (Graham, "Bounds on multiprocessing timing anomalies", 1969) with the given order as
its priority; large dispatches stay where they are, since they use all cores by themselves and may
find in the caches what the one before them left.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from stagejit.dispatch.regions import Region
from stagejit.index.bit_sets import bits
from stagejit.schedule.plan import Dispatch

NAME = "run-beside"

# At 100 GFLOP/s and 25 GB/s a core, what takes less than some 40 microseconds.
_MOST_FLOPS, _MOST_NBYTES = 1 << 22, 1 << 20
_MOST_BESIDE = 16  # more dispatches than cores in one region gain little, and keep memory alive


def is_small(region: Region, dispatch: Dispatch) -> bool:
    """Whether one dispatch, that of `region`, has too little work for all cores."""
    return region.has_kernel and dispatch.flops <= _MOST_FLOPS and dispatch.nbytes <= _MOST_NBYTES


def brought_together(
    order: Sequence[int], predecessors: Mapping[int, int], small: Sequence[bool]
) -> list[int]:
    """The positions of `order`, the small ones maybe earlier.

    predecessors: bit sets of the positions that have to come first. small: by position."""
    return _Grouping(order, predecessors, small).run()


class _Grouping:
    """The order that grows. group: its last dispatches, which do not depend on each other."""

    def __init__(
        self, order: Sequence[int], predecessors: Mapping[int, int], small: Sequence[bool]
    ) -> None:
        self.order, self.small, self.predecessors = order, small, predecessors
        self.rank = {at: number for number, at in enumerate(order)}
        self.waiting = {at: predecessors.get(at, 0).bit_count() for at in order}
        self.successors: dict[int, list[int]] = {}
        for at in order:
            for before in bits(predecessors.get(at, 0)):
                self.successors.setdefault(before, []).append(at)
        self.made: list[int] = []
        self.taken = self.group = 0  # bit sets
        self.fitting = [self.rank[at] for at in order if small[at] and not self.waiting[at]]
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
        for after in self.successors.get(at, ()):
            self.waiting[after] -= 1
            if self.small[after] and not self.waiting[after]:
                self.freed.append(self.rank[after])
