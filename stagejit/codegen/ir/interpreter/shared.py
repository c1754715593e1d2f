"""Memory that the threads of a block share, and the races that they may not have.

Input: accesses by all threads at once. Output: elements, or a `Fault`. Invariant: between two
barriers, an element that one thread writes is touched by no other one; that all of them change it
by atomics is no race.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.codegen.ir.interpreter.memory import Fault, Memory
from stagejit.codegen.ir.interpreter.rounding import Array

_NOBODY, _SEVERAL = -1, -2
# What an access collides with, if another thread did it since the last barrier.
_COLLIDES = {
    "read": ("write", "change"), "write": ("read", "write", "change"), "change": ("read", "write"),
}  # fmt: skip


class SharedMemory(Memory):
    """marks: who did what to each element since the last barrier."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.marks = {kind: np.full(self.size, _NOBODY) for kind in _COLLIDES}

    def touch(self, at: Array, on: Array | None, kind: str) -> None:
        threads = np.broadcast_to(np.arange(len(at)).reshape(-1, *[1] * (at.ndim - 1)), at.shape)
        at, threads = (x.reshape(-1) if on is None else x[on] for x in (at, threads))
        for other in _COLLIDES[kind]:
            known = self.marks[other][at]
            self._refuse((known != _NOBODY) & (known != threads), at, threads, kind, other)
        marks = self.marks[kind]
        before = marks[at]
        marks[at] = threads
        again = marks[at] != threads
        if kind == "write":
            self._refuse(again, at, threads, kind, kind)
        marks[at[again | ((before != _NOBODY) & (before != threads))]] = _SEVERAL

    def _refuse(self, bad: Array, at: Array, threads: Array, kind: str, other: str) -> None:
        if bad.any():
            element, thread = int(at[bad][0]), int(threads[bad][0])
            done = {"read": "read", "write": "written", "change": "changed"}
            raise Fault(
                f"a race: element {element} of {self.buffer} is {done[kind]} by thread {thread}, "
                f"and {done[other]} by another, with no barrier between"
            )

    def settle(self) -> None:
        """All threads have met at a barrier."""
        for marks in self.marks.values():
            marks[...] = _NOBODY
