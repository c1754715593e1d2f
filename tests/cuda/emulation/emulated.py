"""Runs one kernel on the CPU, see `stagejit/runtime/cuda/emulation`.

Input: a `Function` with threads, arrays, the number of blocks, an order of the threads. Output:
arrays that are written in place, or an `EmulationError` that says what the kernel did wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.codegen.ir.nodes import Function
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.cuda.emulation.compiling import launchers
from stagejit.runtime.cuda.emulation.launching import ORDERS, launch_kernel
from stagejit.runtime.cuda.emulation.memory import EmulationError, Pages
from stagejit.runtime.objects.object_cache import cache_in

__all__ = ["NAME", "ORDERS", "EmulationError", "emulate", "launch"]

Array = np.ndarray[Any, np.dtype[Any]]
NAME = "kernel"


def emulate(
    function: Function,
    arrays: Sequence[Array],
    params: Sequence[int] = (),
    lo: int = 0,
    hi: int = 0,
    *,
    blocks: Sequence[int],
    threads: str = "forward",
) -> None:
    """Prints, compiles and launches a kernel. threads: their order, one of `ORDERS`."""
    launch(
        cuda_source(function, NAME), function.threads, arrays, [*params, lo, hi], blocks, threads,
        dynamic_nbytes(function.buffers),
    )  # fmt: skip


def launch(
    source: str, sizes: Sequence[int], arrays: Sequence[Array], numbers: Sequence[int],
    blocks: Sequence[int], threads: str = "forward", shared_nbytes: int = 0,
) -> None:  # fmt: skip
    """Launches the kernel of a source, with arrays and 64-bit numbers."""
    pages = [Pages(array.nbytes) for array in arrays]
    for array, page in zip(arrays, pages, strict=True):
        page.inside[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = [*(page.address for page in pages), *numbers]
    found = launched(source, sizes, words, blocks, threads, shared_nbytes)
    for array, page in zip(arrays, pages, strict=True):
        page.check()
        array.reshape(-1).view(np.uint8)[...] = page.inside
    if found:
        raise EmulationError(found)


def launched(
    source: str, sizes: Sequence[int], words: Sequence[int], blocks: Sequence[int], threads: str,
    shared_nbytes: int = 0,
) -> str:  # fmt: skip
    """Launches the kernel of a source on memory of this process: what it did wrong."""
    kernel = launchers([Source(NAME, source, tuple(sizes))], cache_in(None))[NAME]
    return launch_kernel(kernel, blocks, sizes, words, threads, shared_nbytes)
