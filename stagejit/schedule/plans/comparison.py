"""What a plan costs, counted, and the difference between two.

Input: counts and bytes of plans. Output: `Totals`, and `Comparison`: a table as text, HTML and
data. Invariant: sizes are bytes, times seconds; what stands in a loop counts as often as the loop
turns, and once where only a call knows how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields

from stagejit.base.records import record
from stagejit.base.showing import html_of

_WORDS = {
    "dispatches": "dispatches",
    "inner": "of them in bodies",
    "launches": "launches in a call",
    "copies": "copies",
    "copied_nbytes": "bytes copied",
    "filled_nbytes": "bytes filled by copies",
    "fills": "fills",
    "packs": "operands it may pack",
    "delegated": "left to XLA",
    "barriers": "barriers",
    "read_nbytes": "bytes read",
    "written_nbytes": "bytes written",
    "flops": "flops",
    "transient_nbytes": "transient bytes",
    "peak_nbytes": "peak bytes",
    "floor_seconds": "floor",
    "modelled_seconds": "modelled time",
}


@record
class Totals:
    """Of one call.

    dispatches: of the plan, those in loops once; inner: of them, those in bodies of loops and
    branches; launches: how often one is run. packs: operands that a call may pack, see
    `Plan.packs`. copied_nbytes: written by copies, carries of loops and branches too (see
    `turns.py`), but for filled_nbytes: borders that copies fill. read_nbytes, written_nbytes:
    of all that is run. floor_seconds: the least that the memory and the arithmetic of a machine
    allow, one dispatch after the other; None where sizes are symbolic. modelled_seconds: by the
    model of the kernels; None where there are none, as of a plan by itself.
    """

    dispatches: int = 0
    inner: int = 0
    launches: int = 0
    copies: int = 0
    copied_nbytes: int = 0
    filled_nbytes: int = 0
    fills: int = 0
    packs: int = 0
    delegated: int = 0
    barriers: int = 0
    read_nbytes: int = 0
    written_nbytes: int = 0
    flops: int = 0
    transient_nbytes: int = 0
    peak_nbytes: int = 0
    floor_seconds: float | None = None
    modelled_seconds: float | None = None

    def as_json(self) -> dict[str, float | str | None]:
        """Plain data; a formula of symbolic sizes is text."""
        return {
            name: value if value is None or isinstance(value, int | float) else str(value)
            for name, value in asdict(self).items()
        }


@record
class Row:
    """name: of a field of `Totals`. first, second: its values; None where it is not known."""

    name: str
    first: float | None
    second: float | None

    @property
    def words(self) -> str:
        return _WORDS[self.name]

    @property
    def is_known(self) -> bool:
        """Whether one of both is."""
        return self.first is not None or self.second is not None

    @property
    def difference(self) -> float | None:
        """Of the second to the first."""
        return None if self.first is None or self.second is None else self.second - self.first

    def texts(self) -> tuple[str, str, str, str]:
        """What it is, both values, and the difference; empty where there is none."""
        return self.words, self._text(self.first), self._text(self.second), self._difference()

    def _text(self, value: float | None) -> str:
        if value is None:
            return "?"
        if self.name.endswith("seconds"):
            return f"{1e6 * value:,.2f} us"
        return f"{value:,}" if isinstance(value, int) else str(value)

    def _difference(self) -> str:
        difference = self.difference
        if not difference:
            return ""
        sign = "+" if isinstance(difference, int | float) and difference > 0 else ""
        share = f" ({sign}{100 * difference / self.first:.0f}%)" if self.first else ""
        return f"{sign}{self._text(difference)}{share}"


@record
class Comparison:
    """Two plans, side by side; `str()` is a table. names: of the plans. The floor is the least time
    that memory and arithmetic of a machine allow; the modelled time that of kernels, where there
    are any."""

    names: tuple[str, str]
    first: Totals
    second: Totals

    @property
    def rows(self) -> tuple[Row, ...]:
        """Each count of both; modelled times where one has one."""
        found = (
            Row(field.name, getattr(self.first, field.name), getattr(self.second, field.name))
            for field in fields(Totals)
        )
        return tuple(row for row in found if row.name != "modelled_seconds" or row.is_known)

    @property
    def differing(self) -> tuple[Row, ...]:
        """The counts that are not the same."""
        return tuple(row for row in self.rows if row.difference)

    def as_text(self) -> str:
        """A table: what, of the first, of the second, and the difference."""
        table: list[tuple[str, ...]] = [
            ("", *self.names, "difference"),
            *(row.texts() for row in self.rows),
        ]
        widths = [max(len(row[at]) for row in table) for at in range(4)]
        return "\n".join(map("  ".join, _padded(table, widths)))

    __str__ = as_text

    def as_json(self) -> dict[str, dict[str, float | str | None]]:
        """Plain data: {"first": {...}, "second": {...}}, with the fields of `Totals`."""
        return {"first": self.first.as_json(), "second": self.second.as_json()}

    def _repr_html_(self) -> str:
        return html_of(self)


def _padded(table: list[tuple[str, ...]], widths: list[int]) -> Iterator[list[str]]:
    for first, *others in table:
        cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        yield [f"{first:{widths[0]}}", *cells]
