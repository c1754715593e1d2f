"""What a profile has when its block has ended, for views of it.

Input: none. Output: `Taken`. Invariant: plain data.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.inspect.profiles.rows import DispatchTimes
from stagejit.inspect.profiles.spans import Span
from stagejit.runtime.compilations.compile_times import CompileTimes


@dataclass(frozen=True)
class Taken:
    """dispatches, and what is around them: slowest first; seconds: of all calls, and of XLA between
    them. outside: what of
    the block they are not, whose wall time is block_seconds. on_gpu: see `Profile.on_gpu`."""

    dispatches: tuple[DispatchTimes, ...]
    around: tuple[DispatchTimes, ...]
    spans: tuple[Span, ...]
    lost_spans: int
    calls: int
    seconds: float
    compiled: tuple[CompileTimes, ...]
    outside: DispatchTimes
    block_seconds: float
    on_gpu: tuple[DispatchTimes, ...] = ()

    @property
    def rows(self) -> tuple[DispatchTimes, ...]:
        """What adds up to `seconds`."""
        return (*self.dispatches, *self.around)
