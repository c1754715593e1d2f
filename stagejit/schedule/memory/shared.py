"""Who waits for whom because two buffers share memory.

Input: dispatches in execution order, and where their buffers lie. Output: conflicts, added to a
hazard graph. Invariant: two dispatches conflict iff bytes of theirs meet in memory that two buffers
share, and one of them writes, but where another one between them has written around those bytes:
both conflict with that one.

Note [Shared memory]: a transient may lie where another buffer was before. All of what an access of
the older one touches has to settle before the newer one is touched there: the bytes that the two
have in common have no box in the older one's shape. The range is named in terms of the older
buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import record
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.conflicts.access import Access, Hazard
from stagejit.schedule.conflicts.hazards import HazardGraph, Touching, add_edges
from stagejit.schedule.conflicts.touched import Ranges, note


@record
class Place:
    """Where a buffer lies: in `memory`, from the byte `start` to the byte `stop`."""

    memory: str
    start: int
    stop: int


@record
class _Touch:
    """number: of the buffer; start, stop: its bytes in the memory, from the first to the last."""

    position: int
    writes: bool
    access: Access
    memory: str
    number: int
    start: int
    stop: int

    @property
    def own(self) -> range:
        """The number of its buffer alone."""
        return range(self.number, self.number + 1)

    @property
    def leaves_nothing(self) -> bool:
        """Whether it writes every byte between its first and its last one."""
        return self.writes and self.stop - self.start == self.access.nbytes

    def box(self, of: range, by: range) -> Box:
        """Its bytes, as touches of buffers `of` have them that those of buffers `by` wait for."""
        sizes = len(of), len(by), self.stop - self.start
        return Box((of.start, by.start, self.start), sizes, (1, 1, 1))


def add_shared(
    graph: HazardGraph, dispatches: Sequence[Touching], places: Mapping[str, Place]
) -> None:
    """places: of the buffers that share memory with another one."""
    numbers = {name: number for number, name in enumerate(places)}
    memory_names = {place.memory for place in places.values()}
    memories = {name: _Memory(len(places)) for name in memory_names}
    for position, dispatch in enumerate(dispatches):
        touches = [
            _touch(position, access, places[access.buffer], numbers[access.buffer], writes=writes)
            for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes))
            for access in accesses
            if access.buffer in places and access.nbytes
        ]
        ranges: Ranges = {}
        for touch in touches:
            for earlier in memories[touch.memory].meets(touch):
                hazard: Hazard = "WAR" if not earlier.writes else "WAW" if touch.writes else "RAW"
                key = earlier.position, earlier.access.buffer, hazard
                note(ranges, key, earlier.access.box)
        for touch in touches:
            if touch.writes:
                memories[touch.memory].overwrite(touch)
        for touch in touches:
            memories[touch.memory].add(touch)
        add_edges(graph, position, ranges)


def _touch(position: int, access: Access, place: Place, number: int, *, writes: bool) -> _Touch:
    start, stop = (place.start + end for end in access.hull)
    return _Touch(position, writes, access, place.memory, number, start, stop)


class _Memory:
    """What has been touched of one memory since it was overwritten: by its buffer, by the buffers
    whose accesses still have to wait for it, and by byte. Accesses of the same buffer conflict by
    their boxes, which `hazard_graph` compares."""

    def __init__(self, buffers: int) -> None:
        self.all = range(buffers)
        self.touched: BoxIndex[_Touch] = BoxIndex()

    def meets(self, touch: _Touch) -> Iterator[_Touch]:
        """Earlier touches of other buffers, one of the two writing."""
        for earlier in self.touched.overlapping(touch.box(self.all, touch.own)):
            if earlier.writes or touch.writes:
                yield earlier

    def overwrite(self, touch: _Touch) -> None:
        """Who waits for this write has waited for what it has waited for. Others of its buffer may
        touch elements between those that it writes, and do not wait for it."""
        if touch.leaves_nothing:
            self.touched.cut(touch.box(self.all, self.all))
            return
        for of, by in itertools.product(self._others(touch), repeat=2):
            self.touched.cut(touch.box(of, by))

    def add(self, touch: _Touch) -> None:
        for by in self._others(touch):
            self.touched.add(touch.box(touch.own, by), touch)

    def _others(self, touch: _Touch) -> tuple[range, range]:
        return self.all[: touch.number], self.all[touch.number + 1 :]


def shared(places: Mapping[str, Place]) -> dict[str, Place]:
    """Those that share memory with another one."""
    by_memory: dict[str, list[tuple[int, int, str]]] = {}
    for name, place in places.items():
        if place.start < place.stop:
            by_memory.setdefault(place.memory, []).append((place.start, place.stop, name))
    found: dict[str, Place] = {}
    for in_memory in by_memory.values():
        reach, farthest = -1, ""
        for start, stop, name in sorted(in_memory):
            if start < reach:
                found |= {name: places[name], farthest: places[farthest]}
            if stop > reach:
                reach, farthest = stop, name
    return found
