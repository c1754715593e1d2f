"""The kernel lab: a fixed budget of random kernels, and that it sees what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stagejit.codegen.target import Target
from stagejit.graph.verifier import verify
from tests.fuzz.kernels.case import draw_case, read_case
from tests.fuzz.kernels.check import Caches, Job, jobs_of
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.lab import run_kernels
from tests.fuzz.kernels.running.interpreted import interpreted
from tests.fuzz.kernels.running.machines import machine_of
from tests.fuzz.kernels.running.targets import ALL, Targets, find_targets
from tests.fuzz.kernels.verdict import Runner
from tests.sampling import budget

SEED = 7


def test_equal_seeds_give_equal_cases_that_print_and_parse() -> None:
    for number in range(50):
        choices = Choices.drawn(0, number)
        case = draw_case(choices)
        verify(case.graph)
        text = case.text
        assert draw_case(Choices.replayed(choices.made)).text == text
        assert read_case(text.split("\n", 1)[1], case.setting).text == text


def test_slices_of_what_is_repeated_are_drawn() -> None:
    """In bounds, and of a whole period as well as across two of them."""
    kinds = set()
    for number in range(900):
        graph = draw_case(Choices.drawn(0, number)).graph
        for op in graph.ops():
            chain = [op, op.operands[0].op] if op.kind == "extract_slice" else []
            if [found and found.kind for found in chain] != ["extract_slice", "reshape"]:
                continue
            repeat = chain[1].operands[0].op
            if repeat is None or repeat.kind != "broadcast":
                continue
            shape, apart = op.operands[0].shape, repeat.result.shape
            joined = [k for k, n in enumerate(shape) if apart[k : k + 2] != shape[k : k + 2]]
            if len(apart) != len(shape) + 1 or not joined:
                continue
            axis = joined[0]
            period = apart[axis + 1]
            start, stride = op.attrs["offsets"][axis], op.attrs["strides"][axis]
            kinds.add((stride, start % period < stride))
        if kinds >= {(1, True), (1, False), (2, True)}:
            return
    pytest.fail(f"{kinds} alone")


def test_arguments_of_other_layouts_are_drawn() -> None:
    """In another order of axes, with gaps along the innermost one, and both."""
    found = set()
    for number in range(900):
        for op in draw_case(Choices.drawn(0, number)).graph.ops():
            if op.kind != "transpose" or op.operands[0].op.kind != "reshape":
                continue
            part = op.operands[0].op.operands[0].op
            if part.kind == "extract_slice" and part.operands[0].op.kind == "input":
                found.add(part.result.shape[-1] == 1 < part.operands[0].shape[-1])
        if found == {True, False}:
            return
    pytest.fail(f"{found} alone")


SUM = """
    graph @case(%x0: f32[3,5]) {
      %0: f32[3] = reduce add %x0 axes=(1)
      return %0
    }"""


def jobs(targets: Targets, text: str = SUM) -> list[Job]:
    case = read_case(text, draw_case(Choices.replayed([])).setting)
    return list(jobs_of(case, Caches(targets.cpus), targets.names))


def test_each_kind_of_fault_is_seen() -> None:
    targets = find_targets(("sse2",))
    if not targets.names:
        pytest.skip(targets.skipped["sse2"])
    (job,) = jobs(targets)
    frame = job.frame
    read, written = sorted(frame.buffers[:2])
    unwritten = frame.image.copy()
    assert "3 of 3 elements" in job.fault(unwritten)
    right = frame.image.copy()
    sums = frame.image[read : read + 60].view(np.float32).reshape(3, 5).sum(1)
    right[written : written + 12] = sums.view(np.uint8)
    assert job.fault(right) == ""
    for stray in (written - 1, written + 12, read, frame.scratch + frame.scratch_nbytes):
        spoiled = right.copy()
        spoiled[stray] ^= 1
        assert "was written" in job.fault(spoiled)
    wrong = right.copy()
    wrong[written + 4 : written + 8].view(np.float32)[:] += 1
    assert "1 of 3 elements" in job.fault(wrong)


LEFT_OPEN = """
graph @case(%x0: {t}[1,15,2], %x1: {t}[1,15,2]) {{
  %0: {t}[1,15,6] = empty
  %1: {t}[1,15,6] = insert_slice %x0 into %0 at (0, 0, 4)
  %2: {t}[1,15,6] = insert_slice %x1 into %1 at (0, 0, {start})
  %3: {t}[] = const {zero}
  %4: {t}[2,20,9] = fill %3
  %5: {t}[2,20,9] = insert_slice %2 into %4 at (1, 2, 0)
  return %5
}}"""


@pytest.mark.parametrize(
    ("t", "zero"), [("f32", "0.0"), ("i32", "0"), ("u8", "0"), ("bool", "false")]
)
def test_what_a_graph_leaves_open_may_be_anything(t: str, zero: str) -> None:
    """A part of the padded array was never written: the pad may fill it, too."""
    targets = find_targets(("sse2",))
    for start in (2, 0, 1):
        text = LEFT_OPEN.format(t=t, zero=zero, start=start)
        case = read_case(text, draw_case(Choices.replayed([])).setting)
        assert list(jobs_of(case, Caches(targets.cpus), targets.names))


@pytest.mark.parametrize("name", ["avx512", "neon"])
def test_what_an_emulator_runs_is_judged(name: str) -> None:
    targets = find_targets((name,))
    if not targets.emulators:
        pytest.skip(targets.skipped.get(name, "runs natively"))
    (job,) = jobs(targets)
    assert Runner(targets).run([job]) == []
    wrong = replace(job, llvm=job.llvm.replace(" fadd ", " fsub "))
    assert wrong != job
    ((_, fault),) = Runner(targets).run([wrong])
    assert fault.kind == "value"


ROW = """
    graph @case(%x0: i8[1,3000]) {
      %0: i8[1,3000] = sort %x0 axis=1 count=3000 descending=false keys=1 results=(0)
      return %0
    }"""
SHARED = {"sse2": 20, "neon": 19}  # machines on which cores share a row that is no longer


@pytest.mark.parametrize("name", SHARED)
def test_rows_that_cores_share_are_judged(name: str) -> None:
    """By what all launches of their kernel leave together."""
    targets = find_targets((name,))
    if not targets.names:
        pytest.skip(targets.skipped[name])
    setting = replace(draw_case(Choices.replayed([])).setting, machine=SHARED[name])
    (job,) = jobs_of(read_case(ROW, setting), Caches(targets.cpus), targets.names)
    frame, target = job.frame, machine_of(targets.cpus[name], setting.machine)
    assert len(frame.params) == len(job.kernel.passes) > 2
    assert len(frame.workspaces) == len(job.kernel.workspaces) > 1
    assert Runner(targets).run([job]) == []
    assert job.fault(interpreted(job, target, 0xFF)) == ""
    unfinished = replace(job, frame=replace(frame, params=frame.params[:-1]))
    ((_, fault),) = Runner(targets).run([unfinished])
    assert fault.kind == "value"
    place, nbytes = frame.workspaces[-1]
    for stray in (place - 1, place + nbytes):
        spoiled = frame.image.copy()
        spoiled[stray] ^= 1
        assert f"of scratch [0, {nbytes}) was written" in job.fault(spoiled)


def test_what_nothing_but_the_interpreter_runs_is_judged() -> None:
    targets = find_targets(("vnni", "amx"), interpreted=True)
    if not targets.interpreted:
        pytest.skip("this processor has all instructions")
    runner = Runner(targets)
    assert runner.run(jobs(targets)) == []
    assert runner.interpreted.total() == len(targets.names)
    (wrong,) = jobs(targets.only(next(iter(targets.interpreted))))
    for op in wrong.kernel.function.walk():
        op.opcode = "fsub" if op.opcode == "fadd" else op.opcode
    ((_, fault),) = runner.run([wrong])
    assert fault.kind == "value"


def test_targets_that_are_not_here_are_named() -> None:
    report = run_kernels(seed=0, count=1, targets=("s390x",))
    assert report.skipped == {
        "s390x": "there is no such target; there are avx512, avx2, sse2, neon, vnni, dotprod, amx"
    }
    assert not report.kernels
    assert report.ok


@pytest.mark.timeout(900)
def test_random_kernels_give_what_they_mean() -> None:
    """The first cases of a run; `python -m tests.fuzz` goes on from other seeds, and has Bochs
    run those for AVX-512 where the processor cannot."""
    names = [name for name in ALL if name != "avx512" or Target.host().has_avx512]
    report = run_kernels(seed=SEED, count=budget(120, of=600), targets=names)
    assert report.ok, report.as_text()
    assert report.kernels.total() > 0 or len(report.skipped) == len(names)


def test_a_budget_is_needed() -> None:
    with pytest.raises(ValueError, match="minutes or count"):
        run_kernels(seed=0)


TIMES_3 = """
    graph @case(%x0: f32[3,5]) {
      %0: f32[] = const 3.0
      %1: f32[3,5] = fill %0
      %2: f32[3,5] = map mul %x0, %1
      return %2
    }"""


@pytest.mark.parametrize("name", ["sse2", "neon"])
def test_machine_code_that_does_something_else_is_noticed(name: str) -> None:
    """In its last bits, where the meaning of the graph leaves room."""
    targets = find_targets((name,))
    if not targets.names:
        pytest.skip(targets.skipped[name])
    (right,), (wrong,) = jobs(targets, TIMES_3), jobs(targets, TIMES_3)
    for op in wrong.kernel.function.walk():
        for value in op.results:
            value.const = (
                3 + 2.0**-20 if value.const == 3.0 and value.type.is_float else value.const
            )
    runner = Runner(targets)
    ((_, fault),) = runner.run([right, wrong])
    assert fault.kind == "bits"
    assert runner.interpreted == {name: 2}
