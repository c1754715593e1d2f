"""Random kernels in the interpreter of the loop-nest IR: against machine code, bit for bit, for the
targets that run here or are emulated, and against the meaning of their graphs for all. Scratch is
full of another byte the second time, which nothing that is stored may depend on. Caches, cores and
speeds of every other case are those of no machine: they choose blocks, items and streams, never
values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.codegen.target import Target
from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.check import Caches, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.running.interpreted import difference, interpreted, is_small
from tests.fuzz.kernels.running.machines import machine_of
from tests.fuzz.kernels.running.targets import ALL, cpu_named, find_targets
from tests.fuzz.kernels.verdict import Runner

CPUS = {name: cpu_named(name) for name in ALL}
# Bochs takes seconds to start.
FOUND = find_targets([name for name in CPUS if name != "avx512" or Target.host().has_avx512])


def machines(number: int) -> Mapping[str, Target]:
    """With the instructions of `CPUS`."""
    return {name: machine_of(cpu, number if number % 2 else 0) for name, cpu in CPUS.items()}


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
