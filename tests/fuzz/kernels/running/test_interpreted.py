"""Random kernels in the interpreter of the loop-nest IR: against machine code, bit for bit, for the
targets that run here or are emulated, and against the meaning of their graphs for all. Scratch is
full of another byte the second time, which nothing that is stored may depend on. Caches, cores and
speeds of every other case are those of no machine: they choose blocks, items and streams, never
values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.codegen.target import Target
from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.check import Caches, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.running.interpreted import difference, interpreted, is_small
from tests.fuzz.kernels.running.targets import ALL, cpu_named, find_targets
from tests.fuzz.kernels.verdict import Runner

CPUS = {name: cpu_named(name) for name in ALL}
# Bochs takes seconds to start.
FOUND = find_targets([name for name in CPUS if name != "avx512" or Target.host().has_avx512])
# What decides how kernels are cut, from far too little to far too much.
FIELDS: dict[str, tuple[float, ...]] = {
    "cores": (1, 2, 3, 7, 64, 200), "fma_ports": (1, 2, 4), "vector_registers": (8, 16, 32),
    "l1_nbytes": (256, 4 << 10, 48 << 10), "l2_nbytes": (512, 32 << 10, 1 << 20),
    "l3_nbytes": (1 << 10, 1 << 20, 32 << 20), "l3s": (1, 2, 8), "lines_ahead": (0, 1, 3, 16),
    "l1_misses": (2, 12, 24), "line_nbytes": (64, 128), "page_nbytes": (256, 4096, 16 << 10),
    "clock": (1e9, 3e9), "peak_flops": (1e9, 1e11, 1e13), "core_bandwidth": (1e8, 2e10),
    "bandwidth": (1e8, 4e10), "cache_bandwidth": (1e8, 1e12), "l2_bandwidth": (1e8, 7e10),
}  # fmt: skip


def machines(number: int) -> Mapping[str, Target]:
    """With the instructions of `CPUS`."""
    draw = random.Random(number)

    def odd() -> dict[str, Any]:
        return {name: draw.choice(of) for name, of in FIELDS.items()}

    return {name: replace(cpu, **odd()) for name, cpu in CPUS.items()} if number % 2 else CPUS


def jobs(number: int) -> Iterator[Job]:
    case = draw_case(Choices.drawn("interpreted", number))
    for job in jobs_of(case, Caches(machines(number)), tuple(CPUS)):
        if is_small(job):
            yield job


@pytest.mark.fuzz
@given(st.integers(0, 1 << 40))
def test_random_kernels(number: int) -> None:
    made, runner = list(jobs(number)), Runner(FOUND)
    for job in made:
        image = interpreted(job, CPUS[job.target], 0xFF)
        assert job.fault(image) == ""
        if job.kernel.function.scratch_nbytes:
            assert difference(job, image, interpreted(job, CPUS[job.target], 0)) == ""
    here = [job for job in made if job.target in FOUND.cpus]
    assert runner.run(here) == []
    assert runner.interpreted.total() == len(here)


def test_a_kernel_that_does_something_else_is_noticed() -> None:
    noticed = 0
    for job in (job for number in range(12) for job in jobs(number) if job.target == "neon"):
        image = interpreted(job, CPUS[job.target], 0xFF)
        for op in job.kernel.function.walk():
            op.opcode = "fsub" if op.opcode == "fadd" else op.opcode
        noticed += difference(job, image, interpreted(job, CPUS[job.target], 0xFF)) != ""
    assert noticed
