"""What a function was compiled for, and whether a call needs another compilation, in words.

Input: a `Past`. Output: lines, rows, data. Invariant: there is nothing to be said of a function
that was compiled once, for a call like the one in question.
"""

from __future__ import annotations

from stagejit.base.numbers import counted, seconds_text
from stagejit.inspect.explain.schema import CompilationData, CompilationsData
from stagejit.runtime.compilations.compile_times import CompileTimes
from stagejit.runtime.compilations.history import Compiled, Past

_MOST_LINES = 8


def lines_of(past: Past | None) -> list[str]:
    """A headline, then a line for each compilation."""
    if past is None or not _is_worth_saying(past):
        return []
    rows = [f"  {number}. {what}" for number, what, *_ in rows_of(past)]
    before = past.compiled[-1].number - min(len(rows), _MOST_LINES)
    earlier = [f"  ... and {before} before"] if before else []
    return [headline_of(past), *earlier, *rows[-_MOST_LINES:]]


def headline_of(past: Past) -> str:
    """How often it was compiled, and what a call like this one would do."""
    times = past.compiled[-1].number if past.compiled else 0
    said = f"compiled {counted(times, 'time')} so far" if times else "not compiled so far"
    if past.call is None or not times:
        return said
    if past.is_known:
        return f"{said}, also for a call like this one"
    why = f": {'; '.join(past.causes)}" if past.causes else ""
    return f"{said}; a call like this one is compiled anew{why}"


def steps_of(times: CompileTimes) -> str:
    """How long the steps of a compilation took: which are worth a look."""
    steps = sorted(times.seconds_by_step.items(), key=lambda step: -step[1])
    most = [f"{name} {seconds_text(took)}" for name, took in steps if took >= times.seconds / 100]
    made = "" if "load" in times.seconds_by_step else ", without making machine code"
    return f"compiled in {seconds_text(times.seconds)}{made}: {', '.join(most)}"


def rows_of(past: Past) -> list[tuple[int, str, str, str]]:
    """(number, what for and why, the line that led to it, time that it took) of each compilation
    that is remembered."""
    return [
        (entry.number, _what(entry), entry.line, f"{entry.seconds:.2g} s")
        for entry in past.compiled
    ]


def _is_worth_saying(past: Past) -> bool:
    return bool(past.compiled) and (len(_calls(past)) > 1 or not past.is_known)


def _calls(past: Past) -> list[Compiled]:
    return [entry for entry in past.compiled if not entry.signature.is_inside]


def _what(entry: Compiled) -> str:
    inside = "inside another program, " if entry.signature.is_inside else ""
    left = f"; left to XLA: {entry.left_to_xla}" if entry.left_to_xla else ""
    if entry.causes:
        return f"{inside}again: {'; '.join(entry.causes)}{left}"
    return f"{inside}for {entry.signature}{left}"


def data_of_past(past: Past | None) -> CompilationsData:
    """Plain data."""
    past = past or Past()
    return {
        "count": past.compiled[-1].number if past.compiled else 0,
        "known": past.is_known,
        "causes": list(past.causes),
        "entries": [_data(entry) for entry in past.compiled],
    }


def _data(entry: Compiled) -> CompilationData:
    signature = entry.signature
    return {
        "number": entry.number,
        "arguments": list(map(str, signature.arguments)),
        "static": list(map(str, signature.passed.static)),
        "inside": signature.is_inside,
        "causes": list(entry.causes),
        "left_to_xla": entry.left_to_xla,
        "seconds": entry.seconds,
        "line": entry.line,
    }
