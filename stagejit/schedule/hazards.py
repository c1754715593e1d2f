"""Which dispatch has to wait for which: conflicts over subranges, and the fewest barriers for them.

Input: dispatches in execution order with their accesses. Output: conflicts and barriers. Invariant:
two dispatches conflict iff boxes of theirs overlap on one buffer and one of them writes; barriers
are the transitive reduction of the conflicts, each naming the elements in conflict.

Note [Optimization barriers]: what reads behind one comes after its operands, and after all else
that is before it in program order, too: `jax.checkpoint` computes again in order to save memory,
which it does only if the memory of what came before can be used again. Positions before the last
such barrier come before its readers already.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.access import Access, Barrier, Buffer, Hazard


class Touching(Protocol):
    """A dispatch, as far as hazards are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[Access, ...]: ...
    @property
    def writes(self) -> tuple[Access, ...]: ...


@dataclass(frozen=True)
class Conflict:
    """`second` (a position in the order) must wait for `first`: they touch `ranges` of `buffer`."""

    first: int
    second: int
    hazard: Hazard
    buffer: str
    ranges: tuple[Box, ...]


def conflicts(dispatches: Sequence[Touching]) -> list[Conflict]:
    """The pairs in conflict, in order, but those that meet in elements which a dispatch between
    them has overwritten: both conflict with that one."""
    ranges: dict[tuple[int, int, Hazard, str], list[Box]] = {}
    touched: dict[str, _Touched] = {}
    for position, dispatch in enumerate(dispatches):
        for access in dispatch.reads:
            of_buffer = touched.setdefault(access.buffer, _Touched())
            for first, box in of_buffer.written.overlapping(access.box):
                _note(ranges, (first, position, "RAW", access.buffer), box, access.box)
        for access in dispatch.writes:
            of_buffer = touched.setdefault(access.buffer, _Touched())
            for first, box in of_buffer.read.overlapping(access.box):
                _note(ranges, (first, position, "WAR", access.buffer), box, access.box)
            for first, box in of_buffer.written.overlapping(access.box):
                _note(ranges, (first, position, "WAW", access.buffer), box, access.box)
        for access in dispatch.writes:
            touched[access.buffer].read.remove_within(access.box)
            touched[access.buffer].written.remove_within(access.box)
        for access in dispatch.writes:
            touched[access.buffer].written.add(access.box, (position, access.box))
        for access in dispatch.reads:
            touched[access.buffer].read.add(access.box, (position, access.box))
    order = sorted(ranges, key=lambda key: (key[1], key[0], key[3], key[2]))
    return [Conflict(*key, tuple(ranges[key])) for key in order]


@dataclass(frozen=True, eq=False)
class _Touched:
    """What has been read and written of one buffer since it was last overwritten, and by whom."""

    read: BoxIndex[tuple[int, Box]] = field(default_factory=BoxIndex)
    written: BoxIndex[tuple[int, Box]] = field(default_factory=BoxIndex)


def _note(
    ranges: dict[tuple[int, int, Hazard, str], list[Box]],
    key: tuple[int, int, Hazard, str],
    one: Box,
    other: Box,
) -> None:
    """Adds what two boxes have in common to the ranges of a conflict."""
    common, boxes = one.intersection(other), ranges.setdefault(key, [])
    if not any(known.contains(common) for known in boxes):
        boxes[:] = [known for known in boxes if not common.contains(known)] + [common]


def with_orders(
    found: Sequence[Conflict], dispatches: Sequence[Touching], behind: Iterable[Collection[int]]
) -> list[Conflict]:
    """Conflicts, and what optimization barriers order besides: see Note [Optimization barriers].

    behind: for each of them the positions that read behind it.
    """
    known = {(conflict.first, conflict.second) for conflict in found}
    more, start, last = [], 0, 0
    for readers in sorted(sorted(readers) for readers in behind if readers):
        if readers[0] > last:
            start, last = last, readers[0]
        for first, second in itertools.product(range(start, last), readers):
            writes = dispatches[first].writes
            if writes and (first, second) not in known:
                known.add((first, second))
                access = writes[0]
                more.append(Conflict(first, second, "ORDER", access.buffer, (access.box,)))
    return sorted([*found, *more], key=lambda c: (c.second, c.first, c.buffer, c.hazard))


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
    dispatches: Sequence[Touching],
    buffers: Mapping[str, Buffer],
    found: Sequence[Conflict],
    *,
    full: bool = False,
) -> list[Barrier]:
    """One barrier for each conflict that is left after the transitive reduction.

    full: every dispatch waits for the one before it, whether they conflict or not."""
    made = []
    for c in reduced(found, len(dispatches)):
        barrier = Barrier(dispatches[c.first].name, dispatches[c.second].name, c.hazard, c.buffer)
        made.append(with_ranges(barrier, c.ranges, buffers))
    if full:
        ordered = {(barrier.src, barrier.dst) for barrier in made}
        for first, second in itertools.pairwise(dispatches):
            if (first.name, second.name) not in ordered:
                made.append(Barrier(first.name, second.name, "FULL"))
    return made


def with_ranges(
    barrier: Barrier, ranges: tuple[Box, ...], buffers: Mapping[str, Buffer]
) -> Barrier:
    """The barrier for these boxes of its buffer."""
    size = buffers[barrier.buffer].dtype.itemsize if barrier.buffer else 0
    return replace(barrier, ranges=ranges, nbytes=sum(box.count for box in ranges) * size)
