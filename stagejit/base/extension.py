"""`Extension`: a part of the compiler that a user brings along; `stagejit.extending` makes them.

Input: `Options(extensions=(...,))`. Output: the parts of a kind, for the stage that has such parts;
an `ExtensionError` at the user's line where one fails. Invariant: an extension is a frozen value
that belongs to the options of a compilation, and to nothing else: no table of the process knows it,
so two compilations never meet each other's, and every cache whose key has the options, or the
extensions that it depends on, keeps what they made apart. Extensions are equal if they are the same
object: a function that is defined anew is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from stagejit.base.loc import Loc
from stagejit.base.symbolic import Undecided
from stagejit.base.users_line import is_ours, users_frame
from stagejit.errors import ExtensionError


@dataclass(frozen=True, eq=False, repr=False)
class Extension:
    """One part of the compiler, by the user.

    name: as decisions, plans and `Options(disable=...)` have it. loc: the line that it is from.
    """

    name: str
    loc: Loc = field(kw_only=True)

    def __str__(self) -> str:
        return f"{self.name!r} ({self.loc})"

    def __repr__(self) -> str:
        return f"<extension {self}>"

    @property
    def parts(self) -> tuple[Extension, ...]:
        """What it consists of, for several stages; itself where that is one."""
        return (self,)

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Inside, code of this extension runs. What it raises comes out as ExtensionError, but for
        what symbolic sizes leave undecided. what: it is asked to do."""
        try:
            yield
        except (Undecided, ExtensionError):
            raise
        except Exception as error:
            line = _line_in(error.__traceback__, self.loc)
            raise self.fault(f"{what}: {in_short(error)}", line) from error

    def fault(self, what: str, loc: Loc | None = None) -> ExtensionError:
        """The error to raise where the extension made something wrong. what: is said of it. loc:
        the line that did; by default that where the extension begins."""
        return ExtensionError(
            f"extension {self.name!r} {what}",
            loc=loc or self.loc,
            next_step=f"correct it, or leave it out: Options(disable=({self.name!r},))",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Bundle(Extension):
    """Parts for several stages, under one name."""

    of: tuple[Extension, ...] = ()

    @property
    def parts(self) -> tuple[Extension, ...]:
        return self.of


E = TypeVar("E", bound=Extension)


def in_short(error: Exception) -> str:
    """An error in words: its kind, and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def parts_of(extensions: Sequence[Extension], kind: type[E]) -> tuple[E, ...]:
    """The parts of a kind, in the order in which they were given."""
    parts = (part for extension in extensions for part in extension.parts)
    return tuple(part for part in parts if isinstance(part, kind))


def line_of(function: Callable[..., Any] | None = None) -> Loc:
    """Where an extension is from: its function, or the user's line that is being run."""
    code = getattr(function, "__code__", None)
    if code is not None:
        return Loc(code.co_filename, code.co_firstlineno, function=code.co_name)
    frame = users_frame()
    if frame is None:
        return Loc()
    return Loc(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


def _line_in(traceback: TracebackType | None, known: Loc) -> Loc | None:
    """The last line of a traceback that is neither ours nor a library's: those of the file of
    `known` are the extension's wherever that is installed."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = code.co_filename
        of_library = is_ours(file) or "/site-packages/" in file
        if file == known.file or not of_library:
            found = Loc(code.co_filename, traceback.tb_lineno, function=code.co_name)
        traceback = traceback.tb_next
    return found
