"""Choices of a random generator, recorded so that they can be replayed and shrunk.

Input: a random generator, or choices made before. Output: numbers in ranges. Invariant: replaying
the recorded choices gives the same numbers; whatever is missing from a replay is 0, and 0 is the
simplest choice, so that a shorter or smaller list is a simpler case (as in Hypothesis: MacIver and
Donaldson, "Test-Case Reduction via Test-Case Generation", 2020).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Choices:
    """made: the choices so far. spans: (first, last + 1) of the choices that belong together. hot:
    those that decide what lies around a region, and nothing in it."""

    source: random.Random | None
    replay: Sequence[int] = ()
    made: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    hot: list[int] = field(default_factory=list)

    @staticmethod
    def drawn(*seed: object) -> Choices:
        return Choices(random.Random("/".join(map(str, seed))))

    @staticmethod
    def replayed(numbers: Sequence[int]) -> Choices:
        return Choices(None, tuple(numbers))

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        if self.source is not None:
            number = self.source.randrange(bound)
        else:
            at = len(self.made)
            number = min(self.replay[at] if at < len(self.replay) else 0, bound - 1)
        self.made.append(number)
        return number

    def between(self, low: int, high: int) -> int:
        """A number in [low, high]; `low` is the simplest."""
        return low + self.below(high - low + 1)

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times; False is the simplest."""
        return self.below(one_in) == one_in - 1

    def pick(self, items: Sequence[T], *, hot: bool = False) -> T:
        """One of `items`, of which the first is the simplest."""
        if hot:
            self.hot.append(len(self.made))
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], most: int | None = None) -> list[T]:
        """A subset, in order; the empty one is the simplest."""
        chosen = [item for item in items if self.below(2)]
        return chosen if most is None else chosen[:most]

    def order(self, count: int) -> tuple[int, ...]:
        """A permutation of range(count); the identity is the simplest."""
        left = list(range(count))
        return tuple(left.pop(self.below(len(left))) for _ in range(count))

    @contextmanager
    def span(self) -> Iterator[None]:
        first = len(self.made)
        yield
        self.spans.append((first, len(self.made)))
