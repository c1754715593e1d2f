"""The memory plan: which buffers share memory.

Input: buffers, who touches them and the order that barriers enforce. Output: slots, in the arena or
in the memory of a result. Invariant: two buffers overlap only if everything that touches one has
finished before anything touches the other starts, whatever order the barriers allow, or if one is
written over the other by the dispatch that reads it last.

Slots are found largest buffer first, each in the smallest gap that fits (best fit by decreasing
size): of the memory that is there anyway, results before they are written, else of the arena.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.base.records import record
from stagejit.index.bit_sets import bits
from stagejit.schedule.memory.gaps import Range, Taken

ALIGNMENT = 64
# Memory of different threads is this far apart at least, so that no two share a line (or a pair of
# lines, which the prefetcher of x86 fetches together).
LINE_NBYTES = 128
# An arena of this size lies on the stack of the call, which costs no allocation.
FRAME_NBYTES = 1024
# Results, smallest first, in which a place is looked for.
_MOST_TRIED = 16


@record
class Life:
    """A buffer that needs memory: its size, and the positions that touch it as a bit set."""

    name: str
    nbytes: int
    users: int


@record
class Slot:
    """A byte offset in the arena, or in the memory of the result `host`."""

    offset: int
    host: str = ""


@dataclass
class _Room:
    """Memory that buffers are placed in: an arena without end, or that of a result, which may be
    used by the positions in `free` only."""

    host: str = ""
    nbytes: int = 0
    free: int = 0
    taken: Taken = field(default_factory=Taken)

    def offset_for(self, life: Life, finished: int) -> int | None:
        """Where the buffer fits, None if it does not."""
        offset = self.taken.best_gap(life.users, finished, life.nbytes)
        return offset if not self.host or offset + life.nbytes <= self.nbytes else None

    def place(self, life: Life, offset: int, finished: int) -> Slot:
        self.taken.add(Range(offset, offset + aligned(life.nbytes), life.users, finished))
        return Slot(offset, self.host)


def pack(
    lives: Sequence[Life], before: Sequence[int], *, share: bool, hosts: Sequence[Life] = ()
) -> dict[str, Slot]:
    """Slots. before[p]: the positions that have finished when position p starts. hosts: memory that
    a buffer may use before the first position that touches it."""
    if not share:
        return _in_a_row(lives)
    rooms = [
        _Room(host.name, host.nbytes, _finished_before(host, before))
        for host in sorted(hosts, key=lambda host: (host.nbytes, _first(host)))
    ]
    sizes = [host.nbytes for host in rooms]
    arena = _Room()
    slots: dict[str, Slot] = {}
    for life in sorted(lives, key=lambda life: (-life.nbytes, _first(life))):
        finished = _finished_before(life, before)
        users, large = life.users, rooms[bisect.bisect_left(sizes, life.nbytes) :]
        free = (room for room in large if not users & ~room.free)
        for room in itertools.chain(itertools.islice(free, _MOST_TRIED), [arena]):
            offset = room.offset_for(life, finished)
            if offset is not None:
                slots[life.name] = room.place(life, offset, finished)
                break
    return slots


def overwrites(
    lives: Mapping[str, Life], pairs: Sequence[tuple[int, str, str]], before: Sequence[int]
) -> dict[str, str]:
    """Buffers that take the place of another one, by name.

    pairs: (position, buffer that it reads, buffer that it may write over it), all of one size.
    """
    taken: dict[str, str] = {}
    for at, old, new in pairs:
        if old in taken.values() or new in taken:
            continue
        earlier, later = lives[old].users & ~(1 << at), lives[new].users & ~(1 << at)
        if not earlier & ~before[at] and all(before[user] >> at & 1 for user in bits(later)):
            taken[new] = old
    return taken


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


def _finished_before(life: Life, before: Sequence[int]) -> int:
    """Positions that have finished before any user of the buffer starts."""
    total = -1
    for user in bits(life.users):
        total &= before[user]
    return 0 if total == -1 else total


def finished_before(lives: Sequence[Life], before: Sequence[int]) -> dict[str, int]:
    """For each buffer the positions that are over before it is first touched."""
    return {life.name: _finished_before(life, before) for life in lives}


def _first(life: Life) -> int:
    return (life.users & -life.users).bit_length()


def _in_a_row(lives: Sequence[Life]) -> dict[str, Slot]:
    slots, end = {}, 0
    for life in sorted(lives, key=_first):
        slots[life.name] = Slot(end)
        end += aligned(life.nbytes)
    return slots
