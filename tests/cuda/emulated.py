"""Runs CUDA C++ on the CPU: kernels as they are printed, compiled by g++ beside `emulation.h`.

Input: a `Function` with threads, arrays, the number of blocks, an order of the threads. Output:
arrays that are written in place, or an `EmulationError` that says what the kernel did wrong.

Each array is copied to pages of its own, up against their end, with pages on both sides that may
not be touched; what an alignment of 16 bytes leaves free before or behind it must stay as it is.
A compiled kernel is kept by a hash of its source, of the header and of the compiler's options.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Function

Array = np.ndarray[Any, np.dtype[Any]]
NAME = "kernel"
ORDERS = ("forward", "backward", "random")
_HEADER = Path(__file__).with_name("emulation.h")
_OPTIONS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fsanitize=bounds", "-fno-sanitize-recover=all", "-Wl,-Bsymbolic", "-fno-exceptions",
    "-march=native",
)  # fmt: skip
_PAGE = mmap.PAGESIZE
_ALIGNED, _BESIDE = 16, 0xFB  # the byte around an array


class EmulationError(Exception):
    """What a kernel did wrong."""


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
        cuda_source(function, NAME), function.threads, arrays, [*params, lo, hi], blocks, threads
    )


def launch(
    source: str, sizes: Sequence[int], arrays: Sequence[Array], numbers: Sequence[int],
    blocks: Sequence[int], threads: str = "forward",
) -> None:  # fmt: skip
    """Launches the kernel of a source, with arrays and 64-bit numbers."""
    pages = [Pages(array) for array in arrays]
    args = [*(page.address for page in pages), *(n % (1 << 64) for n in numbers)]
    grid = [axis[k] if k < len(axis) else 1 for axis in (blocks, sizes) for k in range(3)]
    count = math.prod(sizes)
    found = compiled(source).launch_kernel(
        (ctypes.c_uint * 6)(*grid), (ctypes.c_uint64 * len(args))(*args),
        (ctypes.c_int * count)(*order_of(count, threads)),
    )  # fmt: skip
    for array, page in zip(arrays, pages, strict=True):
        page.give_back(array)
    if found:
        raise EmulationError(found.decode())


def order_of(count: int, threads: str) -> list[int]:
    """Of the threads, warp by warp."""
    warps = [list(range(first, min(first + WARP, count))) for first in range(0, count, WARP)]
    if threads == "random":
        choose = random.Random(count)
        warps = [choose.sample(warp, len(warp)) for warp in choose.sample(warps, len(warps))]
    numbers = [number for warp in warps for number in warp]
    return numbers[::-1] if threads == "backward" else numbers


class Pages:
    """A copy of an array, with pages around it that may not be touched."""

    def __init__(self, array: Array) -> None:
        size = max(-(-array.nbytes // _PAGE), 1) * _PAGE
        self.memory = mmap.mmap(-1, size + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.bytes[...] = _BESIDE
        self.at = (_PAGE + size - array.nbytes) // _ALIGNED * _ALIGNED
        self.nbytes = array.nbytes
        self.inside[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.address = start + self.at
        self.edges = (start, start + _PAGE + size)
        self._protect(0)

    @property
    def inside(self) -> Array:
        return self.bytes[self.at : self.at + self.nbytes]

    def _protect(self, mode: int) -> None:
        for edge in self.edges:
            if _libc().mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(_PAGE), mode):
                raise OSError("mprotect")

    def give_back(self, array: Array) -> None:
        """Copies what the kernel wrote."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        array.reshape(-1).view(np.uint8)[...] = self.inside
        beside = np.concatenate([self.bytes[: self.at], self.bytes[self.at + self.nbytes :]])
        if (beside != _BESIDE).any():
            raise EmulationError("a store beside an array")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def compiled(source: str) -> ctypes.CDLL:
    """The library of a kernel."""
    text = f'#include "{_HEADER}"\n#line 1 "{NAME}.cu"\n{source}\n{_GLUE}'
    key = hashlib.sha256("\0".join([text, _HEADER.read_text(), *_OPTIONS]).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"stagejit-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{key}.so"
    if not path.exists():
        part = folder / f"{key}.{os.getpid()}"
        command = ["g++", *_OPTIONS, "-x", "c++", "-", "-o", str(part)]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise AssertionError(f"{done.stderr[:4000]}\n{source}")
        part.replace(path)
    library = ctypes.CDLL(str(path))
    library.launch_kernel.restype = ctypes.c_char_p
    return library


_GLUE = f"""
extern "C" __attribute__((visibility("default"))) const char* launch_kernel(
    const unsigned* grid, const uint64_t* args, const int* order) {{
  return emulation::launch({NAME}, grid, args, order);
}}
"""
