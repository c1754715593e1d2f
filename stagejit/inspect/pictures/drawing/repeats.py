"""Repeated layers: parts of a sequence that are alike, one after the other.

Input: a label of each thing, where equal ones look the same; in an order in which everything comes
after what it needs. Output: `Part`s, which make up the sequence. Invariant: every position is in
one column of one part, and all positions of a column have equal labels.

A label that comes again and again is an anchor: it cuts the sequence into copies, of which those
are taken together that have most of their labels in common. Layers of a network need not be
compiled alike: what their neighbours need decides what is fused. So a part has a column for
whatever is in some of its copies. Of all parts those are taken that leave away most; what is in
between is looked at again, a few times. So the time is about linear in the length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_ALIKE = 0.7  # of the labels of two neighbours have to be the same
_MOST_ANCHORS = 48  # that are tried in a stretch
_LARGE = 8  # a part that leaves away this part of a stretch is taken alone
_DEEPEST = 4  # stretches between parts that are looked at, and those between theirs


@dataclass(frozen=True)
class Part:
    """Positions from `starts[0]` up to `stop`, of which each copy begins at one of `starts`.

    columns: positions of which one may stand for the others, in the order of a copy.
    """

    starts: tuple[int, ...]
    stop: int
    columns: tuple[tuple[int, ...], ...]

    @property
    def copies(self) -> int:
        return len(self.starts)

    @property
    def saved(self) -> int:
        return self.stop - self.starts[0] - len(self.columns)


def single(start: int, stop: int) -> Part:
    """What does not repeat."""
    return Part((start,), stop, tuple((at,) for at in range(start, stop)))


def parts_of(of: Sequence[Hashable]) -> list[Part]:
    """The sequence as repeated parts, and parts in between, which have one copy. of: its labels."""
    numbers: dict[Hashable, int] = {}
    labels = [numbers.setdefault(label, len(numbers)) for label in of]
    made: list[Part] = []
    todo = [(0, len(labels), 0)]
    while todo:
        start, stop, depth = todo.pop()
        found = _found(labels, start, stop) if depth < _DEEPEST else []
        if not found and start < stop:
            made.append(single(start, stop))
        made += found
        if found:
            depth += sum(part.stop - part.starts[0] for part in found) < (stop - start) / _LARGE
            ends = [start, *(end for part in found for end in (part.starts[0], part.stop)), stop]
            todo += [(a, b, depth) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    return sorted(made, key=lambda part: part.starts[0])


def _found(labels: Sequence[int], start: int, stop: int) -> list[Part]:
    """The part of a stretch that leaves away most, or several, where it leaves away little: where
    the others end may depend on where a large one begins."""
    candidates = list(_candidates(labels, start, stop))
    best = max(candidates, key=lambda part: part.saved, default=None)
    if best is not None and best.saved > (stop - start) / _LARGE:
        return [best]
    return _apart(candidates)


def _apart(candidates: Iterable[Part]) -> list[Part]:
    """Those that leave away most, in order, of which no two have a position in common."""
    found: list[Part] = []
    for part in sorted(candidates, key=lambda part: (-part.saved, part.starts[0])):
        at = bisect_left(found, part.starts[0], key=lambda other: other.starts[0])
        before = at == 0 or found[at - 1].stop <= part.starts[0]
        if before and (at == len(found) or part.stop <= found[at].starts[0]):
            found.insert(at, part)
    return found


def _candidates(labels: Sequence[int], start: int, stop: int) -> Iterator[Part]:
    """Parts within a stretch. The earlier anchor comes first, so that of equal ones it is taken."""
    places: dict[int, list[int]] = defaultdict(list)
    for at in range(start, stop):
        places[labels[at]].append(at)
    anchors = [found for found in places.values() if len(found) > 1][:_MOST_ANCHORS]
    for anchor in anchors:
        yield from _parts_at(labels, anchor, stop)


def _parts_at(labels: Sequence[int], anchor: Sequence[int], stop: int) -> Iterator[Part]:
    """Neighbours that are alike, of the copies between an anchor and the next one."""
    starts: list[int] = []
    for first, second in zip(anchor, [*anchor[1:], None], strict=True):
        if starts:
            length = first - starts[-1]
            end = second if second is not None else min(first + length, stop)
            end = min(end, first + length + length // 2)  # the last copy of some ends somewhere
            if _alike(labels[starts[-1] : first], labels[first:end]):
                starts.append(first)
                continue
            yield from _part(labels, starts, stop)
        starts = [first]
    yield from _part(labels, starts, stop)


def _alike(one: Sequence[int], other: Sequence[int]) -> bool:
    common = (Counter(one) & Counter(other)).total()
    return common >= _ALIKE * max(len(one), len(other))


def _part(labels: Sequence[int], starts: Sequence[int], stop: int) -> Iterator[Part]:
    """That of these copies, if it is worth a frame: two small things of a kind are sooner seen."""
    if len(starts) < 2:
        return
    length = starts[-1] - starts[-2]
    end = min(starts[-1] + length, stop)
    bounds = [*starts, end]
    columns: dict[tuple[int, int], list[int]] = {}
    places: dict[tuple[int, int], float] = {}
    for first, last in pairwise(bounds):
        seen: Counter[int] = Counter()
        for at in range(first, last):
            key = labels[at], seen[labels[at]]
            seen[labels[at]] += 1
            columns.setdefault(key, []).append(at)
            places[key] = places.get(key, 0.0) + (at - first) / (last - first)
    ordered = sorted(columns, key=lambda key: places[key] / len(columns[key]))
    part = Part(tuple(starts), end, tuple(tuple(columns[key]) for key in ordered))
    if part.copies > 2 or length > 3:
        yield part
