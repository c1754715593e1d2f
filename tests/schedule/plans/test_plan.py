"""The plan as data and as text; donated arguments; runs between delegated equations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.errors import ParseError, VerificationError
from stagejit.options import Options
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.schedule import Delegation, Run
from stagejit.schedule.verifier.plans import verify_plan
from tests.expected.left import left
from tests.schedule.planning import check, plan_of, prepared, schedule_graph


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def two_products(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w


TEXT = """\
plan @two_products {
  buffer arg0: f32[4,8] argument 0
  buffer arg1: f32[8,8] argument 1
  buffer r0: f32[4,8] result 0
  buffer t0: f32[4,8] transient slot 0
  dispatch @contract.0 contract (contract, tanh)  reads arg0[0:4, 0:8], arg1[0:8, 0:8]  \
writes t0[0:4, 0:8]  flops 544
  barrier t0[0:4, 0:8]  // RAW @contract.0 -> @contract.1
  dispatch @contract.1 contract (contract)  reads t0[0:4, 0:8], arg1[0:8, 0:8]  \
writes r0[0:4, 0:8]  flops 512
}"""


def test_text() -> None:
    assert plan_of(two_products, f32(4, 8), f32(8, 8)).as_text() == TEXT


def test_text_parses_back() -> None:
    plan = parse_plan(TEXT)
    assert plan.as_text() == TEXT
    assert plan.barriers[0].nbytes == 128
    assert plan.dispatches[0].writes[0].hull == (0, 128)
    verify_plan(plan)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("plan @two_products {", "plan two_products"),
        ("buffer r0: f32[4,8] result 0", "buffer r0 f32[4,8]"),
        ("writes t0[0:4, 0:8]", "writes t1[0:4, 0:8]"),
        ("writes t0[0:4, 0:8]", "writes t0(0:4, 0:8)"),
        ("barrier t0[0:4, 0:8]  //", "barrier t9[0:4, 0:8]  //"),
        ("RAW @contract.0", "XYZ @contract.0"),
        ("  dispatch @contract.0", "  launch @contract.0"),
        ("}", ""),
    ],
)
def test_dont_parse_what_is_not_a_plan(old: str, new: str) -> None:
    with pytest.raises(ParseError):
        parse_plan(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("@contract.1 contract", "@contract.0 contract", "two dispatches"),
        ("buffer r0: f32[4,8] result 0", "buffer r0: f32[2,8] result 0", "leaves the buffer"),
        ("  barrier t0[0:4, 0:8]  // RAW @contract.0 -> @contract.1\n", "", "does not wait for"),
        ("barrier t0[0:4, 0:8]", "barrier t0[0:3, 0:8]", "does not wait for"),
        ("@contract.0 -> @contract.1", "@contract.1 -> @contract.0", "points backwards"),
        ("@contract.0 -> @contract.1", "@contract.9 -> @contract.1", "no such dispatch"),
        ("  writes t0[0:4, 0:8]", "", "nothing has written"),
    ],
)
def test_the_verifier_rejects(old: str, new: str, fault: str) -> None:
    with pytest.raises(VerificationError, match=fault):
        verify_plan(parse_plan(TEXT.replace(old, new)))


def test_the_verifier_rejects_shared_slots() -> None:
    text = plan_of(
        lambda x, w: (jnp.tanh(x @ w) @ w, jnp.tanh(w @ x) @ w), f32(8, 8), f32(8, 8)
    ).as_text()
    with pytest.raises(VerificationError, match="share memory and are alive together"):
        verify_plan(parse_plan(text.replace("slot 256", "slot 64")))


def test_totals_and_views() -> None:
    plan = plan_of(lambda x: jnp.pad(x, 1), f32(4, 8), options=Options(disable=("fuse-pad",)))
    assert [d.kind for d in plan.fills] == ["fill"]
    assert [d.kind for d in plan.copies] == ["copy"]
    assert plan.dispatches[-1].nbytes == 2 * 128
    graph = plan.to_networkx()
    ((_, _, data),) = graph.edges(data=True)
    assert data["barriers"] == list(plan.barriers)
    rows = plan._repr_html_()
    assert all(f"<td>@{dispatch.name}</td>" in rows for dispatch in plan.dispatches)
    assert plan.buffer("r0").nbytes == 240
    with pytest.raises(KeyError):
        plan.buffer("nothing")


def test_a_result_lies_in_the_donated_argument() -> None:
    plan = check(lambda x, y: x * 2 + y, f32(4, 8), f32(4, 8), donated=[True, False])
    assert plan.buffer("arg0").result == 0
    assert all(b.kind == "argument" for b in plan.buffers)


def test_reuse_arguments_off() -> None:
    plan = check(
        lambda x: x * 2, f32(4, 8), donated=[True], options=Options(disable=("reuse-arguments",))
    )
    assert plan.buffer("r0").kind == "result"


REFUSED = {
    "the argument is read after the result is written": (
        lambda x, w: (lambda y: (y, x @ (y @ w)))(w @ w + 1),
        (f32(8, 8), f32(8, 8)),
    ),
    "the contract reads the operand while others write the result": (
        lambda x, w: x @ w,
        (f32(8, 8), f32(8, 8)),
    ),
    "the dispatch reads other elements of the operand than it writes": (
        lambda x, w: x[::-1] + w,
        (f32(8, 8), f32(8, 8)),
    ),
    "a delegated equation makes the result": (
        lambda x, w: left(x),
        (f32(8, 8), f32(8, 8)),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_dont_reuse_an_argument(reason: str) -> None:
    fn, args = REFUSED[reason]
    plan = check(fn, *args, donated=[True, False])
    declined = [d.reason for d in plan.decisions if d.rewrite == "reuse-arguments"]
    assert reason in declined


def test_an_argument_that_is_dead_before_the_result_is_reused() -> None:
    plan = check(lambda x, w: jnp.tanh(x @ w) @ w, f32(8, 8), f32(8, 8), donated=[True, False])
    assert plan.buffer("arg0").result == 0
    assert any(b.hazard == "WAR" for b in plan.barriers) or plan.barriers


def test_delegated_equations_cut_runs() -> None:
    def fn(x: Any, y: Any) -> Any:
        return left(x * 2) + 1, jnp.tanh(y)

    args = (f32(4, 8), f32(4, 8))
    check(fn, *args)
    schedule = schedule_graph(prepared(fn, args))
    first, delegation, last = schedule.segments
    assert isinstance(first, Run)
    assert isinstance(delegation, Delegation)
    assert isinstance(last, Run)
    assert [s.dispatch.name for s in first.steps] == ["mul.0", "tanh.3"]
    assert first.results == ("r1", "t0")
    assert (delegation.operands, delegation.results) == (("t0",), ("t1",))
    assert (last.arguments, last.results) == (("t1",), ("r0",))
    (item,) = schedule.plan.delegated
    assert item.equation == "left"
    assert item.reason
    assert parse_plan(schedule.plan.as_text()).delegated[0].reason == item.reason


def test_a_destination_written_by_two_runs_is_updated_in_place() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        return jnp.concatenate([y, left(y) + 1])

    schedule = schedule_graph(prepared(fn, (f32(4, 8),)))
    last = schedule.segments[-1]
    assert isinstance(last, Run)
    assert last.aliases == ((0, last.arguments.index("r0")),)
    check(fn, f32(4, 8))


def test_outputs_without_elements_leave_a_run() -> None:
    schedule = schedule_graph(prepared(lambda x: x[:0], (f32(4, 8),)))
    (run,) = schedule.segments
    assert isinstance(run, Run)
    assert run.results == ("r0",)
