"""Memory of this process that begins where memory of programs does.

Input: how many bytes. Output: an array of them that nobody else has. Invariant: its address is a
multiple of the alignment; what is in it is undefined.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.schedule.memory.packing import ALIGNMENT


def new_memory(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def is_aligned(array: np.ndarray[Any, Any]) -> bool:
    return array.ctypes.data % ALIGNMENT == 0


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins where arguments of programs do."""
    made: np.ndarray[Any, Any] = new_memory(array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made
