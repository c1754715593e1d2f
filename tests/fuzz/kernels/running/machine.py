"""Runs kernels on this machine, built for any of its instruction sets.

Input: modules of LLVM IR text by symbol, frames. Output: images after the run. Invariant: nothing
is linked but the modules themselves, so that a kernel that needs a library cannot be linked; code
is freed with its batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from stagejit.codegen.target import Target
from tests.fuzz.kernels.running.scene import Frame

Array = np.ndarray[Any, np.dtype[Any]]
Entry = Callable[..., None]

_WORDS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def target_machine(target: Target, level: int) -> Any:
    """LLVM's code generator, as the engine configures it, at a level."""
    _initialize()
    made = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="default"
    )
    made.set_asm_verbosity(False)
    return made


def compile_object(text: str, target: Target, level: int) -> bytes:
    """The object file of one module."""
    machine = target_machine(target, level)
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return bytes(machine.emit_object(module))


class Native:
    """This machine. Holds the code of the batches that its callers hold."""

    def __init__(self) -> None:
        self._jit: Any = None
        self._count = 0

    def load(self, objects: Mapping[str, bytes]) -> tuple[dict[str, Entry], object]:
        """Functions by symbol, and what keeps them."""
        if self._jit is None:
            _initialize()
            self._jit = llvm.create_lljit_compiler(use_jit_link=True)
        library = llvm.JITLibraryBuilder()
        for symbol, image in objects.items():
            library.add_object_img(image).export_symbol(symbol)
        self._count += 1
        tracker = library.link(self._jit, f"batch{self._count}")
        kind = ctypes.CFUNCTYPE(None, *_WORDS)
        return {symbol: kind(tracker[symbol]) for symbol in objects}, tracker


def run(entry: Entry, frame: Frame) -> Array:
    """The image after all chunks of all launches; scratch is poisoned before each."""
    size = frame.image.size
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    image = memory[start : start + size]
    image[:] = frame.image
    base = image.ctypes.data
    pointers = (ctypes.c_void_p * max(len(frame.buffers), 1))(*(base + p for p in frame.buffers))
    scratch = image[frame.scratch : frame.scratch + frame.scratch_nbytes]
    for params in frame.params:
        words = (ctypes.c_int64 * max(len(params), 1))(*params)
        for lo, hi in frame.chunks:
            scratch[:] = frame.poison
            entry(pointers, words, lo, hi, base + frame.scratch)
    return image
