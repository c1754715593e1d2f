"""Launches a kernel on the CPU, its threads in one order or another.

Input: a launcher of `compiling.py`, a grid, arguments. Output: what the kernel did wrong, if
anything. Invariant: one kernel runs at a time in a process; it goes warp by warp.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from stagejit.base.threads.locks import new_lock
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.runtime.cuda.emulation.compiling import Launcher

ORDERS = ("forward", "backward", "random")
_running = new_lock()


def launch_kernel(
    launcher: Launcher,
    blocks: Sequence[int],
    threads: Sequence[int],
    arguments: Sequence[int],
    order: str,
    shared_nbytes: int = 0,
) -> str:
    """order: of the threads, one of `ORDERS`. shared_nbytes: dynamic shared memory."""
    grid = [axis[k] if k < len(axis) else 1 for axis in (blocks, threads) for k in range(3)]
    words = (ctypes.c_uint64 * len(arguments))(*(word % (1 << 64) for word in arguments))
    with _running:
        numbers = _order(math.prod(threads), order)
        found = launcher((ctypes.c_uint * 6)(*grid), words, numbers, ctypes.c_uint(shared_nbytes))
        return found.decode()


@cache
def _order(count: int, order: str) -> Any:
    """Of the threads, warp by warp."""
    warps = [list(range(first, min(first + WARP, count))) for first in range(0, count, WARP)]
    if order == "random":
        choose = random.Random(count)
        warps = [choose.sample(warp, len(warp)) for warp in choose.sample(warps, len(warps))]
    numbers = [number for warp in warps for number in warp]
    return (ctypes.c_int * count)(*(numbers[::-1] if order == "backward" else numbers))
