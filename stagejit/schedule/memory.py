"""The memory plan: which buffers exist, and which of them share memory.

Input: buffers, who touches them and the order that barriers enforce. Output: arena slots.
Invariant: two buffers overlap in the arena only if everything that touches one has finished before
anything touches the other starts, whatever order the barriers allow.

Slots are found largest buffer first, each in the smallest gap that fits (best fit by decreasing
size).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64

# Offset, end, users, and the positions that have not finished before the first user.
_Placed = tuple[int, int, int, int]


@dataclass(frozen=True)
class Life:
    """A buffer that needs memory: its size, and the positions that touch it as a bit set."""

    name: str
    nbytes: int
    users: int


def pack(lives: Sequence[Life], before: Sequence[int], *, share: bool) -> dict[str, int]:
    """Byte offsets. before[p]: the positions that have finished when position p starts."""
    if not share:
        return _in_a_row(lives)
    placed: list[_Placed] = []  # by offset
    slots: dict[str, int] = {}
    for life in sorted(lives, key=lambda life: (-life.nbytes, _first(life))):
        users, unfinished = life.users, ~_finished_before(life, before)
        busy = [other for other in placed if other[2] & unfinished and users & other[3]]
        offset = _best_gap(busy, life.nbytes)
        slots[life.name] = offset
        bisect.insort(placed, (offset, offset + aligned(life.nbytes), users, unfinished))
    return slots


def apart(a: Life, b: Life, finished: Mapping[str, int]) -> bool:
    """Whether one of the two is over before the other begins."""
    return not (a.users & ~finished[b.name] and b.users & ~finished[a.name])


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _finished_before(life: Life, before: Sequence[int]) -> int:
    """Positions that have finished before any user of the buffer starts."""
    total, users = -1, life.users
    while users:
        lowest = users & -users
        total &= before[lowest.bit_length() - 1]
        users ^= lowest
    return 0 if total == -1 else total


def finished_before(lives: Sequence[Life], before: Sequence[int]) -> dict[str, int]:
    """For each buffer the positions that are over before it is first touched."""
    return {life.name: _finished_before(life, before) for life in lives}


def _first(life: Life) -> int:
    return (life.users & -life.users).bit_length()


def _in_a_row(lives: Sequence[Life]) -> dict[str, int]:
    offsets, end = {}, 0
    for life in sorted(lives, key=_first):
        offsets[life.name] = end
        end += aligned(life.nbytes)
    return offsets


def _best_gap(busy: Sequence[_Placed], nbytes: int) -> int:
    """Offset of the smallest gap between busy ranges that fits, else after the last one."""
    best, best_size, end = -1, 0, 0
    for start, stop, _, _ in busy:
        gap = start - end
        if gap >= nbytes and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, stop)
    return end if best < 0 else best
