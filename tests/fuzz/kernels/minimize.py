"""Makes a failing case small: fewer ops, fewer outputs, smaller sizes, simpler types.

Input: the choices of one case, or of several that are compiled one after the other, with their
spans; a test that says whether choices still fail in the same way. Output: choices that fail and
of which no span can be left out and no number made smaller, as far as the time allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.choices import Choices

Numbers = tuple[int, ...]
Trial = tuple[Numbers, ...]


def minimize(trial: Trial, fails: Callable[[Trial], bool], seconds: float) -> Trial:
    """A trial that `fails`, as does `trial`."""
    end = time.monotonic() + seconds
    before = None
    while trial != before and time.monotonic() < end:
        before = trial
        for at in range(len(trial)):
            rest = trial[:at], trial[at + 1 :]

            def fails_with(numbers: Numbers, rest: tuple[Trial, Trial] = rest) -> bool:
                return time.monotonic() < end and fails((*rest[0], numbers, *rest[1]))

            smaller = _Shrinking(trial[at], fails_with).numbers
            trial = (*rest[0], smaller, *rest[1])
    return trial


class _Shrinking:
    """One pass over the choices of one case, those changes first that leave out most."""

    def __init__(self, numbers: Numbers, fails: Callable[[Numbers], bool]) -> None:
        self._fails = fails
        self._tried: set[Numbers] = set()
        self._take(numbers)
        self._spans_away()
        self._numbers_down()
        self._numbers_away()

    def _take(self, numbers: Numbers) -> None:
        """From now on these are the choices, without any that are not used."""
        choices = Choices.replayed(numbers)
        draw_case(choices)
        self.numbers, self._spans = tuple(choices.made), sorted(choices.spans)
        self._tried.add(self.numbers)

    def _try(self, numbers: Numbers) -> bool:
        if numbers in self._tried:
            return False
        self._tried.add(numbers)
        fails = self._fails(numbers)
        if fails:
            self._take(numbers)
        return fails

    def _spans_away(self) -> None:
        at = len(self._spans) - 1
        while at >= 0:
            if at < len(self._spans):
                first, last = self._spans[at]
                head, rest = self.numbers[:first], self.numbers[last:]
                # A step comes after the choice to make one more.
                if not (self._try(head[:-1] + rest) or self._try(head + rest)):
                    self._try(head + (0,) * (last - first) + rest)
            at -= 1

    def _numbers_down(self) -> None:
        at = 0
        while at < len(self.numbers):
            number = self.numbers[at]
            for less in dict.fromkeys((0, number // 4, number // 2, number - 1)):
                if number and self._try((*self.numbers[:at], less, *self.numbers[at + 1 :])):
                    break
            at += 1

    def _numbers_away(self) -> None:
        at = len(self.numbers) - 1
        while at >= 0:
            self._try(self.numbers[:at] + self.numbers[at + 1 :])
            at -= 1
