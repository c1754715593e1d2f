"""Random kernels in the interpreter of the loop-nest IR: against machine code, bit for bit, for the
targets that run here, and against the meaning of their graphs for all. Scratch is full of another
byte the second time, which nothing that is stored may depend on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.codegen.target import Target
from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.check import Caches, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.interpreted import difference, interpreted
from tests.fuzz.kernels.machine import Native, compile_object, run
from tests.fuzz.kernels.scene import Array
from tests.fuzz.kernels.targets import find_targets

CPUS = {"avx512": Target.avx512(), "avx2": Target.avx2(), "sse2": Target.sse2(),
        "neon": Target.neon()}  # fmt: skip
FOUND = find_targets(("avx512", "avx2", "sse2"))
HERE = FOUND.cpus.keys() - FOUND.emulators.keys()
# Of memory, so that a kernel takes well under a second.
MOST_NBYTES = 1 << 15


def jobs(number: int) -> Iterator[Job]:
    case = draw_case(Choices.drawn("interpreted", number))
    for job in jobs_of(case, Caches(CPUS), tuple(CPUS)):
        if job.frame.image.size <= MOST_NBYTES:
            yield job


def compiled(job: Job) -> Array:
    entries, _kept = Native().load(
        {job.symbol: compile_object(job.llvm, CPUS[job.target], job.level)}
    )
    return run(entries[job.symbol], job.frame)


@pytest.mark.fuzz
@given(st.integers(0, 1 << 40))
def test_random_kernels(number: int) -> None:
    for job in jobs(number):
        image = interpreted(job, CPUS[job.target], 0xFF)
        assert job.fault(image) == ""
        if job.kernel.function.scratch_nbytes:
            assert difference(job, image, interpreted(job, CPUS[job.target], 0)) == ""
        if job.target in HERE:
            assert difference(job, image, compiled(job)) == ""


def test_a_kernel_that_does_something_else_is_noticed() -> None:
    noticed = 0
    for job in (job for number in range(12) for job in jobs(number) if job.target == "neon"):
        image = interpreted(job, CPUS[job.target], 0xFF)
        for op in job.kernel.function.walk():
            op.opcode = "fsub" if op.opcode == "fadd" else op.opcode
        noticed += difference(job, image, interpreted(job, CPUS[job.target], 0xFF)) != ""
    assert noticed
