"""A kernel three ways: simulated, emulated as CUDA C++ with its threads in several orders, and
compiled for three GPUs where NVRTC is installed.

Input: what `simulate` takes. Output: arrays that are written in place. Invariant: all ways wrote
the same bits (any NaN is any other), and no GPU has to spill registers to memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.interpreter.arithmetic import DTYPES
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import Function
from stagejit.runtime.cuda.code.nvrtc import compile_cubin, is_installed
from stagejit.runtime.cuda.code.resources import resources
from tests.codegen.ir.interpreter.test_arithmetic import assert_same
from tests.cuda.emulation.emulated import NAME, ORDERS, emulate

Array = np.ndarray[Any, np.dtype[Any]]
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
_REGISTERS = 65536  # of a multiprocessor


def checked(
    function: Function,
    arrays: Sequence[Array],
    params: Sequence[int] = (),
    lo: int = 0,
    hi: int = 0,
    *,
    blocks: Sequence[int],
    order: Sequence[int] | None = None,
) -> None:
    """Stands for `simulate`."""
    before = [array.copy() for array in arrays]
    simulate(function, arrays, params, lo, hi, blocks=blocks, order=order)
    for threads in ORDERS:
        copies = [array.copy() for array in before]
        emulate(function, copies, params, lo, hi, blocks=blocks, threads=threads)
        require_same(function, copies, arrays)
    if is_installed():
        source = cuda_source(function, NAME)
        require_resources(source, function.threads, one_of_architectures(source))


def require_same(function: Function, found: Sequence[Array], wanted: Sequence[Array]) -> None:
    given = [buffer for buffer in function.buffers if buffer.space == "arg"]
    for buffer, x, y in zip(given, found, wanted, strict=False):
        kind = DTYPES[buffer.elem.elem]
        assert_same(x.reshape(-1).view(kind), y.reshape(-1).view(kind))


def one_of_architectures(source: str) -> str:
    """Of those that have all instructions of a kernel."""
    known = ("sm_90a",) if "wgmma" in source else ARCHITECTURES
    return known[len(source) % len(known)]


@cache
def require_resources(source: str, threads: tuple[int, ...], arch: str) -> None:
    """That a kernel compiles, and takes no more than there is."""
    log = compile_cubin(source, arch).log
    found = resources(log)[NAME]
    assert "serialized" not in log, log  # products of warpgroups, one after the other
    assert not found.spills, f"{arch}: {found}"
    assert found.registers * math.prod(threads) <= _REGISTERS, f"{arch}: {found}"
