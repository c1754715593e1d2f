"""A fault of ours never fails the user's call: the function runs through XLA, with one warning.

Input: a request, what may fail, and what to do instead. Output: the result of one of the two.
Invariant: what the user asked for stays an error: `Options(delegate=False)`, a target that is not
there, an extension that fails, and everything under $STAGEJIT_STRICT, which our own tests set. A
program that cannot be traced never comes here, so no error of the user's is taken for ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from stagejit.base.users_line import warn
from stagejit.errors import USERS_FAULTS, FallbackWarning
from stagejit.runtime.lowering.staged import Request

T = TypeVar("T")


def is_strict() -> bool:
    """Whether faults of ours are errors in this process."""
    return os.environ.get("STAGEJIT_STRICT", "") not in ("", "0")


def guarded(request: Request, step: Callable[[], T], instead: Callable[[], T]) -> T:
    """`step()`; where it fails and the request may run through XLA, `instead()` and a warning.

    Where `instead` fails, too, that is the user's error, and there is no warning.
    """
    try:
        return step()
    except (MemoryError, *USERS_FAULTS):
        raise
    except Exception as error:
        if is_strict() or not request.options.delegate:
            raise
        fault = error
    result = instead()
    _warn(request, fault)
    return result


def in_words(error: Exception) -> str:
    """What went wrong, and where, on one line."""
    what = str(error).splitlines()[0] if str(error) else "no message"
    where = "; ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {what}{f' ({where})' if where else ''}"


def _warn(request: Request, error: Exception) -> None:
    warn(
        f"stagejit could not compile {request.name!r}: {in_words(error)}. The function runs "
        "through XLA instead, with the same results. Next: please report this with the function; "
        "STAGEJIT_STRICT=1 in the environment makes it an error with its traceback, and "
        "`warnings.simplefilter('ignore', stagejit.FallbackWarning)` silences it.",
        FallbackWarning,
    )
