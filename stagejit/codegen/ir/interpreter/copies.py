"""Copies that threads start, and later wait for.

Input: groups of copies, in the order in which they were started. Output: elements, once they are
waited for. Invariant: until then what is copied to has no value, and is written by the thread that
copies, so that who touches it earlier is found, with or without a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stagejit.codegen.ir.interpreter.memory import Memory
from stagejit.codegen.ir.interpreter.rounding import Array
from stagejit.codegen.ir.rules import Fault

ACCESS_NBYTES = 16


@dataclass
class Copies:
    """Of all threads of a block, which commit and wait together. open: since the last group."""

    groups: list[list[Callable[[], None]]] = field(default_factory=list)
    open: list[Callable[[], None]] = field(default_factory=list)

    def start(
        self, source: Memory, at: Array, target: Memory, place: Array, on: Array | None
    ) -> None:
        """at, place: of the first element, by thread; on: of the threads that copy."""
        lanes = range(ACCESS_NBYTES // source.elements.itemsize)
        for memory, first in ((source, at), (target, place)):
            memory.require_aligned(first if on is None else first[on], ACCESS_NBYTES)
        at, place = (first[:, None] + lanes for first in (at, place))
        on = None if on is None else on[:, None].repeat(len(lanes), axis=1)
        target.spoil(place, on)
        self.open.append(lambda: target.write(place, source.read(at, on), on))

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def wait(self, behind: int) -> None:
        """All groups have arrived but the last `behind`."""
        while len(self.groups) > behind:
            for arrive in self.groups.pop(0):
                arrive()

    def require_none(self) -> None:
        if self.open or any(self.groups):
            raise Fault("a block ends before its copies have arrived")
