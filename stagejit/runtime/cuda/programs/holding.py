"""Who uses a device while a program runs.

Input: a driver. Output: a context in which the calling thread has the device. Invariant: nobody has
it while a function of Python runs, which a program calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from stagejit.runtime.cuda.driver import Driver


class Held:
    """A device that this thread uses, but for what the host does in between.

    Note [In between]: a function of Python that a program calls may itself run programs, on any
    thread. They queue on the same streams, behind what is queued there; an event that they record
    anew stands for more than before, on the stream that it was on."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __enter__(self) -> Held:
        self.context = self.driver.current()
        self.context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        self.context.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()
