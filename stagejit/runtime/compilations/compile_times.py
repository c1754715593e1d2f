"""How long compilations took, step by step.

Input: each compilation, when it has ended. Output: `CompileTimes`, given to whoever notes them.
Invariant: nobody has to; what is noted keeps nothing of a compilation alive.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stagejit.base.records import record
from stagejit.base.threads.locks import new_lock


@record
class CompileTimes:
    """Of one program: seconds by step, in their order (see `pipeline.STEPS`); how many kernels it
    has, and how many of them were compiled for it; the others were in memory or on disk."""

    name: str
    seconds_by_step: Mapping[str, float]
    kernels: int = 0
    compiled_kernels: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.seconds_by_step.values())

    @property
    def cached_kernels(self) -> int:
        return self.kernels - self.compiled_kernels

    def __str__(self) -> str:
        steps = ", ".join(
            f"{step} {1e3 * seconds:.1f}" for step, seconds in self.seconds_by_step.items()
        )
        return (
            f"{self.name}: {1e3 * self.seconds:.1f} ms ({steps}); {self.kernels} kernels, "
            f"{self.compiled_kernels} compiled, {self.cached_kernels} cached"
        )


_lock = new_lock()
_noting: list[tuple[list[CompileTimes], int]] = []


@contextmanager
def noting(into: list[CompileTimes], *, thread: int = 0) -> Iterator[None]:
    """What is compiled meanwhile, on any thread or on this one, is added to the list."""
    with _lock:
        _noting.append((into, thread))
    try:
        yield
    finally:
        with _lock:
            _noting[:] = [each for each in _noting if each[0] is not into]


def note(times: CompileTimes) -> None:
    """A compilation has ended, on this thread."""
    with _lock:
        for into, thread in _noting:
            if thread in (0, threading.get_ident()):
                into.append(times)
