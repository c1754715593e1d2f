"""`BoxIndex`: which of many boxes overlap a given one, without looking at all of them.

Input: boxes of one rank, each with an item. Output: the items of those that overlap another box, in
the order in which they were added. Invariant: the answer is that of comparing with every box; only
the number of comparisons differs, O(log n + answers) for boxes that lie apart.

A binary tree over bounding boxes, split at the median along the axis of the largest spread (as in a
k-d tree: Bentley 1975). Trees do not change: boxes that are added wait in a list, and lists merge
into trees of doubling size (Bentley and Saxe, "Decomposable searching problems", 1980).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stagejit.index.bit_sets import bits
from stagejit.index.box import Box

_LEAF = 8  # boxes that are compared one by one
_FEW = 8  # numbers that are looked up one by one

Item = TypeVar("Item")
Point = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Entry(Generic[Item]):
    """A box of an index, to be handed back to `remove`."""

    box: Box
    item: Item
    number: int
    low: Point
    high: Point
    gone: bool = False


@dataclass(frozen=True, eq=False)
class _Node(Generic[Item]):
    """A tree over `entries`, or over those of `parts`."""

    low: Point
    high: Point
    entries: Sequence[Entry[Item]]
    parts: tuple[_Node[Item], ...] = ()


class BoxIndex(Generic[Item]):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._recent: list[Entry[Item]] = []
        self._trees: list[list[Entry[Item]]] = []  # by size, with the tree over each in `_roots`
        self._roots: list[_Node[Item] | None] = []
        self._added = 0

    def add(self, box: Box, item: Item) -> Entry[Item] | None:
        """Adds a box; one without elements overlaps nothing, and has no entry."""
        if not box.count:
            return None
        entry = Entry(box, item, self._added, *box.ends)
        self._recent.append(entry)
        self._added += 1
        if len(self._recent) > _LEAF:
            self._merge()
        return entry

    def remove(self, entry: Entry[Item] | None) -> None:
        """Forgets what `add` gave."""
        if entry is not None:
            entry.gone = True

    def overlapping(self, box: Box) -> list[Item]:
        """Items of the boxes that overlap `box`."""
        return [entry.item for entry in self._found(box)]

    def taken(self, box: Box) -> list[Item]:
        """The same, and forgets these boxes."""
        found = self._found(box)
        for entry in found:
            entry.gone = True
        return [entry.item for entry in found]

    def any_overlaps(self, box: Box) -> bool:
        """Whether one of the boxes overlaps `box`."""
        return bool(self._found(box))

    def remove_within(self, box: Box) -> None:
        """Forgets those of the boxes that lie within `box`."""
        for entry in self._found(box):
            entry.gone = box.contains(entry.box)

    def cut(self, box: Box, chosen: Callable[[Item], bool] = lambda _: True) -> None:
        """Forgets what lies within `box`, of boxes whose items are chosen."""
        for entry in self._found(box):
            if chosen(entry.item):
                entry.gone = True
                for rest in entry.box.minus(box):
                    self.add(rest, entry.item)

    def _found(self, box: Box) -> list[Entry[Item]]:
        if not self._added or not box.count:
            return []
        low, high = box.ends
        near: Sequence[Entry[Item]] = self._recent
        pending = [root for root in self._roots if root is not None]
        if pending:
            near = list(near)
            while pending:
                node = pending.pop()
                if ends_meet(node.low, node.high, low, high):
                    pending += node.parts
                    near += node.entries
        found = [
            entry
            for entry in near
            if not entry.gone
            and ends_meet(entry.low, entry.high, low, high)
            and ((box.is_solid and entry.box.is_solid) or entry.box.overlaps(box))
        ]
        if near is not self._recent:
            found.sort(key=lambda entry: entry.number)
        return found

    def _merge(self) -> None:
        """Moves the recent boxes, and all trees up to the first free size, into one tree."""
        entries, self._recent = self._recent, []
        for at, root in enumerate(self._roots):
            if root is None:
                break
            entries += self._trees[at]
            self._trees[at], self._roots[at] = [], None
        else:
            at = len(self._roots)
            self._trees.append([])
            self._roots.append(None)
        kept = [entry for entry in entries if not entry.gone]
        if kept:
            self._trees[at], self._roots[at] = kept, _tree(kept)


@dataclass(eq=False)
class NumberedBoxes:
    """Boxes, each with a number, to be found by a bit set of numbers."""

    numbers: int = 0
    boxes: dict[int, list[Box]] = field(default_factory=dict)
    index: BoxIndex[tuple[int, Box]] = field(default_factory=BoxIndex)
    waiting: list[tuple[int, Box]] = field(default_factory=list)  # nobody has needed an index yet

    def add(self, number: int, boxes: Sequence[Box]) -> None:
        self.numbers |= 1 << number
        self.boxes.setdefault(number, []).extend(boxes)
        self.waiting += [(number, box) for box in boxes]

    def around(self, box: Box, numbers: int) -> Iterator[Box]:
        """Boxes with one of these numbers, among them all that overlap `box`."""
        known = self.numbers & numbers
        if known.bit_count() <= _FEW:
            for number in bits(known):
                yield from self.boxes[number]
            return
        for item in self.waiting:
            self.index.add(item[1], item)
        self.waiting = []
        for number, one in self.index.overlapping(box):
            if numbers >> number & 1:
                yield one


def cover(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """True where pairwise disjoint boxes fill the shape; False also where some overlap."""
    return fill_box(boxes, Box.whole(shape))


def fill_box(boxes: Sequence[Box], whole: Box) -> bool:
    """The same for boxes within another box."""
    return sum(box.count for box in boxes) == whole.count and are_disjoint(boxes)


def are_disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two of them overlap: of parts side by side one axis tells."""
    for axis in range(len(boxes[0].sizes) if boxes else 0):
        lines = sorted((box.ends[0][axis], box.ends[1][axis]) for box in boxes)
        if all(a[1] < b[0] for a, b in itertools.pairwise(lines)):
            return True
    before: BoxIndex[None] = BoxIndex()
    for box in boxes:
        if before.any_overlaps(box):
            return False
        before.add(box, None)
    return True


def ends_meet(a_low: Point, a_high: Point, low: Point, high: Point) -> bool:
    """Whether two bounding boxes overlap; both ends included."""
    # A loop, which takes half the time of a generator: this is what is asked most.
    for a, b, c, d in zip(a_low, a_high, low, high, strict=True):  # noqa: SIM110
        if a > d or c > b:
            return False
    return True


def _tree(entries: Sequence[Entry[Item]]) -> _Node[Item]:
    low = tuple(min(ends) for ends in zip(*(entry.low for entry in entries), strict=True))
    high = tuple(max(ends) for ends in zip(*(entry.high for entry in entries), strict=True))
    if len(entries) <= _LEAF or not low:
        return _Node(low, high, entries)

    def spread(axis: int) -> int:
        starts = [entry.low[axis] for entry in entries]
        return max(starts) - min(starts)

    axis = max(range(len(low)), key=spread)
    ordered = sorted(entries, key=lambda entry: entry.low[axis])
    middle = len(ordered) // 2
    return _Node(low, high, (), (_tree(ordered[:middle]), _tree(ordered[middle:])))
