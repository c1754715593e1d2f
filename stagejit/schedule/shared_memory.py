"""Who waits for whom because two buffers share memory.

Input: dispatches in execution order, and where their buffers lie. Output: conflicts, added to a
hazard graph. Invariant: two dispatches conflict iff bytes of theirs meet in memory that two buffers
share, and one of them writes, but where another one between them has written all of those bytes:
both conflict with that one.

Note [Shared memory]: a transient may lie where another buffer was before. All of what an access of
the older one touches has to settle before the newer one is touched there: the bytes that the two
have in common have no box in the older one's shape. The range is named in terms of the older
buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.access import Access, Hazard
from stagejit.schedule.hazards import HazardGraph, Ranges, Touching, add_edges, note


@dataclass(frozen=True)
class Place:
    """Where a buffer lies: in `memory`, from the byte `start` to the byte `stop`."""

    memory: str
    start: int
    stop: int

    @property
    def span(self) -> Box:
        return Box((self.start,), (self.stop - self.start,), (1,))


def add_shared(
    graph: HazardGraph, dispatches: Sequence[Touching], places: Mapping[str, Place]
) -> None:
    """places: of the buffers that share memory with another one."""
    memories = {place.memory: _Memory(places) for place in places.values()}
    for position, dispatch in enumerate(dispatches):
        ranges: Ranges = {}
        touches = [
            _touch(position, access, places[access.buffer], writes=writes)
            for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes))
            for access in accesses
            if access.buffer in places and access.nbytes
        ]
        for touch in touches:
            for earlier in memories[touch.place.memory].meets(touch):
                hazard: Hazard = "WAR" if not earlier.writes else "WAW" if touch.writes else "RAW"
                if earlier.position != position:
                    key = earlier.position, earlier.access.buffer, hazard
                    note(ranges, key, earlier.access.box)
        for touch in touches:
            memories[touch.place.memory].overwrite(touch)
        for touch in touches:
            memories[touch.place.memory].add(touch)
        add_edges(graph, position, ranges)


@dataclass(frozen=True)
class _Touch:
    """span: the bytes of the memory from its first to its last one."""

    position: int
    writes: bool
    access: Access
    place: Place
    span: Box

    @property
    def leaves_nothing(self) -> bool:
        """Whether it writes every byte between its first and its last one."""
        start, stop = self.access.hull
        return self.writes and stop - start == self.access.nbytes


def _touch(position: int, access: Access, place: Place, *, writes: bool) -> _Touch:
    start, stop = access.hull
    span = Box((place.start + start,), (stop - start,), (1,))
    return _Touch(position, writes, access, place, span)


@dataclass(eq=False)
class _Memory:
    """What has been touched of one memory since it was overwritten, by buffer. Accesses of the same
    buffer conflict by their boxes, which `hazard_graph` compares."""

    places: Mapping[str, Place]
    buffers: BoxIndex[str] = field(default_factory=BoxIndex)
    touched: dict[str, dict[bool, BoxIndex[_Touch]]] = field(default_factory=dict)

    def _others(self, touch: _Touch) -> list[str]:
        found = self.buffers.overlapping(touch.span)
        return [name for name in found if name != touch.access.buffer]

    def meets(self, touch: _Touch) -> Iterator[_Touch]:
        """Earlier touches of other buffers, one of the two writing."""
        for name in self._others(touch):
            for writes in (True, False) if touch.writes else (True,):
                yield from self.touched[name][writes].overlapping(touch.span)

    def overwrite(self, touch: _Touch) -> None:
        """Who waits for this touch has waited for those that it covers."""
        if not touch.leaves_nothing:
            return
        span, mine = touch.span, touch.access.buffer
        for index in self.touched.get(mine, {}).values():
            index.remove_within(span)
        for name in self._others(touch):
            whole = self.places[name].span
            for index in self.touched[name].values():
                index.cut(span)
            if not any(index.any_overlaps(whole) for index in self.touched[name].values()):
                del self.touched[name]
                self.buffers.cut(whole, name.__eq__)

    def add(self, touch: _Touch) -> None:
        name = touch.access.buffer
        if name not in self.touched:
            self.touched[name] = {True: BoxIndex(), False: BoxIndex()}
            self.buffers.add(touch.place.span, name)
        self.touched[name][touch.writes].add(touch.span, touch)


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
