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
from functools import lru_cache
from pathlib import Path
from types import FrameType

import jax

# As code objects name their files: not resolved.
_OWN_FOLDER = str(Path(__file__).parents[1]) + "/"
_PROGRAMS = _OWN_FOLDER + "bench/"  # plain JAX, as a user writes it
_BETWEEN = (_OWN_FOLDER, str(Path(jax.__file__).parent) + "/")


class _Behind(threading.local):
    """frames: of the threads that wait for this one, the next one first."""

    frames: tuple[FrameType, ...] = ()


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
    for start in (sys._getframe(1), *_behind.frames):
        frame: FrameType | None = start
        while frame is not None:
            if not _is_between(frame.f_code.co_filename):
                return frame
            frame = frame.f_back
    return None


@lru_cache(maxsize=512)  # of the few files of a stack, each at every look at it
def _is_between(file: str) -> bool:
    return file.startswith(_BETWEEN) and not file.startswith(_PROGRAMS)


def waiting_frames() -> tuple[FrameType, ...]:
    """The caller's caller, which is to wait for another thread, and whom it works for itself."""
    return sys._getframe(2), *_behind.frames


@contextmanager
def led_to_by(frames: tuple[FrameType, ...]) -> Iterator[None]:
    """Inside, this thread works for these, of which the first one waits for it."""
    _behind.frames = frames
    try:
        yield
    finally:
        _behind.frames = ()


def is_ours(file: str) -> bool:
    """Whether it is of this package, but for the programs of the bench."""
    return file.startswith(_OWN_FOLDER) and not file.startswith(_PROGRAMS)
