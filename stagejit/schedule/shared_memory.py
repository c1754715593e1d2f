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
from stagejit.index.box_index import BoxIndex, Entry
from stagejit.schedule.access import Access, Hazard
from stagejit.schedule.hazards import HazardGraph, Ranges, Touching, add_edges, note

# Where one buffer has been touched more often, nobody looks for what it has overwritten itself.
_MOST_LOOKED_AT = 64


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
    memories = {place.memory: _Memory() for place in places.values()}
    for position, dispatch in enumerate(dispatches):
        ranges: Ranges = {}
        touches = [
            _touch(position, access, places[access.buffer], writes=writes)
            for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes))
            for access in accesses
            if access.buffer in places and access.nbytes
        ]
        others = [memories[touch.place.memory].others(touch) for touch in touches]
        for touch, names in zip(touches, others, strict=True):
            for earlier in memories[touch.place.memory].meets(touch, names):
                hazard: Hazard = "WAR" if not earlier.writes else "WAW" if touch.writes else "RAW"
                if earlier.position != position:
                    key = earlier.position, earlier.access.buffer, hazard
                    note(ranges, key, earlier.access.box)
        for touch, names in zip(touches, others, strict=True):
            if touch.leaves_nothing:
                memories[touch.place.memory].overwrite(touch, names)
        for touch in touches:
            memories[touch.place.memory].add(touch)
        add_edges(graph, position, ranges)


@dataclass(frozen=True)
class _Touch:
    """start, stop: the bytes of the memory from its first to its last one."""

    position: int
    writes: bool
    access: Access
    place: Place
    start: int
    stop: int

    @property
    def span(self) -> Box:
        return Box((self.start,), (self.stop - self.start,), (1,))

    @property
    def leaves_nothing(self) -> bool:
        """Whether it writes every byte between its first and its last one."""
        return self.writes and self.stop - self.start == self.access.nbytes


def _touch(position: int, access: Access, place: Place, *, writes: bool) -> _Touch:
    start, stop = access.hull
    return _Touch(position, writes, access, place, place.start + start, place.start + stop)


_Part = tuple[int, int, _Touch]  # bytes of a touch that nobody has written since


@dataclass(eq=False)
class _Memory:
    """What has been touched of one memory since it was overwritten, by buffer. Accesses of the same
    buffer conflict by their boxes, which `hazard_graph` compares."""

    buffers: BoxIndex[str] = field(default_factory=BoxIndex)
    entries: dict[str, Entry[str] | None] = field(default_factory=dict)  # of `buffers`
    touched: dict[str, list[_Part]] = field(default_factory=dict)

    def others(self, touch: _Touch) -> list[str]:
        """The other buffers that were there, and not all of which has been overwritten."""
        found = self.buffers.overlapping(touch.span)
        return [name for name in found if name != touch.access.buffer]

    def meets(self, touch: _Touch, names: Sequence[str]) -> Iterator[_Touch]:
        """Earlier touches of other buffers, one of the two writing."""
        for name in names:
            for start, stop, earlier in self.touched[name]:
                if start < touch.stop and touch.start < stop and (earlier.writes or touch.writes):
                    yield earlier

    def overwrite(self, touch: _Touch, names: Sequence[str]) -> None:
        """Who waits for this touch has waited for those that it covers."""
        mine, start, stop = touch.access.buffer, touch.start, touch.stop
        own = self.touched.get(mine, [])
        if 0 < len(own) <= _MOST_LOOKED_AT:
            own[:] = [part for part in own if part[0] < start or stop < part[1]]
        for name in names:
            left = [
                (low, high, earlier)
                for first, last, earlier in self.touched.get(name, ())
                for low, high in ((first, min(last, start)), (max(first, stop), last))
                if low < high
            ]
            if left:
                self.touched[name] = left
            elif name in self.touched:
                del self.touched[name]
                self.buffers.remove(self.entries[name])

    def add(self, touch: _Touch) -> None:
        name = touch.access.buffer
        if name not in self.touched:
            self.touched[name] = []
            self.entries[name] = self.buffers.add(touch.place.span, name)
        self.touched[name].append((touch.start, touch.stop, touch))


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
