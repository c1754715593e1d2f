"""Which dispatch has to wait for which: conflicts over subranges.

Input: dispatches in execution order with their accesses. Output: the hazard graph. Invariant: two
dispatches conflict iff boxes of theirs overlap on one buffer and one of them writes, but for
elements that a dispatch between them overwrites, where both conflict with that one, and for what
has settled by other conflicts where there are many. `memory/shared.py` adds those that meet in
memory of two buffers, `reduction.py` makes barriers.

Note [Optimization barriers]: what reads behind one comes after its operands, and after all else
that is before it in program order, too: `jax.checkpoint` computes again in order to save memory,
which it does only if the memory of what came before can be used again. Positions before the last
such barrier come before its readers already.

See Note [Unknown offsets] and Note [Many versions] of `touched.py` for what is left out of it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from stagejit.base.records import record
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box
from stagejit.schedule.conflicts.access import Access, Barrier, Hazard
from stagejit.schedule.conflicts.touched import Asked, Ranges, Touched, Writes, settle


class Touching(Protocol):
    """A dispatch, as far as hazards are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[Access, ...]: ...
    @property
    def writes(self) -> tuple[Access, ...]: ...


@record
class Conflict:
    """`second` (a position in the order) must wait for `first`: they touch `ranges` of `buffer`."""

    first: int
    second: int
    hazard: Hazard
    buffer: str
    ranges: tuple[Box, ...]


class HazardGraph:
    """Which positions conflict with which: their conflicts, found from either end. A graph in
    dictionaries: see Note [networkx is loaded late] of `graph/links.py`."""

    def __init__(self, count: int) -> None:
        self.after: list[dict[int, list[Conflict]]] = [{} for _ in range(count)]
        self.before: list[dict[int, list[Conflict]]] = [{} for _ in range(count)]

    def __len__(self) -> int:
        return len(self.after)

    def edges(self) -> Iterator[tuple[int, int, list[Conflict]]]:
        """First, second and conflicts of all that conflict."""
        for first, after in enumerate(self.after):
            for second, conflicts in after.items():
                yield first, second, conflicts

    def add(self, conflict: Conflict) -> None:
        """Puts a conflict on its edge."""
        first, second = conflict.first, conflict.second
        if second not in self.after[first]:
            self.after[first][second] = self.before[second][first] = []
        self.after[first][second].append(conflict)


def hazard_graph(dispatches: Sequence[Touching], most: float | None = None) -> HazardGraph:
    """Who conflicts with whom on one buffer, but for elements that a dispatch between them has
    overwritten: there both conflict with that one. most: see Note [Many versions]."""
    graph = HazardGraph(len(dispatches))
    if len(dispatches) < 2:
        return graph
    touched, before = _touched(dispatches, most), list[int]()
    for position, dispatch in enumerate(dispatches):
        ranges: Ranges = {}
        reads = [access for access in dispatch.reads if access.buffer in touched]
        asked = [Asked.of(touched[each.buffer].written, each, "RAW", ranges) for each in reads]
        for access in dispatch.writes:
            asked.append(Asked.of(touched[access.buffer].read, access, "WAR", ranges))
            asked.append(Asked.of(touched[access.buffer].written, access, "WAW", ranges))
        before.append(settle(asked, ranges, before))
        for boxes, access, hazard, _ in asked:
            if hazard != "RAW":
                boxes.overwrite(ranges, access, position, hazard)
        for access in dispatch.writes:
            touched[access.buffer].written.add(access, position)
        for access in reads:
            touched[access.buffer].read.add(access, position)
        add_edges(graph, position, ranges)
    return graph


def _touched(dispatches: Sequence[Touching], most: float | None) -> dict[str, Touched]:
    """By buffers that are written."""
    writes: dict[str, Writes] = defaultdict(Writes)
    for position, dispatch in enumerate(dispatches):
        for access in dispatch.writes:
            writes[access.buffer].made.append((position, access.box))
    return {buffer: Touched.of(each, most) for buffer, each in writes.items()}


def add_edges(graph: HazardGraph, second: int, ranges: Ranges) -> None:
    """Puts all that a position conflicts with on edges."""
    for key in sorted(ranges):
        first, buffer, hazard = key
        graph.add(Conflict(first, second, hazard, buffer, tuple(ranges[key])))


def add_orders(
    graph: HazardGraph, dispatches: Sequence[Touching], behind: Iterable[Collection[int]]
) -> None:
    """Adds what optimization barriers order besides: see Note [Optimization barriers].

    behind: for each of them the positions that read behind it.
    """
    start, last = 0, 0
    for readers in sorted(sorted(readers) for readers in behind if readers):
        if readers[0] > last:
            start, last = last, readers[0]
        for first, second in itertools.product(range(start, last), readers):
            writes = dispatches[first].writes
            if writes and second not in graph.after[first]:
                access = writes[0]
                graph.add(Conflict(first, second, "ORDER", access.buffer, (access.box,)))


def ancestors(count: int, edges: Mapping[int, int]) -> list[int]:
    """For each position the bit set of those before it, from the bit sets of direct
    predecessors."""
    before = [0] * count
    for position in range(count):
        before[position] = direct = edges.get(position, 0)
        for earlier in bits(direct):
            before[position] |= before[earlier]
    return before


def before_by(barriers: Iterable[Barrier], position: Mapping[str, int]) -> list[int]:
    """For each position the bit set of those that barriers put before it. position: of dispatches,
    by name."""
    direct: dict[int, int] = {}
    for barrier in barriers:
        second = position[barrier.dst]
        direct[second] = direct.get(second, 0) | 1 << position[barrier.src]
    return ancestors(len(position), direct)


def predecessors(graph: HazardGraph) -> dict[int, int]:
    """Direct predecessors of each position, as bit sets."""
    edges: dict[int, int] = {}
    for first, second, _ in graph.edges():
        edges[second] = edges.get(second, 0) | 1 << first
    return edges
