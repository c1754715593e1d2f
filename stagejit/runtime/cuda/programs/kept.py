"""Arrays that a program keeps on a device: its constants, and the weights that it reads.

Input: arrays of the host. Output: addresses. Invariant: memory goes back when nobody holds what
stands for it, in the order of the driver's main stream.

Note [Weights]: what a call reads of them is decided, and copied if it is new, while nobody else can
queue: so no call that begins later has older ones. They take the place of those before, behind the
calls that read these. Where the host does something in between others can, so there new ones have a
place of their own, and a call holds that of its own until it has queued all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from weakref import finalize

import numpy as np

from stagejit.runtime.cuda.driver import Array, Driver


class Kept:
    """Arrays, and the places where they are. To be made inside of `current()`."""

    def __init__(self, driver: Driver, arrays: Sequence[Array]) -> None:
        self._driver, self.places = driver, list[int]()
        finalize(self, driver.free_later, self.places)
        for array in arrays:
            self.places.append(driver.allocate(array.nbytes))
        self.put(arrays)

    def put(self, arrays: Sequence[Array]) -> None:
        """Others take their place, behind the calls that still read those."""
        self._arrays, driver = tuple(arrays), self._driver
        for place, array in zip(self.places, arrays, strict=True):
            if array.nbytes:
                driver.copy_in(place, np.ascontiguousarray(array), driver.main)

    def are(self, arrays: Sequence[Array]) -> bool:
        same = len(arrays) == len(self._arrays)
        return same and all(map(operator.is_, self._arrays, arrays))


class Weights:
    """Those of a program on a device. arrays: gives them as they are; in_place: whether others may
    take their place, see Note [Weights]."""

    def __init__(
        self, driver: Driver, arrays: Callable[[], Sequence[Array]], *, in_place: bool
    ) -> None:
        self._driver, self._arrays, self._in_place = driver, arrays, in_place
        self._kept: Kept | None = None
        self._behind: set[int] = set()  # streams of others that come after all copies

    def now(self) -> Kept:
        """Inside of `current()`; to be held until a call has queued all."""
        arrays, kept = self._arrays(), self._kept
        if kept is None or not kept.are(arrays):
            self._behind.clear()
            if kept is None or not self._in_place:
                kept = self._kept = Kept(self._driver, arrays)
            else:
                kept.put(arrays)
        return kept

    def lead(self, handle: int) -> None:
        """A stream of somebody else's comes after all copies: a graph waits for its own stream
        alone."""
        if handle not in self._behind:
            self._driver.lead(handle, self._driver.main)
            self._behind.add(handle)
