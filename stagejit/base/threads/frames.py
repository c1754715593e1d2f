"""Room for the frames of Python's functions, so that no loop waits for the system at each call.

Input: a function that calls many others. Output: the same, whose callees' frames lie in one piece
of memory. Invariant: nothing but the time that calls take changes.

Note [Chunks of frames]: CPython keeps frames in chunks of 16 KiB. It maps a new one when a frame
does not fit into the last, and unmaps it as soon as that call returns. Where a loop stands near the
end of a chunk, each of its calls waits for the system to map a page, to clear it and to unmap it:
7 us on Zen 4, for a call that takes 0.05. How full a chunk is when the compiler begins is up to
who calls it. A frame that asks for more words than such a chunk has gets one of its own, with room
behind it; what it asks for is memory that nobody touches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Of 8 bytes: the chunk is the power of two that holds 1000 more, 128 KiB, and half of it is left.
_WORDS = 8192


def with_room_for_frames(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called from a frame that asks for a chunk: see Note [Chunks of frames]."""

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    called.__code__ = called.__code__.replace(co_stacksize=_WORDS)
    return functools.wraps(function)(called)
