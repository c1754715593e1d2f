"""Makes a failing case small: fewer ops, fewer outputs, smaller sizes, simpler types.

Input: the choices of one case, or of several that are compiled one after the other, with their
spans; a test that says whether choices still fail in the same way. Output: choices that fail and
of which no span can be left out and no number made smaller, as far as the time allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from stagejit.fuzz.kernels.case import draw_case
from stagejit.fuzz.kernels.choices import Choices

Numbers = tuple[int, ...]
Trial = tuple[Numbers, ...]


def minimize(trial: Trial, fails: Callable[[Trial], bool], seconds: float) -> Trial:
    """A trial that `fails`, as does `trial`."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for at in range(len(trial)):
            for smaller in _simpler(trial[at]):
                if time.monotonic() > end:
                    return trial
                tried = (*trial[:at], smaller, *trial[at + 1 :])
                if fails(tried):
                    trial, changed = tried, True
                    break
    return trial


def _simpler(numbers: Numbers) -> Iterator[Numbers]:
    """Simpler choices, those that change most first."""
    choices = Choices.replayed(numbers)
    draw_case(choices)
    numbers, spans = tuple(choices.made), sorted(choices.spans)
    seen = {numbers}

    def fresh(tried: Numbers) -> bool:
        known = tried in seen
        seen.add(tried)
        return not known

    for first, last in reversed(spans):
        before = first - 1 if first and numbers[first - 1] else first  # with "one more step"
        for start in dict.fromkeys((before, first)):
            if fresh(tried := numbers[:start] + numbers[last:]):
                yield tried
        if fresh(tried := numbers[:first] + (0,) * (last - first) + numbers[last:]):
            yield tried
    for at, number in enumerate(numbers):
        for less in dict.fromkeys((0, number // 2, number - 1)):
            if number and fresh(tried := (*numbers[:at], less, *numbers[at + 1 :])):
                yield tried
    for at in range(len(numbers)):
        if fresh(tried := numbers[:at] + numbers[at + 1 :]):
            yield tried
