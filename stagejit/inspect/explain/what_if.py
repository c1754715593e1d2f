"""What a rewrite is worth: the same call, compiled without it.

Input: totals of both. Output: `Worth`; tables as text and rows. Invariant: differences are those of
the call without the rewrite to the call with it, so what is worth something has positive ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stagejit.base.numbers import nbytes_text, seconds_text
from stagejit.inspect.explain.schema import WorthData
from stagejit.schedule.plans.comparison import Comparison, Totals
from stagejit.schedule.plans.turns import dispatches_text


@dataclass(frozen=True)
class Measured:
    """A call. seconds: the median of interleaved ones; spread: between their quartiles; least: the
    shortest of them."""

    seconds: float
    spread: float
    least: float

    @staticmethod
    def of(samples: Sequence[float]) -> Measured:
        """Of at least two."""
        first, middle, third = statistics.quantiles(samples, n=4)
        return Measured(middle, third - first, min(samples))


@dataclass(frozen=True)
class Worth:
    """rewrites: that were switched off together. with_them, without_them: what a call costs, its
    modelled time that of the kernels. measured: a call with and without them; None where nobody
    asked. uncounted: what modelled times do not have, in words."""

    rewrites: tuple[str, ...]
    with_them: Totals
    without_them: Totals
    measured: tuple[Measured, Measured] | None = None
    uncounted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " and ".join(self.rewrites)

    @property
    def comparison(self) -> Comparison:
        """Both, side by side."""
        return Comparison(("with", "without"), self.with_them, self.without_them)

    @property
    def is_noise(self) -> bool:
        """Whether what was measured tells no difference: medians are not further apart than calls
        of one program are, or the shortest calls say the opposite, or less than half of it."""
        if self.measured is None:
            return False
        one, other = self.measured
        apart = other.seconds - one.seconds
        least = (other.least - one.least) * (1 if apart > 0 else -1)
        return abs(apart) <= _spread(one, other) or least < abs(apart) / 2

    def __str__(self) -> str:
        head, row = rows_of([self])
        cells = (f"{name} {cell}" for name, cell in zip(head, row, strict=True) if cell != "=")
        return ", ".join(cells)


_HEAD = (
    "without", "dispatches", "copies", "moves", "transients", "peak", "barriers", "model",
    "measured",
)  # fmt: skip
TITLE = "more (+) or less (-) without them"


def rows_of(worths: Sequence[Worth]) -> list[tuple[str, ...]]:
    """The head, then a row for each: what there would be more (+) or less (-) without it."""
    table = [_HEAD, *map(_row, worths)]
    if all(worth.measured is None for worth in worths):
        return [row[:-1] for row in table]
    return table


def lines_of(worths: Sequence[Worth]) -> list[str]:
    """A table."""
    if not worths:
        return []
    table = rows_of(worths)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    lines = [f"what rewrites are worth: {TITLE}", f"  {baseline_of(worths[0])}"]
    for first, *others in table:
        cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(["", f"{first:{widths[0]}}", *cells]))
    return [*lines, *(f"  {note}" for note in notes_of(worths))]


def baseline_of(worth: Worth) -> str:
    """What the differences are of: a call with all rewrites."""
    totals, said = worth.with_them, []
    dispatches = dispatches_text(totals.dispatches - totals.inner, totals.inner)
    if isinstance(totals.peak_nbytes, int):
        said.append(f"a peak of {nbytes_text(totals.peak_nbytes)}")
    if totals.modelled_seconds is not None:
        said.append(f"{seconds_text(totals.modelled_seconds)} by the model")
    if worth.measured is not None:
        one, _ = worth.measured
        said.append(f"{seconds_text(one.seconds)} ±{seconds_text(one.spread)} measured")
    return f"with them: {', '.join([dispatches, *said])}"


def notes_of(worths: Sequence[Worth]) -> list[str]:
    """What the table does not say: a line each, or none."""
    found = dict.fromkeys(text for worth in worths for text in worth.uncounted)
    notes = [f"model: at least, {', '.join(found)}"] if found else []
    if any(worth.measured is not None for worth in worths):
        notes.append("measured: medians; ±: between the quartiles of calls of one program")
    return notes


def _row(worth: Worth) -> tuple[str, ...]:
    one, other = worth.with_them, worth.without_them
    moved = (totals.read_nbytes + totals.written_nbytes for totals in (one, other))
    return (
        worth.name,
        _count(one.dispatches, other.dispatches),
        _count(one.copies, other.copies),
        _size(*moved),
        _size(one.transient_nbytes, other.transient_nbytes),
        _size(one.peak_nbytes, other.peak_nbytes),
        _count(one.barriers, other.barriers),
        _time(one.modelled_seconds, other.modelled_seconds),
        "" if worth.measured is None else _clock(*worth.measured, worth.is_noise),
    )


def _count(one: int, other: int) -> str:
    return f"{other - one:+,}" if other != one else "="


def _size(one: int, other: int) -> str:
    difference = other - one
    if not isinstance(difference, int):
        return str(difference)
    sign = "+" if difference > 0 else "-"
    return f"{sign}{nbytes_text(abs(difference))}" if difference else "="


def _time(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return "?"
    if math.isclose(one, other, rel_tol=1e-9):  # sums of the same times, in another order
        return "="
    share = f" ({100 * (other / one - 1):+.0f}%)" if one else ""
    return f"{'+' if other > one else '-'}{seconds_text(abs(other - one))}{share}"


def _clock(one: Measured, other: Measured, is_noise: bool) -> str:
    """The difference of medians, and how far calls of one program are apart."""
    spread = f"±{seconds_text(_spread(one, other))}"
    if is_noise:
        return f"within the noise {spread}"
    return f"{_time(one.seconds, other.seconds)} {spread}"


def _spread(one: Measured, other: Measured) -> float:
    return (one.spread + other.spread) / 2


def _each(worth: Worth, name: str) -> list[float] | None:
    return None if worth.measured is None else [getattr(each, name) for each in worth.measured]


def data_of_worths(worths: Sequence[Worth]) -> list[WorthData]:
    """Plain data."""
    return [
        {
            "rewrites": list(worth.rewrites),
            "with_them": worth.with_them.as_json(),
            "without_them": worth.without_them.as_json(),
            "measured_seconds": _each(worth, "seconds"),
            "spread_seconds": _each(worth, "spread"),
            "least_seconds": _each(worth, "least"),
            "is_noise": worth.is_noise,
            "uncounted": list(worth.uncounted),
        }
        for worth in worths
    ]
