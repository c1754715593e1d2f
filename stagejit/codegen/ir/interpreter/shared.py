"""Memory that threads share, and the races that they may not have.

Input: accesses by all threads of a block at once. Output: elements, or a `Fault`. Invariant:
between two barriers of a block, an element that one of its threads writes is touched by no other
one, but for those of its warp behind a barrier of that; and in a whole launch, an element that one
block writes is touched by no other one. That all of them change it by atomics is no race.
"""

from __future__ import annotations

import numpy as np

from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.interpreter.memory import Memory
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.rules import Fault

_NOBODY, _SEVERAL = -1, -2
_OF_WARP = -3  # less the number of a warp, all of whose threads know of it
# What an access collides with, if another thread or block did it.
_COLLIDES = {
    "read": ("write", "change"), "write": ("read", "write", "change"), "change": ("read", "write"),
}  # fmt: skip
_DONE = {"read": "read", "write": "written", "change": "changed"}


class Marks:
    """Who did what to each element of a buffer. unit: what they are that must not meet."""

    def __init__(self, buffer: Buffer, size: int, unit: str) -> None:
        self.buffer, self.unit = buffer, unit
        self.by_kind = {kind: np.full(size, _NOBODY) for kind in _COLLIDES}

    def touch(self, at: Array, who: Array, kind: str) -> None:
        """`who` does something to the elements `at`."""
        for other in _COLLIDES[kind]:
            known = self.by_kind[other][at]
            self._refuse(_is_new(known, who), at, who, kind, other)
        marks = self.by_kind[kind]
        before = marks[at]
        marks[at] = who
        again = marks[at] != who
        if kind == "write":
            self._refuse(again, at, who, kind, kind)
        marks[at[again | _is_new(before, who)]] = _SEVERAL

    def _refuse(self, bad: Array, at: Array, who: Array, kind: str, other: str) -> None:
        if bad.any():
            element, one = int(at[bad][0]), int(who[bad][0])
            between = ", with no barrier between" if self.unit == "thread" else ""
            first = f"element {element} of {self.buffer} is {_DONE[kind]} by {self.unit} {one}"
            raise Fault(f"a race: {first}, and {_DONE[other]} by another{between}")

    def meet(self, there: Array) -> None:
        """What one thread did alone is known to those of its warp, if that is there. Of what
        several did nobody knows whether they are of one."""
        for marks in self.by_kind.values():
            alone = np.flatnonzero(marks >= 0)
            alone = alone[there[marks[alone]]]
            marks[alone] = _OF_WARP - marks[alone] // WARP

    def settle(self) -> None:
        """All that was done is known to everybody."""
        for marks in self.by_kind.values():
            marks[...] = _NOBODY


def _is_new(known: Array, who: Array) -> Array:
    """Whether `who` may not know of what somebody did."""
    new: Array = (known != _NOBODY) & (known != who) & (known != _OF_WARP - who // WARP)
    return new


class SharedMemory(Memory):
    """Of one block; what others did to it, if they can, is in `blocks`."""

    block = 0
    blocks: Marks | None = None

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.buffer, memory.elements, memory.written, 1)
        self.threads = Marks(memory.buffer, memory.size, "thread")
        self.unfenced = np.full(memory.size if memory.buffer.space == "shared" else 0, _NOBODY)

    def touch(self, at: Array, on: Array | None, kind: str) -> None:
        threads = np.arange(len(at)).repeat(at.size // len(at)).reshape(at.shape)
        at, threads = (x.reshape(-1) if on is None else x[on] for x in (at, threads))
        self.threads.touch(at, threads, kind)
        if kind != "read" and self.unfenced.size:
            self.unfenced[at] = threads
        if self.blocks is not None:
            self.blocks.touch(at, np.full(at.shape, self.block), kind)

    # ---------------------------------------------------------------- products of warpgroups

    def fence(self, active: Array | None) -> None:
        """Products may see what the threads that are `active` have written."""
        if active is None:
            self.unfenced[...] = _NOBODY
        else:
            known = self.unfenced >= 0
            self.unfenced[known & active[self.unfenced]] = _NOBODY

    def seen(self, at: Array, who: Array) -> Array:
        """What a product sees, that row `i` of places is read for by thread `who[i]`."""
        places = self._places(at, None)
        self._require_readable(places, None)
        if (self.unfenced[places] != _NOBODY).any():
            raise Fault(f"a product sees {self.buffer}, which was written and not fenced")
        flat = places.reshape(-1)
        self.threads.touch(flat, who.repeat(flat.size // len(who)), "read")
        found: Array = self.elements[places]
        return found
