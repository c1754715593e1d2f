"""Tables of weights: where programs of `stagejit.bind` find what no call passes.

Input: arrays. Output: the address of a table, which is in the words of a program (see
`encoding.py`). Invariants: a call reads the arrays of one `put` all through; memory that a call may
still read is not freed.

A table is the address of a list of addresses, one for each weight; a line further the number of
calls that are reading. A call counts itself, then loads the list, once. So a list that has been
replaced is unused as soon as the number has been 0 after that.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.threads.locks import new_lock

CURRENT, READING = 0, 64
_NBYTES = 128
_MOST_SECONDS = 1.0  # to wait for calls on other threads; what they read is freed later if need be

Array = np.ndarray[Any, np.dtype[Any]]
_numbers = itertools.count()


class Table:
    """number: no other table of this process has it."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._memory = ctypes.create_string_buffer(_NBYTES + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self._arrays: tuple[Array, ...] = ()
        self._addresses = np.zeros(0, np.uint64)
        self._retired: list[Any] = []
        self._lock = new_lock()

    def put(self, arrays: Sequence[Array]) -> None:
        """Calls that begin from now on read these arrays, in C order, which are kept. Waits for
        none: see `free`."""
        addresses = np.array([array.ctypes.data for array in arrays], np.uint64)
        with self._lock:
            self._retired.append((self._arrays, self._addresses))
            self._arrays, self._addresses = tuple(arrays), addresses
            self._word(CURRENT).value = addresses.ctypes.data

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What calls read now."""
        return self._arrays

    def free(self) -> None:
        """Forget the arrays that no call reads any more."""
        until = time.monotonic() + _MOST_SECONDS
        while True:
            with self._lock:  # a fence, too: the list is stored before the number is loaded
                if not self._word(READING).value:
                    self._retired.clear()
                    return
            if time.monotonic() > until:
                return
            time.sleep(1e-4)

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + offset)
