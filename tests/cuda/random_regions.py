"""Random regions as emulated kernels of a GPU, judged as a CPU's are (`tests/fuzz/kernels`).

Input: the number of a random case, kinds of regions. Output: faults, in words. Invariant: as in
`tests/fuzz/kernels/check.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from stagejit.codegen.cuda.device import Device
from tests.cuda.emulated import NAME, ORDERS, launched
from tests.cuda.machine import GPU
from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.check import Caches, CaseFault, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.scene import Array
from tests.fuzz.kernels.worker import numbers_of

_MOST_BLOCKS = 3


def faults_of(
    seed: int, number: int, kinds: Container[str], device: Device = GPU
) -> Iterator[tuple[Job | None, str]]:
    """Of the kernels of one case; an empty text for each that is right."""
    case = draw_case(Choices.replayed(numbers_of(seed, number)))
    try:
        for job in jobs_of(case, Caches({"gpu": device}), ["gpu"], kinds):
            yield job, _run(job, ORDERS[number % len(ORDERS)])
    except CaseFault as fault:
        yield None, str(fault)


def _run(job: Job, order: str) -> str:
    """What is wrong with a kernel after its run; empty where nothing is."""
    frame, args = job.frame, len(job.kernel.args)
    memory = np.zeros(frame.image.size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    image: Array = memory[start : start + frame.image.size]
    image[...] = frame.image
    pointers = [image.ctypes.data + place for place in frame.buffers[:args]]
    source, threads = job.llvm.replace(job.symbol, NAME), job.kernel.function.threads
    for low, high in frame.chunks:
        blocks = min(high - low, _MOST_BLOCKS)
        if blocks and (found := launched(source, threads, [*pointers, low, high], [blocks], order)):
            return found
    return job.fault(image)
