"""Whose fault it is where compiling fails: an extension's, if it succeeds without that.

Input: a step, options with extensions, how to do the same with other options. Output: what the step
raised, or an `ExtensionError` in its place. Invariant: nothing is done again unless a step failed.

Note [Far from its cause]: a function of an extension may return something that only a later step
cannot use: a register tile that no machine has, a number of operations that is none, a value that
depends on itself. What each step checks says more, and finds it earlier; this makes sure that no
fault of a user's is taken for ours, and covered by a fallback to XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import NoReturn

from stagejit.base.extension import Extension, in_short
from stagejit.errors import USERS_FAULTS, UnsupportedOpError
from stagejit.options import Options

_NOT_OURS = (MemoryError, UnsupportedOpError, *USERS_FAULTS)
_is_trying = ContextVar("is_trying", default=False)


def blame(
    error: Exception, step: str, options: Options, again: Callable[[str, Options], None]
) -> NoReturn:
    """Raises what a step raised, or ExtensionError for what fails with extensions alone. again:
    does the same up to the step with other options."""
    error.add_note(f"in step {step!r} of stagejit")
    if not options.extensions or isinstance(error, _NOT_OURS) or _is_trying.get():
        raise error

    def succeeds(extensions: Sequence[Extension]) -> bool:
        try:
            again(step, replace(options, extensions=tuple(extensions)))
        except _NOT_OURS:
            return True  # without an extension there may be nothing to compile
        except Exception:
            return False
        return True

    guilty = _guilty(options.extensions, succeeds)
    if not guilty:
        raise error
    others = "".join(f" and {each.name!r}" for each in guilty[1:])
    what = f"{others.removeprefix(' ')} " if others else ""
    raise guilty[0].fault(
        f"{what}made something that step {step!r} cannot use, which succeeds without: "
        f"{in_short(error)}"
    ) from error


def _guilty(
    extensions: Sequence[Extension], succeeds: Callable[[Sequence[Extension]], bool]
) -> Sequence[Extension]:
    """The first one without which it succeeds; all, where it does without all of them alone."""
    token = _is_trying.set(True)
    try:
        if not succeeds(()):
            return ()
        if len(extensions) > 1:
            for each in extensions:
                if succeeds([other for other in extensions if other is not each]):
                    return (each,)
        return extensions
    finally:
        _is_trying.reset(token)
