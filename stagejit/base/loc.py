"""Source locations: where in the user's program an equation came from.

Input: file, line, function. Output: `Loc`, printed as `file:line`, or `Cell In[3]:line` for a cell
of a notebook, as IPython's own tracebacks have it. Invariant: immutable and cheap, because every op
of every graph carries one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Loc:
    """A line of the user's source; `line` is 1-based, 0 where unknown.

    source, call: what `compat.callers_of` finds out who called the line from: what JAX keeps of
    where an equation was made, and the line of the call that the equation is inside of. Lines are
    equal, whoever called them.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""
    source: object = field(default=None, compare=False, repr=False)
    call: Loc | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """What keeps one, in a pickle or as a copy, keeps nothing of JAX's."""
        return Loc, (self.file, self.line, self.column, self.function)

    def __bool__(self) -> bool:
        return bool(self.file)

    def __str__(self) -> str:
        if not self.file:
            return "<unknown>"
        return f"{_shown(self.file)}:{self.line}" if self.line else _shown(self.file)

    @property
    def short(self) -> str:
        """The same without the file's folders."""
        return f"{_shown(self.file).rpartition('/')[2]}:{self.line}" if self.file else ""


def _shown(file: str) -> str:
    """A file, or the cell whose code IPython keeps under that name."""
    if "ipykernel" not in file and "ipython-input" not in file:
        return file
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(file)
    return " ".join(named) if named else file


UNKNOWN = Loc()
