"""Tables as text.

Input: rows of cells, the first perhaps a head; a row may have fewer cells than others. Output: a
line for each. Invariant: columns begin and end at the same places, and no line ends with spaces.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(rows: Sequence[Sequence[str]], numbers: Collection[int]) -> list[str]:
    """numbers: the columns that stand at the right."""
    count = max(map(len, rows), default=0)
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(count)]
    return [
        "  ".join(
            text.rjust(widths[at]) if at in numbers else text.ljust(widths[at])
            for at, text in enumerate(row)
        ).rstrip()
        for row in rows
    ]
