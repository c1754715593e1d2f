"""The fewest barriers for the conflicts of a plan, each with the elements that have to settle.

Input: the hazard graph. Output: barriers. Invariant: they settle all conflicts, and no element that
one names is settled without it (but see Note [Many parts]).

Note [What has settled]: a barrier says that `src` is done with its ranges when `dst` starts: what
it has written there can be seen, what it reads there has been read. It says nothing of other
elements. Whoever comes after `dst`, by barriers, counts on it too. So a conflict needs no range of
its own where others on the way name it already: of `copy a -> t[0:64]; copy b -> t[0:2]; read
t[0:64]` the third waits for the second one's t[0:2], behind which is the first one's, and for
t[2:64] of the first.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from stagejit.index.box import Box, hull_of
from stagejit.index.box_index import MOST_PIECES, BoxIndex, NumberedBoxes, left_of
from stagejit.schedule.conflicts.access import Barrier, Buffer, Hazard
from stagejit.schedule.conflicts.hazards import (
    Conflict,
    HazardGraph,
    Touching,
    ancestors,
    before_by,
    hazard_graph,
    predecessors,
)

# So many barriers of a source only settle a part more; see Note [Many parts].
_MOST_BESIDES = 4
_RANK: dict[Hazard, int] = {"ORDER": 0, "RAW": 1, "WAW": 2, "WAR": 3, "FULL": 4}


def reduced(graph: HazardGraph) -> list[Conflict]:
    """Conflicts with as little of their ranges as settles all of them: see Note [What has
    settled]."""
    return _Reduction(graph).run()


class _Reduction:
    """Goes through the positions in order. For each of them sources come latest first: those before
    them cannot settle what is theirs.

    Note [Many parts]: a dispatch that reads all of a buffer of which one after the other overwrites
    a part would have a barrier to each of them. After a few, the next one names what all that come
    after it wait for.
    """

    def __init__(self, graph: HazardGraph) -> None:
        self.graph = graph
        self.after: list[int] | None = None  # ancestors by conflicts
        self.before: list[int] = []  # by barriers
        # By source and buffer: what barriers name, by their targets.
        self.settled: dict[tuple[int, str], NumberedBoxes] = defaultdict(NumberedBoxes)
        self.besides: dict[int, int] = {}  # barriers of a source that order nothing new
        self.closed: dict[int, int] = {}  # after which nothing of a source is left to wait for

    def run(self) -> list[Conflict]:
        made: list[Conflict] = []
        for second in range(len(self.graph)):
            made += sorted(self._waits(second), key=lambda c: (c.first, c.buffer, c.hazard))
        return made

    def _waits(self, second: int) -> Iterator[Conflict]:
        reached = 0
        for first in sorted(self.graph.before[second], reverse=True):
            if self.closed.get(first, 0) & reached:
                continue
            found = self.graph.after[first][second]
            kept = list(self._kept(first, found, reached))
            if kept and reached >> first & 1:
                self.besides[first] = self.besides.get(first, 0) + 1
                if self.besides[first] > _MOST_BESIDES:
                    later = _together([*kept, *self._later(first, second)])
                    kept = list(self._kept(first, later, reached))
                    self.closed[first] = self.closed.get(first, 0) | 1 << second
            for conflict in kept:
                key = first, conflict.buffer
                self.settled[key].add(second, conflict.ranges)
                yield conflict if conflict.second == second else replace(conflict, second=second)
            if kept:
                reached |= self.before[first] | 1 << first
        self.before.append(reached)

    def _kept(self, first: int, found: Sequence[Conflict], reached: int) -> Iterator[Conflict]:
        """What is not settled yet of conflicts with one source."""
        kept: dict[str, BoxIndex[Box]] = {}
        if len(found) > 1:
            found = sorted(found, key=lambda c: (_RANK[c.hazard], c.buffer, c.second))
        for conflict in found:
            mine = kept.setdefault(conflict.buffer, BoxIndex())
            if conflict.hazard == "ORDER":
                if not reached >> first & 1:
                    for box in conflict.ranges:
                        mine.add(box, box)
                    yield conflict
                continue
            known = self.settled[first, conflict.buffer]
            ranges = tuple(_rest(conflict.ranges, mine, known, reached))
            if ranges:
                yield conflict if ranges == conflict.ranges else replace(conflict, ranges=ranges)

    def _later(self, first: int, second: int) -> Iterator[Conflict]:
        """What those wait for that come after `second`, whatever barriers there will be."""
        if self.after is None:
            self.after = ancestors(len(self.graph), predecessors(self.graph))
        for later, conflicts in self.graph.after[first].items():
            if self.after[later] >> second & 1:
                yield from (conflict for conflict in conflicts if conflict.hazard != "ORDER")


def _together(conflicts: Iterable[Conflict]) -> list[Conflict]:
    """One conflict for all of one buffer and hazard; neighbours become one box."""
    found: dict[tuple[str, Hazard], list[Box]] = {}
    made: dict[tuple[str, Hazard], Conflict] = {}
    for conflict in conflicts:
        boxes = found.setdefault((conflict.buffer, conflict.hazard), [])
        for box in conflict.ranges:
            hull, exact = boxes[-1].hull(box) if boxes else (box, False)
            boxes[-1:] = [hull] if exact else [*boxes[-1:], box]
        made.setdefault((conflict.buffer, conflict.hazard), conflict)
    return [replace(made[key], ranges=_fewer(boxes)) for key, boxes in found.items()]


def _fewer(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """The same elements, and a few more where only a run knows what many of the boxes are."""
    unknown = [box for box in boxes if box.static_offsets is None]
    if len(unknown) <= MOST_PIECES:
        return tuple(boxes)
    hull = hull_of(box.widened() for box in unknown)
    return (hull, *(box for box in boxes if box.static_offsets is not None))


def _rest(
    ranges: Sequence[Box], mine: BoxIndex[Box], known: NumberedBoxes, reached: int
) -> Iterator[Box]:
    """Disjoint boxes of what is not settled by `mine`, to which they are added, nor by a barrier to
    one of `reached`. Boxes at unknown places first: they take away more of others than these of
    them."""
    if len(ranges) > 1:
        ranges = sorted(ranges, key=lambda box: box.static_offsets is not None)
    for box in ranges:
        others = itertools.chain(mine.overlapping(box), known.around(box, reached))
        for piece in left_of(box, others, MOST_PIECES):
            mine.add(piece, piece)
            yield piece


def disjoint(boxes: Iterable[Box]) -> list[Box]:
    """Boxes of the same elements, none of them twice."""
    return list(_rest([box for box in boxes if box.count], BoxIndex(), NumberedBoxes(), 0))


def barriers(
    dispatches: Sequence[Touching],
    buffers: Mapping[str, Buffer],
    graph: HazardGraph,
    *,
    full: bool = False,
) -> list[Barrier]:
    """One barrier for each conflict that is left after the reduction.

    full: every dispatch waits for the one before it, whether they conflict or not."""
    made = []
    for c in reduced(graph):
        nbytes = _nbytes(c.buffer, c.ranges, buffers)
        ends = dispatches[c.first].name, dispatches[c.second].name
        made.append(Barrier(*ends, c.hazard, c.buffer, c.ranges, nbytes))
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
    return replace(barrier, ranges=ranges, nbytes=_nbytes(barrier.buffer, ranges, buffers))


def _nbytes(buffer: str, ranges: tuple[Box, ...], buffers: Mapping[str, Buffer]) -> int:
    size = buffers[buffer].dtype.itemsize if buffer else 0
    return sum(box.count for box in ranges) * size


def needed(
    dispatches: Sequence[Touching], barriers: Sequence[Barrier]
) -> Callable[[Barrier], list[Box]]:
    """What has to settle of the source of a barrier for its other end, or for who comes after."""
    names = [dispatch.name for dispatch in dispatches]
    position = {name: at for at, name in enumerate(names)}
    before = before_by(barriers, position)
    found: dict[tuple[str, str], list[tuple[int, Box]]] = {}
    for first, second, conflicts in hazard_graph(dispatches).edges():
        for conflict in conflicts:
            key = names[first], conflict.buffer
            found.setdefault(key, []).extend((second, box) for box in conflict.ranges)

    def of_barrier(barrier: Barrier) -> list[Box]:
        dst = position[barrier.dst]
        of_source = found.get((barrier.src, barrier.buffer), ())
        return [box for at, box in of_source if at == dst or before[at] >> dst & 1]

    return of_barrier
