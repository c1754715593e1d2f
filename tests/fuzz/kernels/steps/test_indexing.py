"""The lab draws scatters of long windows that move: it finds them shared out between items."""

from __future__ import annotations

from contextlib import suppress

import pytest

from stagejit.codegen.elements import scatters
from stagejit.graph.verifier import verify
from stagejit.types import f32
from tests.fuzz.kernels.case import Case, Setting
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.draft import Draft, NothingFits
from tests.fuzz.kernels.running.targets import find_targets
from tests.fuzz.kernels.steps import indexing
from tests.fuzz.kernels.verdict import fault_of

CASES = 60


def cases() -> list[Case]:
    made = []
    for number in range(CASES):
        draft = Draft(Choices.drawn("indexing", number), f32)
        draft.argument((3, 4), f32)
        step = indexing.gather if number % 4 == 3 else indexing.scatter
        with suppress(NothingFits):
            step(draft)
        draft.graph.set_outputs([draft.values[-1].value])
        verify(draft.graph)
        made.append(Case(draft.graph, Setting(seed=number)))
    return made


def test_what_is_drawn() -> None:
    ops = [op for case in cases() for op in case.graph.ops()]
    scatters = [op for op in ops if op.kind == "scatter"]
    assert {op.attrs["fn"] for op in scatters} >= {"set", "add", "max"}
    assert {op.attrs["unique"] for op in scatters} == {True, False}
    assert any(op.attrs["operand_batch_axes"] for op in scatters)
    assert any(len(op.attrs["start_axes"]) > 1 for op in scatters)
    assert len({op.operands[1].type.dtype for op in scatters}) > 2
    assert any(op.kind == "gather" for op in ops)


def test_windows_that_are_shared_out_although_they_move_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets = find_targets(("sse2",))
    if not targets.names:
        pytest.skip(targets.skipped["sse2"])
    assert fault_of(cases(), targets) is None
    monkeypatch.setattr(scatters, "_moving_axes", lambda op: frozenset())
    fault = fault_of(cases(), targets)
    assert fault is not None
    assert fault.kind == "value"
    assert fault.what.startswith("scatter")
