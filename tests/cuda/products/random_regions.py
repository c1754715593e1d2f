"""Random regions as emulated kernels of a GPU, judged as a CPU's are (`tests/fuzz/kernels`).

Input: the number of a random case, kinds of regions. Output: faults, in words. Invariant: as in
`tests/fuzz/kernels/check.py`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

import numpy as np

from stagejit.codegen.cuda.device import Device
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.runtime.cuda.emulation.memory import Pages
from tests.cuda.emulation.emulated import NAME, ORDERS, launched
from tests.cuda.machine import GPU
from tests.fuzz.kernels.case import Case, draw_case
from tests.fuzz.kernels.check import Caches, CaseFault, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.running.scene import Array
from tests.fuzz.kernels.worker import numbers_of

_MOST_BLOCKS = 3


def faults_of(
    seed: int, number: int, kinds: Container[str], device: Device = GPU
) -> Iterator[tuple[Job | None, str]]:
    """Of the kernels of one case; an empty text for each that is right."""
    case = draw_case(Choices.replayed(numbers_of(seed, number)))
    yield from faults_in(case, kinds, device, ORDERS[number % len(ORDERS)])


def faults_in(
    case: Case, kinds: Container[str], device: Device, order: str, most_nbytes: float = math.inf
) -> Iterator[tuple[Job | None, str]]:
    """Of the kernels of a case that have at most so much memory."""
    try:
        for job in jobs_of(case, Caches({"gpu": device}), ["gpu"], kinds):
            if job.frame.image.size <= most_nbytes:
                yield job, _run(job, order)
    except CaseFault as fault:
        yield None, str(fault)


def _run(job: Job, order: str) -> str:
    """What is wrong with a kernel after all its passes, each over all chunks of blocks; empty where
    nothing is."""
    frame, kernel = job.frame, job.kernel
    memory = np.zeros(frame.image.size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    image: Array = memory[start : start + frame.image.size]
    image[...] = frame.image
    workspace = Pages(kernel.workspace_nbytes)
    pointers = [image.ctypes.data + place for place in frame.buffers[: len(kernel.args)]]
    pointers += [workspace.address] if kernel.workspace_nbytes else []
    source, threads = job.llvm.replace(job.symbol, NAME), kernel.function.threads
    nbytes = dynamic_nbytes(kernel.function.buffers)
    for passed in kernel.passes:
        for low, high in frame.chunks:
            words, blocks = [*pointers, *passed, low, high], min(high - low, _MOST_BLOCKS)
            if blocks and (found := launched(source, threads, words, [blocks], order, nbytes)):
                return found
    workspace.check()
    return job.fault(image)
