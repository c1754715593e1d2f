"""Warnings, attributed to the line of the user's program that led to them.

Input: a message and its category. Output: a warning at the innermost line that is neither ours nor
JAX's, so that Python tells one of each such line, and filters by module mean the user's modules.
Invariant: a frame is looked at, never kept: what it holds lives no longer for it.

Note [Threads behind a line]: what we do on threads of our own is led to by the line that waits for
them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import jax

# As code objects name their files: not resolved.
_OWN_FOLDER = str(Path(__file__).parents[1]) + "/"
_PROGRAMS = _OWN_FOLDER + "bench/"  # plain JAX, as a user writes it
_JAX_FOLDER = str(Path(jax.__file__).parent) + "/"


class _Behind(threading.local):
    """frame: of the thread that waits for this one."""

    frame: FrameType | None = None


_behind = _Behind()


def warn(message: str, category: type[Warning]) -> None:
    """`warnings.warn`, at the user's line."""
    frame = users_frame()
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def users_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor JAX's; None on a thread without."""
    for start in (sys._getframe(1), _behind.frame):
        frame = start
        while frame is not None and _is_between(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            return frame
    return None


@contextmanager
def led_to_by(frame: FrameType | None) -> Iterator[None]:
    """Inside, this thread works for `frame`."""
    _behind.frame = frame
    try:
        yield
    finally:
        _behind.frame = None


def is_ours(file: str) -> bool:
    """Whether it is of this package, but for the programs of the bench."""
    return file.startswith(_OWN_FOLDER) and not file.startswith(_PROGRAMS)


def _is_between(file: str) -> bool:
    return file.startswith((_OWN_FOLDER, _JAX_FOLDER)) and not file.startswith(_PROGRAMS)
