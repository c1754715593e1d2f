"""Source locations: where in the user's program an equation came from.

Input: file, line, function. Output: `Loc`, printed as `file:line`. Invariant: immutable and cheap,
because every op of every graph carries one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A line of the user's source; `line` is 1-based, 0 where unknown."""

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""

    def __bool__(self) -> bool:
        return bool(self.file)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "<unknown>"


UNKNOWN = Loc()
