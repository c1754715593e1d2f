"""The errors of stagejit. Each says what is wrong, where in the user's file, and what to do next.

Invariant: faults of the user's program raise a `StagejitError` other than `InternalError`; faults
of ours raise `InternalError`, which names the step and carries a dump.
"""

from __future__ import annotations

import copyreg
import linecache
from typing import Any

from stagejit.base.loc import UNKNOWN, Loc


class StagejitError(Exception):
    """Base of all errors raised by stagejit."""

    def __init__(self, what: str, *, loc: Loc = UNKNOWN, next_step: str = "") -> None:
        self.what, self.loc, self.next_step = what, loc, next_step
        super().__init__(_render(what, loc, next_step))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, and sent to another process, it says what it said: it is not put together anew of
        its text."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class OptionsError(StagejitError, ValueError):
    """An option has a value that no stage understands."""


class UnsupportedOpError(StagejitError, NotImplementedError):
    """An equation cannot be compiled and `Options(delegate=False)` forbids leaving it to XLA."""


class NoDriverError(StagejitError):
    """What the chosen target needs is not there: a GPU, PyCUDA, or (for the emulation) a compiler
    of C++."""


class GoneError(StagejitError):
    """A weight of a bound function is needed, and whoever had it has deleted it, or let it go."""


class ParseError(StagejitError, ValueError):
    """The text of a graph or plan does not follow the grammar."""


class VerificationError(StagejitError):
    """A verifier found a broken invariant of a graph, plan, schedule or kernel."""


class InternalError(StagejitError):
    """A fault of stagejit itself. `dump` is the stage's text form, for the bug report."""

    def __init__(self, what: str, *, step: str = "", dump: str = "", loc: Loc = UNKNOWN) -> None:
        self.step, self.dump = step, dump
        prefix = f"in step {step!r}: " if step else ""
        next_step = "please report this with the program and the dump (`error.dump`)"
        super().__init__(f"{prefix}{what}", loc=loc, next_step=next_step)


class ExtensionError(StagejitError):
    """A fault of an extension, which a user gave as `Options(extensions=...)`: what it raised, or
    made wrong. Located at its line, and never covered by a fallback to XLA."""


# What the user has to mend: never covered by a fallback to XLA.
USERS_FAULTS = (OptionsError, NoDriverError, GoneError, ExtensionError)


class FallbackWarning(RuntimeWarning):
    """A fault of stagejit: a function could not be compiled, and runs through XLA instead."""


def _render(what: str, loc: Loc, next_step: str) -> str:
    lines = [what]
    if loc:
        where = f"  --> {loc}" + (f" in {loc.function}" if loc.function else "")
        lines.append(where)
        source = linecache.getline(loc.file, loc.line).strip()
        if source:
            lines.append(f"   |     {source}")
    if next_step:
        lines.append(f"Next: {next_step}")
    return "\n".join(lines)
