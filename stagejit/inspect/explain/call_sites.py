"""Where the lines of helper functions were called from.

Input: where each op is, and who called its line. Output: dispatches with the calls that they are
of. Invariant: nothing is said where all calls of a line are one; what all of them have in common is
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stagejit.base.loc import Loc
from stagejit.inspect.explain.notes import Home, Launched

_MOST_LINES = 3  # of a way to a helper

_Line = tuple[str, int]
_Way = tuple[Loc, ...]


def with_calls(dispatches: Iterable[Launched], homes: Iterable[Home]) -> Iterator[Launched]:
    """The same with `Launched.calls`."""
    ways: dict[_Line, dict[_Way, None]] = {}
    of: dict[tuple[str, _Line], dict[_Way, None]] = {}
    for home in (home for home in homes if home.computes):  # a constant is many calls'
        line, way = (home.loc.file, home.loc.line), home.callers
        ways.setdefault(line, {})[way] = None
        for name in home.dispatches:
            of.setdefault((name, line), {})[way] = None
    for each in dispatches:
        line = each.loc.file, each.loc.line
        known = list(ways.get(line, ()))
        if not each.loc or len(known) < 2:
            yield each
            continue
        common = _common(known)
        here = of.get((each.dispatch, line), {})
        calls = dict.fromkeys(_said(way[: len(way) - common]) for way in here)
        yield replace(each, calls=tuple(filter(None, calls)))


def _common(ways: Sequence[_Way]) -> int:
    """How many of the last lines are the same everywhere."""
    least = min(map(len, ways))
    for at in range(least):
        if len({way[-1 - at] for way in ways}) > 1:
            return at
    return least


def _said(way: _Way) -> str:
    return " from ".join(loc.short for loc in way[:_MOST_LINES])
