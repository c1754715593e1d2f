"""Weights on huge pages: each step of decoding reads all of them, once.

Input: arrays that calls will read, or how many bytes some will have that are made. Output: nothing,
or room for these. Invariant: arrays that there are stay where they are, with the same bytes; what
the system refuses stays as it is.

Where the machine is virtual, the address of each page is looked up in two tables. On two cores of
Zen 4 a step of decoding with 340 MB of weights takes 1.05 times as long on pages of 4 KiB as on
huge ones, and 1.13 times while nobody else uses the memory. What others have allocated, as XLA has,
can only be moved behind its addresses: Linux does so when it is asked to (`MADV_COLLAPSE`, since
6.1), else in the background, where it may. It takes about a millisecond for each page.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stagejit.base.machine import HELD_FROM_NBYTES
from stagejit.runtime.cpu.native.arenas import HUGE_PAGE_NBYTES
from stagejit.schedule.memory.host import new_memory
from stagejit.schedule.memory.packing import aligned

_GAP_NBYTES = 64 << 10  # between arrays that share a page: what allocators put there
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25

Array = np.ndarray[Any, np.dtype[Any]]


def put_on_huge_pages(arrays: Iterable[Array]) -> int:
    """Ask for huge pages below arrays, in C order, that stay. Returns how many bytes of the arrays
    were asked for: all but the ends of neighbours."""
    ranges = whole_pages((array.ctypes.data, array.nbytes) for array in arrays)
    total = sum(nbytes for _, nbytes in ranges)
    advise = _madvise()
    if advise is None or total < HELD_FROM_NBYTES:
        return 0
    for address, nbytes in ranges:
        advise(address, nbytes, _MADV_HUGEPAGE)
        advise(address, nbytes, _MADV_COLLAPSE)
    return total


class Room:
    """Memory for arrays of `nbytes` that calls read one after the other: neighbours, so that huge
    pages hold all of them, and what is asked for behind one is the beginning of the next. Arrays
    that fill no huge pages have no room here. What is taken keeps the whole room."""

    def __init__(self, nbytes: Iterable[int]) -> None:
        self.nbytes = sum(map(aligned, nbytes))
        self._rest = np.empty(0, np.uint8)
        if self.nbytes < HELD_FROM_NBYTES:
            self.nbytes = 0
            return
        self._rest = new_memory(self.nbytes, HUGE_PAGE_NBYTES)
        advise = _madvise()
        if advise is not None:
            advise(self._rest.ctypes.data, self.nbytes, _MADV_HUGEPAGE)

    def take(self, nbytes: int) -> Array:
        """So many bytes that nobody else has, aligned as XLA aligns its arrays."""
        size = aligned(nbytes)
        if size <= len(self._rest):
            taken, self._rest = self._rest[:nbytes], self._rest[size:]
            return taken
        return new_memory(nbytes)


def whole_pages(memory: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The huge pages, as (address, bytes) of neighbours, that lie in memory of these addresses and
    bytes, but for small gaps."""
    joined: list[list[int]] = []
    for address, nbytes in sorted(memory):
        if joined and address - joined[-1][1] <= _GAP_NBYTES:
            joined[-1][1] = max(joined[-1][1], address + nbytes)
        else:
            joined.append([address, address + nbytes])
    found = []
    for start, stop in joined:
        first, end = -(-start // HUGE_PAGE_NBYTES), stop // HUGE_PAGE_NBYTES
        if end > first:
            found.append((first * HUGE_PAGE_NBYTES, (end - first) * HUGE_PAGE_NBYTES))
    return found


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """None where a system has no such advice."""
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise.restype = ctypes.c_int
    return advise
