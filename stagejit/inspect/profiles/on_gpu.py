"""Dispatches on a GPU, timed by events.

Input: what was recorded around them. Output: rows; and a table as lines. Invariant: seconds are
those of the device's clock; the rows of dispatches on different streams overlap, and that of a loop
has what is inside of it, so they add up to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagejit.inspect.columns import columns
from stagejit.inspect.profiles.rows import DispatchTimes, merged, names_of
from stagejit.runtime.cuda.programs.timing import Timed

HEAD = ("on the GPU", "kind", "count", "ms", "us each", "min us", "GFLOP/s", "GB/s", "line")
NOTE = (
    "on the GPU: by events, launch by launch; what is on different streams runs side by side, and a"
    " loop's time is that of all inside"
)


def rows_on_gpu(timed: Iterable[Timed]) -> tuple[DispatchTimes, ...]:
    """A row for each dispatch, slowest first. Waits for the device."""
    return tuple(merged(map(_row, timed)))


def _row(timed: Timed) -> DispatchTimes:
    site, seconds = timed.site, timed.seconds()
    return DispatchTimes(
        timed.function,
        site.path,
        site.kind,
        site.ops,
        site.loc,
        count=1,
        seconds=seconds,
        seconds_min=seconds,
        seconds_max=seconds,
        flops=site.flops,
        nbytes=site.nbytes,
        sizes=site.sizes,
    )


def table_of(rows: Sequence[DispatchTimes]) -> list[tuple[str, ...]]:
    """The cells of each row, one for each of `HEAD`."""
    return list(map(_cells, rows, names_of(rows)))


def _cells(row: DispatchTimes, name: str) -> tuple[str, ...]:
    return (
        name,
        row.kind,
        str(row.count),
        f"{1e3 * row.seconds:.3f}",
        f"{1e6 * row.seconds_mean:.1f}",
        f"{1e6 * row.seconds_min:.1f}",
        f"{row.gflops:.1f}" if row.flops else "",
        f"{row.gbytes:.1f}" if row.nbytes else "",
        str(row.loc) if row.loc else "",
    )


def lines(rows: Sequence[DispatchTimes]) -> list[str]:
    """A table for a terminal; nothing where there are no rows."""
    if not rows:
        return []
    return [*columns([HEAD, *table_of(rows)], range(2, len(HEAD) - 1)), NOTE]
