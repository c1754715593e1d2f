"""What has been touched of one buffer, and what who touches it next has to wait for.

Input: accesses, one dispatch after the other. Output: conflicts with those before. Invariant: what
an access meets of an earlier one is among its conflicts, or has settled by conflicts on the way.

Note [Unknown offsets]: of boxes at offsets that only a run knows, each may meet each, so that many
of them have a conflict a pair. After some of them the next write waits for all of these, whole, and
whoever might meet one of them comes after that write: by then it has settled.

Note [Many versions]: a buffer that is updated part by part, and read after each update, has a
conflict for each two of its versions: each reader waits for all updates before it, each update for
all readers. But a reader comes after the one before it, by which all earlier updates have settled;
and after some updates that each overwrite a part of what one reads, the next one may as well wait
for all of it. So what has settled for whoever comes after a dispatch is kept as one `Group`: those
who do pass it by, others look at its parts.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from stagejit.base.records import record
from stagejit.index.box import Box, hull_of
from stagejit.index.box_index import BoxIndex, Entry
from stagejit.schedule.conflicts.access import Access, Hazard

_MOST_UNKNOWN = 32  # boxes at unknown offsets of one buffer before a write waits for all of them
# Updates that a reader waits for before they become a group; parts of what was read that are
# overwritten, each by who comes after the others, before the next one waits for the rest.
MOST_VERSIONS = 16

Ranges = dict[tuple[int, str, Hazard], list[Box]]  # by first position, buffer and hazard


@dataclass(eq=False)
class Group:
    """Boxes, solid, of positions, or of other groups: all that has settled for whoever comes after
    the position `by`."""

    by: int
    parts: list[tuple[Box, int | Group]]


class Writes:
    """All that is written of a buffer, by position."""

    def __init__(self) -> None:
        self.made: list[tuple[int, Box]] = []
        self._around: list[Box] | None = None  # each and those after it

    def later(self, position: int, box: Box) -> Box:
        """What is written of a solid box after a position, or more of it."""
        if self._around is None:
            self._around = list(
                itertools.accumulate(
                    (each.widened() for _, each in reversed(self.made)), lambda a, b: a.hull(b)[0]
                )
            )[::-1]
        at = bisect.bisect_right(self.made, position, key=itemgetter(0))
        if at == len(self.made):
            return Box(box.offsets, (0,) * len(box.sizes), box.strides)
        hull = self._around[at]
        return box.intersection(hull) if hull.is_solid else box


@dataclass(eq=False)
class Boxes:
    """What has been read, or written, of one buffer since it was last overwritten, and by whom.
    most: see Note [Many versions]; writes: all of the buffer.

    `unknown`: those of which only a run knows where they are. `behind`: where more of these are, if
    they are too many, with the write that waits for them, and its box. `groups`: these, with what
    each is found by, `found_by`. `whole`: what was added, by position; `besides`: how many wait for
    a part of it who come after it anyway."""

    most: float
    writes: Writes
    boxes: BoxIndex[int] = field(default_factory=BoxIndex)
    unknown: list[Entry[int]] = field(default_factory=list)
    behind: BoxIndex[tuple[int, Box]] | None = None
    groups: BoxIndex[Group] | None = None
    found_by: dict[Group, Entry[Group]] | None = None
    whole: dict[int, list[Box]] = field(default_factory=dict)
    besides: dict[int, int] = field(default_factory=dict)

    def note(self, ranges: Ranges, access: Access, hazard: Hazard) -> int:
        """What `access` has to wait for, but for groups; in how many parts."""
        number = 0
        for first, common in self.boxes.common(access.box):
            note(ranges, (first, access.buffer, hazard), common)
            number += 1
        for first, box in self.behind.overlapping(access.box) if self.behind else ():
            note(ranges, (first, access.buffer, "ORDER"), box)
        return number

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
        self.whole.setdefault(position, []).append(access.box)

    # ---------------------------------------------------------------- groups

    def together(self, by: int, entries: Sequence[Entry[int]], groups: Sequence[Group]) -> None:
        """From now on these, which have settled for whoever comes after `by`, are a group."""
        parts: list[tuple[Box, int | Group]] = []
        for entry in entries:
            self.boxes.remove(entry)
            parts.append((entry.box, entry.item))
        for group in groups:
            if self.found_by and group in self.found_by:
                parts.append((self._without(group), group))
        self._add(hull_of(box for box, _ in parts), Group(by, parts))

    def apart(self, group: Group) -> None:
        """The parts of a group are for themselves again."""
        self._without(group)
        for box, part in group.parts:
            if isinstance(part, Group):
                self._add(box, part)
            else:
                self.boxes.add(box, part)
                self.whole.setdefault(part, []).append(box)

    def _add(self, box: Box, group: Group) -> None:
        if self.groups is None or self.found_by is None:
            self.groups, self.found_by = BoxIndex(), {}
        if entry := self.groups.add(box, group):
            self.found_by[group] = entry

    def _without(self, group: Group) -> Box:
        """The box around a group that is not found any more."""
        assert self.groups is not None
        assert self.found_by is not None
        entry = self.found_by.pop(group)
        self.groups.remove(entry)
        return entry.box

    def settled_by_reading(self, access: Access) -> list[Entry[int]]:
        """Written boxes that one reads wholly, if they are many."""
        if not access.box.is_solid:
            return []
        found = self.boxes.entries(access.box)
        inside = [each for each in found if each.box.is_solid and access.box.contains(each.box)]
        return inside if len(inside) > self.most else []

    def waited_for(self, firsts: Iterable[int]) -> list[Entry[int]]:
        """What is left of what those touched, of whom too many have waited for a part already."""
        left: list[Entry[int]] = []
        for first in firsts:
            self.besides[first] = number = self.besides.get(first, 0) + 1
            if number > self.most:
                found = (e for box in self.whole.get(first, ()) for e in self.boxes.entries(box))
                own = list(dict.fromkeys(entry for entry in found if entry.item == first))
                if all(entry.box.is_solid for entry in own):
                    left += own
        return left


@record(eq=False)
class Touched:
    """Of one buffer."""

    read: Boxes
    written: Boxes

    @classmethod
    def of(cls, writes: Writes, most: float | None) -> Touched:
        """writes: all of it; most: see Note [Many versions]."""
        most = MOST_VERSIONS if most is None else most
        return cls(Boxes(most, writes), Boxes(most, writes))


class Asked(NamedTuple):
    """What an access asks for its conflicts of one hazard. parts: of how many boxes there are."""

    boxes: Boxes
    access: Access
    hazard: Hazard
    parts: int

    @classmethod
    def of(cls, boxes: Boxes, access: Access, hazard: Hazard, ranges: Ranges) -> Asked:
        """Adds conflicts with what is in no group."""
        return cls(boxes, access, hazard, boxes.note(ranges, access, hazard))


def settle(asked: Sequence[Asked], ranges: Ranges, before: Sequence[int]) -> int:
    """Adds what an access has to wait for of groups, and makes groups of what has settled for
    whoever comes after it; see Note [Many versions]. ranges: its conflicts with what is in no
    group. before: by position a bit set of who comes before it; returns that of this one."""
    reached = 0
    for first, _, _ in ranges:
        reached |= before[first] | 1 << first
    if not ranges and not any(each.boxes.groups for each in asked):
        return reached
    passed: dict[int, list[Group]] = {}
    for number, each in enumerate(asked):
        if each.boxes.groups:
            found = each.boxes.groups.overlapping(each.access.box)
            passed[number], opened, reached = _passed(found, each, ranges, before, reached)
            for group in opened if each.hazard != "RAW" else ():
                each.boxes.apart(group)
    for number, each in enumerate(asked):
        settled: Sequence[Entry[int]] = ()
        if each.hazard == "RAW" and each.parts > each.boxes.most:
            settled = each.boxes.settled_by_reading(each.access)
        elif each.hazard == "WAR" and each.parts:
            settled = _wait_for_all(each, ranges, before)
        if settled:
            each.boxes.together(len(before), settled, passed.get(number, ()))
    return reached


def _passed(
    groups: Iterable[Group], asked: Asked, ranges: Ranges, before: Sequence[int], reached: int
) -> tuple[list[Group], list[Group], int]:
    """Of groups those that have settled, those that have not, and who comes before: the conflicts
    with parts of these are added."""
    access, passed, opened = asked.access, list[Group](), list[Group]()
    numbers = itertools.count()
    pending = [(-group.by, next(numbers), group, True) for group in groups]
    heapq.heapify(pending)
    while pending:  # the latest first: those before it cannot settle what is its own
        _, _, group, is_found = heapq.heappop(pending)
        if reached >> group.by & 1:
            passed += [group] if is_found else []
            continue
        opened += [group] if is_found else []
        for box, part in group.parts:
            if not box.overlaps(access.box):
                continue
            if isinstance(part, Group):
                heapq.heappush(pending, (-part.by, next(numbers), part, False))
            else:
                common = box.intersection(access.box)
                note(ranges, (part, access.buffer, asked.hazard), common)
                reached |= before[part] | 1 << part
    return passed, opened, reached


def _wait_for_all(asked: Asked, ranges: Ranges, before: Sequence[int]) -> list[Entry[int]]:
    """What a write waits for wholly of those who have read a part that it overwrites, and come
    before it by others, too: for those who come after it, it has settled."""
    others = 0
    for first, _, _ in ranges:
        others |= before[first]
    key = asked.access.buffer, asked.hazard
    firsts = [first for first, *of in ranges if tuple(of) == key and others >> first & 1]
    left = asked.boxes.waited_for(firsts)
    for entry in left:
        if (rest := asked.boxes.writes.later(len(before), entry.box)).count:
            note(ranges, (entry.item, *key), rest)
    return left


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
