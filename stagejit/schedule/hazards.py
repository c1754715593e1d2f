"""Which dispatch has to wait for which: conflicts over subranges, and the fewest barriers for them.

Input: dispatches in execution order with their accesses. Output: conflicts and barriers. Invariant:
two dispatches conflict iff boxes of theirs overlap on one buffer and one of them writes; barriers
are the transitive reduction of the conflicts, each naming the elements in conflict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagejit.dispatch.box import Box
from stagejit.schedule.plan import Access, Barrier, Buffer, Dispatch, Hazard


@dataclass(frozen=True)
class Conflict:
    """`second` (a position in the order) must wait for `first`: they touch `ranges` of `buffer`."""

    first: int
    second: int
    hazard: Hazard
    buffer: str
    ranges: tuple[Box, ...]


def conflicts(dispatches: Sequence[Dispatch]) -> list[Conflict]:
    """All pairs in conflict, in order."""
    touches: dict[str, list[tuple[int, bool, Access]]] = {}
    for position, dispatch in enumerate(dispatches):
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
            for access in accesses:
                touches.setdefault(access.buffer, []).append((position, writes, access))
    ranges: dict[tuple[int, int, Hazard, str], list[Box]] = {}
    for buffer, of_buffer in touches.items():
        for first, second, hazard, box in _pairs(of_buffer):
            boxes = ranges.setdefault((first, second, hazard, buffer), [])
            if not any(other.contains(box) for other in boxes):
                boxes[:] = [other for other in boxes if not box.contains(other)] + [box]
    order = sorted(ranges, key=lambda key: (key[1], key[0], key[3], key[2]))
    return [Conflict(*key, tuple(ranges[key])) for key in order]


def _pairs(touches: Sequence[tuple[int, bool, Access]]) -> Iterator[tuple[int, int, Hazard, Box]]:
    """Overlapping touches of one buffer by two dispatches, at least one of which writes."""
    writes = [touch for touch in touches if touch[1]]
    for at_write in writes:
        for other in touches:
            if other[0] == at_write[0] or (other[1] and other[0] < at_write[0]):
                continue
            common = at_write[2].box.intersection(other[2].box)
            if not common.count:
                continue
            if other[0] > at_write[0]:
                yield at_write[0], other[0], "WAW" if other[1] else "RAW", common
            else:
                yield other[0], at_write[0], "WAR", common


def ancestors(count: int, edges: Mapping[int, int]) -> list[int]:
    """For each position the bit set of those before it, from the bit sets of direct
    predecessors."""
    before = [0] * count
    for position in range(count):
        direct = edges.get(position, 0)
        total = direct
        while direct:
            lowest = direct & -direct
            total |= before[lowest.bit_length() - 1]
            direct ^= lowest
        before[position] = total
    return before


def predecessors(found: Sequence[Conflict]) -> dict[int, int]:
    """Direct predecessors of each position, as bit sets."""
    edges: dict[int, int] = {}
    for conflict in found:
        edges[conflict.second] = edges.get(conflict.second, 0) | 1 << conflict.first
    return edges


def reduced(found: Sequence[Conflict], count: int) -> list[Conflict]:
    """The conflicts that no chain of others orders already."""
    edges = predecessors(found)
    before = ancestors(count, edges)
    implied: dict[int, int] = {}
    for position, direct in edges.items():
        total, rest = 0, direct
        while rest:
            lowest = rest & -rest
            total |= before[lowest.bit_length() - 1]
            rest ^= lowest
        implied[position] = total
    return [c for c in found if not implied[c.second] >> c.first & 1]


def barriers(
    dispatches: Sequence[Dispatch],
    buffers: Mapping[str, Buffer],
    found: Sequence[Conflict],
    *,
    full: bool = False,
) -> list[Barrier]:
    """One barrier for each conflict that is left after the transitive reduction.

    full: every dispatch waits for the one before it, whether they conflict or not."""
    made = []
    for c in reduced(found, len(dispatches)):
        nbytes = sum(box.count for box in c.ranges) * buffers[c.buffer].dtype.itemsize
        made.append(
            Barrier(
                dispatches[c.first].name,
                dispatches[c.second].name,
                c.hazard,
                c.buffer,
                c.ranges,
                nbytes,
            )
        )
    if full:
        ordered = {(barrier.src, barrier.dst) for barrier in made}
        for first, second in itertools.pairwise(dispatches):
            if (first.name, second.name) not in ordered:
                made.append(Barrier(first.name, second.name, "FULL"))
    return made
