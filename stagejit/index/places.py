"""A total order in which things move: who comes first of two is a comparison of two numbers.

Input: things in their order. Output: a number of each, its place. Invariant: places are those of
the order; only what moves gets other ones, but where no number is left between two neighbours.

Note [Numbers between]: what moves to a neighbour's side gets numbers between that and the next one.
After so many moves to one place that there is none, all are numbered anew (Dietz and Sleator, "Two
algorithms for maintaining order in a list", 1987, whose second one renumbers fewer of them).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_GAP = 1 << 256  # so many halvings are between two neighbours at first


class Places(Generic[T]):
    """`_before`, `_after`: the neighbours of each, None at the ends."""

    def __init__(self, things: Iterable[T]) -> None:
        self._before: dict[T, T | None] = {}
        self._after: dict[T, T | None] = {}
        self._first: T | None = None
        last: T | None = None
        for thing in things:
            self._join(last, thing)
            last = thing
        self._join(last, None)
        self._number()

    def __contains__(self, thing: object) -> bool:
        return thing in self._place

    def __getitem__(self, thing: T) -> int:
        return self._place[thing]

    def get(self, thing: T, default: int) -> int:
        """The place of what has one."""
        return self._place.get(thing, default)

    def drop(self, thing: T) -> None:
        """From now on it has none."""
        if thing in self._place:
            self._unlink(thing)
            del self._place[thing]

    def replace(self, old: T, new: T) -> None:
        """`new`, which has no place, gets that of `old`."""
        self._join(self._before.pop(old), new)
        self._join(new, self._after.pop(old))
        self._place[new] = self._place.pop(old)

    def move_before(self, things: Sequence[T], other: T) -> None:
        """They come right before `other`, which is none of them, in the order that they have."""
        things = self._taken(things)
        self._put(self._before[other], things, other)

    def move_after(self, things: Sequence[T], other: T) -> None:
        """They come right after `other`, which is none of them, in the order that they have."""
        things = self._taken(things)
        self._put(other, things, self._after[other])

    def in_order(self, things: Iterable[T]) -> list[T]:
        """Those that have a place, by that."""
        return sorted((one for one in things if one in self._place), key=self._place.__getitem__)

    def __iter__(self) -> Iterator[T]:
        thing = self._first
        while thing is not None:
            yield thing
            thing = self._after[thing]

    def _taken(self, things: Sequence[T]) -> list[T]:
        things = self.in_order(things)
        for thing in things:
            self._unlink(thing)
        return things

    def _put(self, before: T | None, things: Sequence[T], after: T | None) -> None:
        last = before
        for thing in things:
            self._join(last, thing)
            last = thing
        self._join(last, after)
        low = 0 if before is None else self._place[before]
        high = low + _GAP * (len(things) + 1) if after is None else self._place[after]
        step = (high - low) // (len(things) + 1)
        if not step:
            self._number()
            return
        for number, thing in enumerate(things, 1):
            self._place[thing] = low + number * step

    def _unlink(self, thing: T) -> None:
        self._join(self._before.pop(thing), self._after.pop(thing))

    def _join(self, before: T | None, after: T | None) -> None:
        if before is None:
            self._first = after
        else:
            self._after[before] = after
        if after is not None:
            self._before[after] = before

    def _number(self) -> None:
        self._place = {thing: number * _GAP for number, thing in enumerate(self, 1)}
