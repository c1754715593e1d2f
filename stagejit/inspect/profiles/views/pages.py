"""A profile as text and as HTML.

Input: a profile that has ended. Output: a table for a terminal; for notebooks and browsers the same
table, a flame graph (who took how much) and a timeline (who did what when). Invariant: what is
shown adds up: rows that are left out are one line, times outside of dispatches are rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.numbers import counted
from stagejit.inspect import page as pages
from stagejit.inspect.columns import columns
from stagejit.inspect.page import Markup, Section, element, joined, table
from stagejit.inspect.profiles import on_gpu
from stagejit.inspect.profiles.doubts import warnings
from stagejit.inspect.profiles.rows import DispatchTimes, names_of
from stagejit.inspect.profiles.taken import Taken
from stagejit.inspect.profiles.views import drawings
from stagejit.runtime.peaks import Peaks, of_this_machine

_HEAD = (
    "dispatch", "kind", "count", "ms", "%", "us each", "min us", "floor us", "x floor", "GFLOP/s",
    "GB/s", "threads", "balance", "waiting ms", "line",
)  # fmt: skip
_NUMBERS = range(2, 14)


def summary(taken: Taken) -> str:
    """A line."""
    waiting = sum(row.waiting_seconds for row in taken.rows)
    return (
        f"{taken.calls} calls of programs, {1e3 * taken.seconds:.3f} ms"
        f" in {len(taken.rows)} rows; threads waited {1e3 * waiting:.3f} ms;"
        f" the block took {1e3 * taken.block_seconds:.3f} ms"
    )


def peaks_text(peaks: Peaks) -> str:
    """What floors are computed from."""
    return (
        f"floors: {peaks.gflops:.0f} GFLOP/s and {peaks.gbytes:.1f} GB/s, measured on"
        f" {counted(peaks.cores, 'core')}; what lies in a cache may be faster"
    )


def cells(row: DispatchTimes, total: float, peaks: Peaks, name: str = "") -> tuple[str, ...]:
    """One for each column. name: where that of the row is not enough."""
    share = 100 * row.seconds / total if total else 0.0
    floor, times = row.floor_seconds(peaks), row.times_floor(peaks)
    many = row.threads > 1
    return (
        name or row.name,
        row.kind if not row.ops else f"{row.kind} ({_few(row.ops)})",
        str(row.count),
        f"{1e3 * row.seconds:.3f}",
        f"{share:.1f}",
        f"{1e6 * row.seconds_mean:.1f}",
        f"{1e6 * row.seconds_min:.1f}" if row.seconds_min else "",
        _short(1e6 * floor) if floor else "",
        f"{_short(times)}x" if times else "",
        f"{row.gflops:.1f}" if row.flops else "",
        f"{row.gbytes:.1f}" if row.nbytes else "",
        str(row.threads) if many else "",
        f"{row.balance:.2f}" if many else "",
        f"{1e3 * row.waiting_seconds:.3f}" if many else "",
        str(row.loc) if row.loc else "",
    )


def _table(rows: Sequence[DispatchTimes], total: float, peaks: Peaks) -> list[tuple[str, ...]]:
    return [cells(row, total, peaks, name) for row, name in zip(rows, names_of(rows), strict=True)]


_LINE_HEAD = ("line", "dispatches", "ms", "%")


def by_line(rows: Sequence[DispatchTimes], total: float) -> list[tuple[str, ...]]:
    """The lines at which dispatches stand, slowest first, with how many there are; none where no
    line has several: then the rows say it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(str(row.loc) if row.loc else "", []).append(row.seconds)
    if all(len(times) == 1 for line, times in found.items() if line):
        return []
    ordered = sorted(found.items(), key=lambda each: -sum(each[1]))
    return [
        (line or "no line", str(len(times)), f"{1e3 * sum(times):.3f}",
         f"{100 * sum(times) / total if total else 0.0:.1f}")
        for line, times in ordered
    ]  # fmt: skip


def _lines_of_lines(rows: Sequence[DispatchTimes], total: float, most: int) -> list[str]:
    """That table as text."""
    found = by_line(rows, total)
    if not found:
        return []
    lines = columns([_LINE_HEAD, *found[:most]], range(1, len(_LINE_HEAD)))
    left = len(found) - most
    return ["by line:", *lines, *([f"{counted(left, 'other line')}"] if left > 0 else [])]


def outside_cells(taken: Taken) -> tuple[str, ...]:
    """Of what is outside of calls: no part of their sum, so it has no share."""
    row = taken.outside
    return (row.dispatch, "", "", f"{1e3 * row.seconds:.3f}", *("" for _ in _HEAD[4:]))


def outside_text(taken: Taken) -> str:
    """What it is."""
    told = "outside of calls: Python, JAX's way to a call and back"
    if not taken.outside.ops:
        return told
    first = f" ({taken.outside.loc})" if taken.outside.loc else ""
    return (
        f"{told}, and what XLA runs before the first or after the last program of a function: "
        f"{_few(taken.outside.ops)}{first}"
    )


def _short(number: float) -> str:
    """With as many digits as tell something, also of numbers under 1."""
    return f"{number:.1f}" if number >= 0.95 else f"{number:.2g}"


def _few(ops: Sequence[str]) -> str:
    shown = ", ".join(ops[:3])
    return f"{shown}, ..." if len(ops) > 3 else shown


def as_text(taken: Taken, most: int) -> str:
    """Dispatches, slowest first; the others are one line. Then what is around them."""
    rows, total = taken.dispatches, taken.seconds
    if not taken.rows and taken.on_gpu:
        return "\n".join(on_gpu.lines(taken.on_gpu)) + "\n"
    if not taken.rows:
        return (
            "no staged function was called in the block of this profile: those of jax.jit are "
            "staged only in `with stagejit.enabled():`\n"
        )
    peaks = of_this_machine()
    lines = [_HEAD, *_table(rows, total, peaks)[:most]]
    rest = rows[most:]
    if rest:
        seconds = sum(row.seconds for row in rest)
        others = DispatchTimes("", f"{len(rest)} others", "", seconds=seconds)
        lines.append((*cells(others, total, peaks)[:2], "", *cells(others, total, peaks)[3:5]))
    lines += [*(cells(row, total, peaks) for row in taken.around), outside_cells(taken)]
    compiled = [f"compiled {times}" for times in taken.compiled]
    notes = [peaks_text(peaks), outside_text(taken), *warnings(rows, peaks)]
    return (
        "\n".join(
            [
                summary(taken),
                *columns(lines, _NUMBERS),
                *notes,
                *_lines_of_lines(rows, total, most),
                *on_gpu.lines(taken.on_gpu),
                *compiled,
            ]
        )
        + "\n"
    )


def sections(taken: Taken) -> list[Section]:
    """What a page has."""
    rows, total, peaks = taken.dispatches, taken.seconds, of_this_machine()
    shown = [*_table(taken.rows, total, peaks), outside_cells(taken)]
    told = [element("p", line) for line in (outside_text(taken), *warnings(rows, peaks))]
    parts = [table(_HEAD, shown, numbers=_NUMBERS), *told]
    made = [
        Section("Dispatches", joined(parts), note=peaks_text(peaks)),
        Section("Flame graph", drawings.flame(taken.rows), note="width: time of all calls"),
        Section("Timeline", drawings.timeline(taken.spans), note="the last call"),
    ]
    if lines := by_line(rows, total):
        made.insert(1, Section("By line", table(_LINE_HEAD, lines, numbers={1, 2, 3})))
    if taken.on_gpu:
        gpu = table(on_gpu.HEAD, on_gpu.table_of(taken.on_gpu), numbers=range(2, 8))
        made.insert(1, Section("On the GPU", gpu, note=on_gpu.NOTE))
    if taken.compiled:
        text = "\n".join(map(str, taken.compiled))
        made.append(Section("Compilations", element("pre", text), note=str(len(taken.compiled))))
    return made


def page(taken: Taken) -> str:
    """A document."""
    return pages.page("Profile", sections(taken), note=summary(taken))


def fragment(taken: Taken) -> str:
    """For a notebook."""
    if not taken.rows and not taken.on_gpu:
        return Markup(element("p", as_text(taken, 0)))
    return pages.fragment("Profile", sections(taken), note=summary(taken))
