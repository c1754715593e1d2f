"""Memory of an emulated GPU: each piece on pages of its own.

Input: numbers of bytes. Output: addresses. Invariant: a piece lies up against the end of its pages,
with pages on both sides that may not be touched; what its alignment leaves free beside it stays as
it is, or whoever checks is told. What nobody has written yet is NaN.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np

from stagejit.errors import StagejitError

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNED = 16  # so that most of what lies behind a piece is seen; a GPU's pool aligns to 256
UNWRITTEN = 0xFF  # bytes of a piece: NaN of any width
BESIDE = 0xFF, 0x7F  # bytes around it, at even and odd places: other NaN of any width
_PAGE = mmap.PAGESIZE


class EmulationError(StagejitError):
    """What a kernel did wrong."""


class Pages:
    """A piece of memory. It goes when this does."""

    def __init__(self, nbytes: int) -> None:
        size = max(-(-nbytes // _PAGE), 1) * _PAGE
        self.memory = mmap.mmap(-1, size + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.bytes: Array = np.frombuffer(self.memory, np.uint8)
        self.at = (_PAGE + size - nbytes) // ALIGNED * ALIGNED
        self.nbytes = nbytes
        self.address = start + self.at
        before, behind = self.bytes[_PAGE : self.at], self.bytes[self.at + nbytes : _PAGE + size]
        self._beside = before, behind
        before[...], behind[...] = self._usual = _beside(before.size), _beside(behind.size, nbytes)
        self.inside[...] = UNWRITTEN
        for edge in (start, start + _PAGE + size):
            if _libc().mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(_PAGE), 0):
                raise OSError("mprotect")

    @property
    def inside(self) -> Array:
        """The bytes of the piece."""
        return self.bytes[self.at : self.at + self.nbytes]

    def check(self) -> None:
        """Raises EmulationError where somebody wrote beside the piece."""
        if not all(map(np.array_equal, self._beside, self._usual)):
            raise EmulationError("a store beside an array")


def _beside(nbytes: int, start: int = 0) -> Array:
    """What is so many bytes behind a place that is a multiple of `ALIGNED`."""
    return np.resize(np.roll(np.array(BESIDE, np.uint8), -start), nbytes)


def view(address: int, nbytes: int) -> Array:
    """Bytes in the memory of this process."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
