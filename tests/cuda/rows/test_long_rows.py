"""Rows of nearly 2^31 elements: the last tiles of each pass of a sort, on memory of which next to
nothing is touched."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.kernel import Kernel
from tests.cuda.emulation.emulated import NAME, launched
from tests.cuda.machine import compilation_of

_UNWRITTEN = 0x77
_BEHIND = 1 << 16  # bytes
_LOOKED_AT = 64  # elements: fewer than a tile has


class Sparse:
    """Zeros, of which there is memory where somebody looks."""

    def __init__(self, nbytes: int) -> None:
        file = os.memfd_create("sparse")
        os.ftruncate(file, nbytes + _BEHIND)
        self.pages = mmap.mmap(file, nbytes + _BEHIND)
        os.close(file)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.bytes = np.frombuffer(self.pages, np.uint8)


def sorts(extent: int, dtype: str, function: Callable[[Any], Any]) -> tuple[Kernel, str]:
    """The kernel that sorts a row of a dtype, and its text."""
    made = compilation_of(function, jax.ShapeDtypeStruct((extent,), np.dtype(dtype)))
    for one in made.run_until("codegen").kernels.values():
        if one.kernel.workspace_nbytes:
            return one.kernel, one.text.replace(one.symbol, NAME)
    raise AssertionError("no row has several tiles")


@pytest.mark.parametrize("function", [jnp.sort, jnp.argsort], ids=["sort", "argsort"])
@pytest.mark.parametrize("before", [1, 2, 300, 5000])
def test_the_last_tiles_of_a_row(before: int, function: Callable[[Any], Any]) -> None:
    """Each pass writes all of it: to one half of the workspace or the other, or the results."""
    extent = 2**31 - before
    kernel, text = sorts(extent, "int8", function)
    arguments = [Sparse(argument.value.type.nbytes) for argument in kernel.args]
    workspace = Sparse(kernel.workspace_nbytes)
    (both,) = kernel.workspaces
    half = both // 2
    for number, passed in enumerate(kernel.passes):
        last = number == len(kernel.passes) - 1
        memory = arguments[-1].bytes if last else workspace.bytes
        nbytes = arguments[-1].bytes.size - _BEHIND if last else half
        record = nbytes // extent
        start = 0 if last else half * (number % 2)
        written = memory[start + nbytes - _LOOKED_AT * record : start + nbytes]
        written[...] = _UNWRITTEN
        addresses = [one.address for one in (*arguments, workspace)]
        words = [*addresses, *passed, kernel.total - 2, kernel.total]
        assert not launched(text, kernel.function.threads, words, [1], "forward")
        elements = written.reshape(-1, record)
        assert not (elements == _UNWRITTEN).all(axis=1).any(), f"pass {number}"
