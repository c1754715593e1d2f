"""Execution order: few switches between native dispatches and delegated equations.

Input: regions in program order and the order that conflicts demand. Output: a permutation.
Invariant: every conflict keeps its direction; without delegated equations the order is that of the
regions, but for those that read what a later one could overwrite.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


def execution_order(delegated: Sequence[bool], predecessors: Mapping[int, int]) -> list[int]:
    """Positions in execution order: all native dispatches that can run, then all delegated ones.

    predecessors: bit sets of the positions that have to come first.
    """
    waiting = {at: predecessors.get(at, 0).bit_count() for at in range(len(delegated))}
    successors: dict[int, list[int]] = {}
    for at, before in predecessors.items():
        while before:
            lowest = before & -before
            successors.setdefault(lowest.bit_length() - 1, []).append(at)
            before ^= lowest
    ready: dict[bool, list[int]] = {False: [], True: []}
    for at, count in waiting.items():
        if not count:
            heapq.heappush(ready[delegated[at]], at)
    order: list[int] = []
    kind = False
    while ready[False] or ready[True]:
        if not ready[kind]:
            kind = not kind
        at = heapq.heappop(ready[kind])
        order.append(at)
        for after in successors.get(at, ()):
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready[delegated[after]], after)
    return order


def readers_first(
    readers: Sequence[int],
    writers: Sequence[int],
    predecessors: dict[int, int],
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
        if not at:
            numbers.append(0)
        else:
            numbers.append(numbers[-1] + (is_delegated or delegated[at - 1]))
    return numbers
