"""When buffers are alive, by looking at two of them."""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.schedule.memory.packing import Life


def apart(a: Life, b: Life, finished: Mapping[str, int]) -> bool:
    """Whether one of the two is over before the other begins."""
    return not (a.users & ~finished[b.name] and b.users & ~finished[a.name])
