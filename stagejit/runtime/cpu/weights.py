"""Tables of weights: where programs of `stagejit.bind` find what no call passes.

Input: arrays. Output: the address of a table, which is in the words of a program (see
`encoding.py`). Invariants: a call reads the arrays of one `put` all through; memory that a call may
still read is not freed.

A table is the address of a list; a line further the number of calls that are reading. A list is the
moment since which calls read it, the address of the list before it, or 0, then an address for each
weight. A call counts itself, then loads the list, once; one that has a snapshot (`snapshots.py`)
goes back to that of its moment. So a list that has been replaced, and whose moments nobody has, is
unused as soon as no list leads to it and the number has been 0 after that.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from stagejit.base.threads.locks import new_lock
from stagejit.runtime.cpu import snapshots

CURRENT, READING = 0, 64
SINCE, BEFORE, ADDRESSES = 0, 8, 16  # of a list
_NBYTES = 128
_MOST_SECONDS = 1.0  # to wait for calls on other threads; what they read is freed later if need be

Array = np.ndarray[Any, np.dtype[Any]]
_numbers = itertools.count()


class _List:
    """What calls read since a moment."""

    def __init__(self, arrays: Sequence[Array], since: int, before: _List | None) -> None:
        self.arrays, self.since = tuple(arrays), since
        addresses = [array.ctypes.data for array in arrays]
        self.words = np.array([since, 0, *addresses], np.uint64)
        self.lead_to(before)

    def lead_to(self, before: _List | None) -> None:
        self.words[BEFORE // 8] = 0 if before is None else before.address

    @property
    def address(self) -> int:
        return self.words.ctypes.data


class Table:
    """number: no other table of this process has it."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._memory = ctypes.create_string_buffer(_NBYTES + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self._lists: list[_List] = []  # the last one is that of now
        self._retired: list[_List] = []  # to which none of them leads
        self._waited_for: list[_List] = []  # as long as anybody may
        self._lock = new_lock()

    def put(self, arrays: Sequence[Array], since: int = 0) -> None:
        """Calls that begin from now on read these arrays, in C order, which are kept; those that
        have a snapshot do if it is of the moment `since` or later. Waits for none: see `free`."""
        with self._lock:
            made = _List(arrays, since, self._lists[-1] if self._lists else None)
            self._lists.append(made)
            self._word(CURRENT).value = made.address

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What calls read now."""
        return self._lists[-1].arrays if self._lists else ()

    def free(self, held: Callable[[], Iterable[int]], most_seconds: float = _MOST_SECONDS) -> None:
        """Forget the arrays that no call reads any more; waits once for those that one does. held:
        moments that somebody may ask for besides calls."""
        until = time.monotonic() + most_seconds
        while True:
            with self._lock:  # a fence, too: the list is stored before the number is loaded
                asked_for = self._retire(held)
                if not self._word(READING).value:
                    self._retired.clear()
                old = [*self._retired, *asked_for]
                if all(any(each is known for known in self._waited_for) for each in old):
                    self._waited_for = old
                    return
                if time.monotonic() > until:
                    self._waited_for = old
                    return
            time.sleep(1e-4)

    def _retire(self, held: Callable[[], Iterable[int]]) -> list[_List]:
        """Those lists of which nobody has a moment. Returns earlier ones that calls may ask for."""
        moments = snapshots.moments()
        if moments is None:
            return self._lists[:-1]
        asked, now = self._of(moments), self._lists[-1]
        known = asked | self._of(held()) | {now.since}
        kept = [each for each in self._lists if each.since in known]
        self._retired += [each for each in self._lists if each.since not in known]
        for before, each in zip([None, *kept], kept, strict=False):
            each.lead_to(before)
        self._lists = kept
        return [each for each in kept if each.since in asked and each is not now]

    def _of(self, moments: Iterable[int]) -> set[int]:
        """Since when there is what calls read at these."""
        since = [each.since for each in self._lists]
        return {max((n for n in since if n <= at), default=since[0]) for at in moments}

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + offset)
