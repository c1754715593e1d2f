"""Carries out a schedule with emulated kernels of a GPU, each dispatch over its own memory.

Input, output, invariant: as `tests/schedule/execution/machine.py`, whose loops and branches run on
the host. Threads of a block run in an order that changes from kernel to kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import stagejit
from stagejit.codegen.cuda.device import Device, device_named
from stagejit.codegen.generate import Generated, kernel_cache
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.codegen.kernel import Kernel
from stagejit.dispatch.regions import Region
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime.cuda.code.nvrtc import is_installed
from stagejit.schedule.schedule import Step
from tests.cuda.emulation.checked import one_of_architectures, require_resources
from tests.cuda.emulation.emulated import NAME, ORDERS, EmulationError, launched
from tests.schedule.execution.machine import Machine

GPU = device_named("H200")
_MOST_BLOCKS = 3  # of a launch, so that blocks take several shares


class CudaMachine(Machine):
    """Runs the kernels of one schedule one by one. device: what they are made for."""

    device: Device = GPU
    resources: bool = False  # whether kernels are compiled for a GPU as well

    def _part(
        self,
        region: Region,
        step: Step,
        reads: Sequence[str],
        writes: Sequence[str],
        memory: dict[str, Any],
    ) -> None:
        machine = super() if region.has_kernel else super(Machine, self)  # what the host does
        machine._part(region, step, reads, writes, memory)

    def _generated(self, region: Region) -> Generated:
        return kernel_cache(self.device, verify=True).generate(region)

    def _call(self, generated: Generated, addresses: Sequence[int]) -> None:
        source = generated.text.replace(generated.symbol, NAME)
        carry_out(source, generated.kernel, addresses, resources=self.resources)


def carry_out(
    source: str, kernel: Kernel, addresses: Sequence[int], *, resources: bool = False
) -> None:
    """All launches of a kernel on memory of this process."""
    if not kernel.total:
        return
    workspace = np.full(kernel.workspace_nbytes + 16, 0xFF, np.uint8)
    at = -(-workspace.ctypes.data // 16) * 16
    pointers = [*addresses, *([at] if kernel.workspace_nbytes else [])]
    for number, passed in enumerate(kernel.passes):
        chosen = ORDERS[(len(source) + number) % len(ORDERS)]
        blocks = kernel.total if len(source) % 2 else min(kernel.total, _MOST_BLOCKS)
        words = [*pointers, *passed, 0, kernel.total]
        nbytes = dynamic_nbytes(kernel.function.buffers)
        launch(source, kernel.function.threads, words, blocks, chosen, nbytes)
    if resources and is_installed():
        require_resources(source, kernel.function.threads, one_of_architectures(source))


def launch(
    source: str, sizes: Sequence[int], words: Sequence[int], blocks: int, order: str,
    shared_nbytes: int = 0,
) -> None:  # fmt: skip
    """Launches the kernel of a source on memory of this process."""
    if found := launched(source, sizes, words, [blocks], order, shared_nbytes):
        raise EmulationError(found)


def compilation_of(
    function: Callable[..., Any], *args: Any, options: Options | None = None, device: Device = GPU
) -> Compilation:
    """The compilation of a function for a GPU."""
    jitted = stagejit.jit(function, options=options or Options(verify=True))
    return Compilation(jitted.trace(*args).compilation.request, target=device)


def run(
    function: Callable[..., Any],
    *args: Any,
    options: Options | None = None,
    device: Device = GPU,
    resources: bool = False,
) -> list[Any]:
    """The results of a function, flat, by emulated kernels."""
    made = compilation_of(function, *args, options=options, device=device).run_until("schedule")
    machine = CudaMachine(made.schedule)
    machine.device, machine.resources = device, resources
    return machine([as_held(leaf) for leaf in jax.tree.leaves(args)])


def as_held(leaf: Any) -> Any:
    """An array as programs have it: a typed key as its words, a complex number as a pair."""
    if jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array
