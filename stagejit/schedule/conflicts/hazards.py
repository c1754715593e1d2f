"""Which dispatch has to wait for which: conflicts over subranges.

Input: dispatches in execution order with their accesses. Output: the hazard graph. Invariant: two
dispatches conflict iff boxes of theirs overlap on one buffer and one of them writes, but for
elements that a dispatch between them overwrites: there both conflict with that one.
`memory/shared.py` adds those that meet in memory of two buffers, `reduction.py` makes barriers.

Note [Optimization barriers]: what reads behind one comes after its operands, and after all else
that is before it in program order, too: `jax.checkpoint` computes again in order to save memory,
which it does only if the memory of what came before can be used again. Positions before the last
such barrier come before its readers already.

Note [Unknown offsets]: of boxes at offsets that only a run knows, each may meet each, so that many
of them have a conflict a pair. After some of them the next write waits for all of these, whole, and
whoever might meet one of them comes after that write: by then it has settled.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import networkx as nx

from stagejit.index.bit_sets import bits
from stagejit.index.box import Box, hull_of
from stagejit.index.box_index import BoxIndex, Entry
from stagejit.schedule.conflicts.access import Access, Barrier, Hazard

_MOST_UNKNOWN = 32  # boxes at unknown offsets of one buffer before a write waits for all of them


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


HazardGraph: TypeAlias = "nx.DiGraph[int]"  # of positions; an edge has its `conflicts`


def hazard_graph(dispatches: Sequence[Touching]) -> HazardGraph:
    """Who conflicts with whom on one buffer, but for elements that a dispatch between them has
    overwritten: there both conflict with that one."""
    graph: HazardGraph = nx.DiGraph()
    graph.add_nodes_from(range(len(dispatches)))
    written = {access.buffer for dispatch in dispatches for access in dispatch.writes}
    touched: dict[str, _Touched] = defaultdict(_Touched)
    for position, dispatch in enumerate(dispatches):
        ranges: Ranges = {}
        reads = [access for access in dispatch.reads if access.buffer in written]
        for access in reads:
            touched[access.buffer].written.note(ranges, access, "RAW")
        for access in dispatch.writes:
            touched[access.buffer].read.note(ranges, access, "WAR")
            touched[access.buffer].written.note(ranges, access, "WAW")
        for access in dispatch.writes:
            touched[access.buffer].read.overwrite(ranges, access, position, "WAR")
            touched[access.buffer].written.overwrite(ranges, access, position, "WAW")
        for access in dispatch.writes:
            touched[access.buffer].written.add(access, position)
        for access in reads:
            touched[access.buffer].read.add(access, position)
        add_edges(graph, position, ranges)
    return graph


Ranges = dict[tuple[int, str, Hazard], list[Box]]  # by first position, buffer and hazard


@dataclass(eq=False)
class _Boxes:
    """What has been read, or written, of one buffer since it was last overwritten, and by whom.
    `unknown`: those of which only a run knows where they are. `behind`: where more of these are, if
    they are too many, with the write that waits for them, and its box."""

    boxes: BoxIndex[int] = field(default_factory=BoxIndex)
    unknown: list[Entry[int]] = field(default_factory=list)
    behind: BoxIndex[tuple[int, Box]] | None = None

    def note(self, ranges: Ranges, access: Access, hazard: Hazard) -> None:
        """What `access` has to wait for."""
        for first, common in self.boxes.common(access.box):
            note(ranges, (first, access.buffer, hazard), common)
        for first, box in self.behind.overlapping(access.box) if self.behind else ():
            note(ranges, (first, access.buffer, "ORDER"), box)

    def overwrite(self, ranges: Ranges, access: Access, position: int, hazard: Hazard) -> None:
        """Forgets what a write overwrites; see Note [Unknown offsets]."""
        self.boxes.cut(access.box)
        if self.behind:
            self.behind.cut(access.box)
        if len(self.unknown) > _MOST_UNKNOWN:
            self.unknown = [entry for entry in self.unknown if not entry.gone]
        if len(self.unknown) > _MOST_UNKNOWN:
            hull = hull_of(entry.whole.widened() for entry in self.unknown)
            for entry in self.unknown:
                note(ranges, (entry.item, access.buffer, hazard), entry.whole)
                self.boxes.remove(entry)
            self.behind = self.behind or BoxIndex()
            self.behind.add(hull, (position, access.box))
            self.unknown = []

    def add(self, access: Access, position: int) -> None:
        """What is touched from now on."""
        entry = self.boxes.add(access.box, position)
        if entry is not None and access.box.static_offsets is None:
            self.unknown.append(entry)


@dataclass(frozen=True, eq=False)
class _Touched:
    """Of one buffer."""

    read: _Boxes = field(default_factory=_Boxes)
    written: _Boxes = field(default_factory=_Boxes)


def note(ranges: Ranges, key: tuple[int, str, Hazard], common: Box) -> None:
    """Adds a box to the ranges of a conflict. Those that lie within a solid one stay away. Of one
    at an unknown place other boxes may be left than have all that is left of what lies in it."""
    boxes = ranges.get(key)
    if boxes is None:
        ranges[key] = [common]
    elif not any(_covers(known, common) for known in boxes):
        boxes[:] = [known for known in boxes if not _covers(common, known)] + [common]


def _covers(box: Box, other: Box) -> bool:
    return box == other or (box.is_solid and box.contains(other))


def add_edges(graph: HazardGraph, second: int, ranges: Ranges) -> None:
    """Puts all that a position conflicts with on edges."""
    for key in sorted(ranges):
        first, buffer, hazard = key
        add_conflict(graph, Conflict(first, second, hazard, buffer, tuple(ranges[key])))


def add_conflict(graph: HazardGraph, conflict: Conflict) -> None:
    """Puts a conflict on its edge."""
    first, second = conflict.first, conflict.second
    # Not by `graph.edges`: networkx keeps that view, which refers to its graph, so that both would
    # wait for the garbage collector, with all that is on edges.
    edge = graph.get_edge_data(first, second)
    if edge is None:
        graph.add_edge(first, second, conflicts=[conflict])
    else:
        edge["conflicts"].append(conflict)


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
            if writes and not graph.has_edge(first, second):
                access = writes[0]
                add_conflict(graph, Conflict(first, second, "ORDER", access.buffer, (access.box,)))


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
    for first, after in graph.adjacency():
        bit = 1 << first
        for second in after:
            edges[second] = edges.get(second, 0) | bit
    return edges
