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
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

from stagejit.base.records import record
from stagejit.base.symbolic import Undecided
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box, Point, ends_meet

_LEAF = 8  # boxes that are compared one by one
MOST_PIECES = 64  # more are not told apart: what they are pieces of is named instead
_FEW = 8  # numbers that are looked up one by one

Item = TypeVar("Item")
_BY_AGE = attrgetter("number", "low")


@dataclass(eq=False, slots=True)
class Entry(Generic[Item]):
    """What is left of the box `whole` of an index, or a part of it; to be handed back to `remove`.
    number: how many were added before the whole one."""

    box: Box
    whole: Box
    item: Item
    number: int
    low: Point
    high: Point
    gone: bool = False


@record(eq=False)
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
        self._trees: list[tuple[list[Entry[Item]], _Node[Item]] | None] = []  # by size
        self._added = 0

    def add(self, box: Box, item: Item) -> Entry[Item] | None:
        """Adds a box; one without elements overlaps nothing, and has no entry."""
        if not box.count:
            return None
        entry = Entry(box, box, item, self._added, *box.ends)
        self._added += 1
        self._insert(entry)
        return entry

    def remove(self, entry: Entry[Item] | None) -> None:
        """Forgets what `add` gave."""
        if entry is not None:
            entry.gone = True

    def overlapping(self, box: Box) -> list[Item]:
        """Items of the boxes that overlap `box`, one for each part that is left of a box."""
        return [entry.item for entry in self._found(box)]

    def entries(self, box: Box) -> list[Entry[Item]]:
        """What is left of the boxes that overlap `box`, in the order in which they were added."""
        return self._found(box)

    def taken(self, box: Box) -> list[Item]:
        """The same, and forgets these boxes."""
        return [entry.item for entry in self.take(box)]

    def take(self, box: Box) -> list[Entry[Item]]:
        """The same, to be put back, if at all, before another box is added."""
        found = self._found(box)
        for entry in found:
            entry.gone = True
        return found

    def put_back(self, entries: Iterable[Entry[Item]]) -> None:
        """As if these had not been taken."""
        for entry in entries:
            entry.gone = False

    def any_overlaps(self, box: Box) -> bool:
        """Whether one of the boxes overlaps `box`."""
        return bool(self._found(box))

    def common(self, box: Box) -> Iterator[tuple[Item, Box]]:
        """The items of `overlapping`, with boxes of what they have in common with `box`."""
        for _, entries in itertools.groupby(self._found(box), key=lambda entry: entry.number):
            parts = list(entries)
            item, whole = parts[0].item, parts[0].whole
            told_apart = box.is_solid and len(parts) <= MOST_PIECES
            for part in (part.box for part in parts) if told_apart else (whole,):
                yield item, part.intersection(box)

    def cut(self, box: Box) -> None:
        """Forgets what lies within `box`; of two that are not both solid, all of it or nothing:
        where they meet may be known at run time only."""
        for entry in self._found(box):
            if (box.is_solid and entry.whole.is_solid) or box.contains(entry.whole):
                entry.gone = True
                for rest in entry.box.minus(box):
                    self._insert(Entry(rest, entry.whole, entry.item, entry.number, *rest.ends))

    def _insert(self, entry: Entry[Item]) -> None:
        self._recent.append(entry)
        if len(self._recent) > _LEAF:
            self._merge()

    def _found(self, box: Box) -> list[Entry[Item]]:
        if not self._added or not box.count:
            return []
        low, high = box.ends
        near = self._recent
        pending = [tree[1] for tree in self._trees if tree is not None]
        while pending:
            node = pending.pop()
            if ends_meet(node.low, node.high, low, high):
                pending += node.parts
                near = [*near, *node.entries]
        is_solid = box.is_solid
        found = [
            entry
            for entry in near
            if not entry.gone
            and ends_meet(entry.low, entry.high, low, high)
            and ((is_solid and entry.box.is_solid) or entry.box.overlaps(box))
        ]
        if len(found) > 1:
            found.sort(key=_BY_AGE)
        return found

    def _merge(self) -> None:
        """Moves the recent boxes, and all trees up to the first free size, into one tree."""
        entries, self._recent = self._recent, []
        for at, tree in enumerate(self._trees):
            if tree is None:
                break
            entries += tree[0]
            self._trees[at] = None
        else:
            at = len(self._trees)
            self._trees.append(None)
        kept = [entry for entry in entries if not entry.gone]
        if kept:
            self._trees[at] = kept, _tree(kept)


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


def left_of(box: Box, others: Iterable[Box], most: float = math.inf) -> list[Box]:
    """Disjoint boxes of all elements of `box` that are not, for certain, in one of `others`; the
    box itself where these would be more than `most`.

    In any order of `others`: a strided one that may leave too much comes when little is left. What
    lies in one of two others, but in which is known at run time only, lies around its box."""
    ordered = sorted(others, key=lambda other: not other.is_solid)
    if not ordered:
        return [box] if box.count else []
    pieces = _without(box, ordered, most)
    return [
        piece
        for piece in pieces
        if piece.static_offsets is not None or _without(piece.widened(), ordered, most)
    ]


def _without(box: Box, others: Sequence[Box], most: float) -> list[Box]:
    pieces = [box] if box.count else []
    for other in others:
        pieces = [part for piece in pieces for part in piece.minus(other)]
        if not pieces:
            break
        if len(pieces) > most:
            return [box]
    return pieces


def cover(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """True where pairwise disjoint boxes fill the shape; False also where some overlap."""
    return fill_box(boxes, Box.whole(shape))


def surely_cover(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """The same, and False where sizes that are symbols leave it open."""
    try:
        return cover(boxes, shape)
    except Undecided:
        return False


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
