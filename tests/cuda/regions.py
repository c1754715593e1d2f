"""Runs regions as emulated kernels of a GPU, so that tests of a CPU's kernels test these, too.

Input, output: as `tests/codegen/regions.py`. Invariant: arrays lie between pages that may not be
touched; kernels are verified, and compiled for a GPU as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.kernel import Kernel
from stagejit.runtime.cuda.emulation.memory import Pages
from tests.codegen.regions import Array, Runner
from tests.cuda.emulation.emulated import NAME
from tests.cuda.machine import GPU, carry_out


class CudaRunner(Runner):
    """Runs regions on a GPU that is none."""

    def __init__(self, device: Device = GPU) -> None:
        super().__init__(_compiles_nothing, device)

    def call(self, kernel: Kernel, buffers: Sequence[Array], *, verify: bool) -> None:
        pages = {id(array): Pages(array.nbytes) for array in buffers}
        for array in buffers:
            pages[id(array)].inside[...] = array.reshape(-1).view(np.uint8)
        addresses = [
            pages[id(array)].address + arg.offset * array.itemsize
            for array, arg in zip(buffers, kernel.args, strict=True)
        ]
        carry_out(cuda_source(kernel.function, NAME), kernel, addresses, resources=True)
        for array in buffers:
            pages[id(array)].check()
            array.reshape(-1).view(np.uint8)[...] = pages[id(array)].inside


def _compiles_nothing(*_: object) -> None:
    raise AssertionError("a GPU's kernel is emulated")
