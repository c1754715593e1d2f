"""Transients over dead operands, in the memory of results, on the stack; and what the verifier says
of plans that share memory wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.memory.packing import FRAME_NBYTES
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.verifier.plans import verify_plan
from tests.schedule.planning import check

SQUARE = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
NBYTES = SQUARE.nbytes


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k, 1) @ v


def test_rows_are_written_over_rows() -> None:
    plan = check(attention, SQUARE, SQUARE, SQUARE)
    scores, weights = plan.buffer("t0"), plan.buffer("t1")
    assert weights.over == "t0"
    assert (weights.slot, weights.host) == (scores.slot, scores.host)
    assert plan.transient_nbytes == 2 * NBYTES
    assert [d.rewrite for d in plan.decisions if d.applied].count("write-in-place") == 1


def test_write_in_place_off() -> None:
    options = Options(disable=("write-in-place", "borrow-results"))
    plan = check(attention, SQUARE, SQUARE, SQUARE, options=options)
    assert not any(b.over or b.host for b in plan.buffers)
    assert plan.peak_nbytes == 2 * NBYTES


def test_an_epilogue_takes_the_place_of_its_operand() -> None:
    """A residual: what is added lies where the sum goes, and both in the result."""
    plan = check(lambda x, w: (h := jnp.tanh(x @ w)) + jnp.exp(h @ w) @ w, SQUARE, SQUARE)
    assert plan.buffer("r0").over == "t0"
    assert plan.buffer("t0").host == "r0"
    assert plan.peak_nbytes == NBYTES


def test_a_result_lends_its_memory_until_it_is_written() -> None:
    plan = check(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w) @ w, SQUARE, SQUARE)
    first, second = plan.buffer("t0"), plan.buffer("t1")
    assert (first.host, second.host) == ("r0", "")
    assert plan.peak_nbytes == NBYTES
    options = Options(disable=("borrow-results",))
    assert check(plan_fn, SQUARE, SQUARE, options=options).peak_nbytes == 2 * NBYTES


def plan_fn(x: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w) @ w


def test_nothing_is_written_over_what_is_read_later() -> None:
    """The scores are wanted again after the softmax."""

    def f(q: Any, k: Any) -> Any:
        scores = q @ k
        return jax.nn.softmax(scores, 1) @ (scores @ k)

    plan = check(f, SQUARE, SQUARE)
    assert not plan.buffer("t1").over


def test_what_the_caller_gets_is_not_written_over() -> None:
    plan = check(lambda q, k: (s := q @ k, jax.nn.softmax(s, 1) @ k), SQUARE, SQUARE)
    assert plan.buffer("t0").over == ""


def test_a_loop_body_shares_among_its_transients_only() -> None:
    """Its results may begin at any element of a buffer outside."""

    def f(x: Any, w: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return c + 1, jax.nn.softmax(jnp.tanh(c @ w) @ w, 1) @ w

        return jax.lax.scan(step, x, None, length=3)

    plan = check(f, SQUARE, SQUARE)
    (body,) = plan.dispatches[-1].bodies
    assert not any(b.host for b in body.plan.buffers)
    assert any(b.over for b in body.plan.buffers)


@pytest.mark.parametrize(("rows", "on_stack"), [(16, True), (17, False)])
def test_a_small_arena_lies_on_the_stack(rows: int, on_stack: bool) -> None:
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) @ w)

    x, w = np.ones((rows, 8), np.float32), np.ones((8, 8), np.float32)
    plan = check(f, x, w)
    assert (plan.arena_nbytes <= FRAME_NBYTES) == on_stack
    assert plan.peak_nbytes == (0 if on_stack else plan.arena_nbytes)


# ------------------------------------------------------------------- the verifier


def changed(plan: Plan, name: str, **fields: Any) -> Plan:
    buffers = tuple(replace(b, **fields) if b.name == name else b for b in plan.buffers)
    return replace(plan, buffers=buffers)


WRONG = {
    "no such transient": ("t1", {"over": "nothing"}),
    "they do not lie at one place": ("t1", {"slot": 65536}),
    "no one dispatch touches both": ("r0", {"over": "t0"}),
    "is no result with memory of its own": ("t0", {"host": "t1", "over": ""}),
    "does not fit in r0": ("t0", {"host": "r0", "slot": 64, "over": ""}),
    "is alive when r0 is written": ("t1", {"host": "r0", "over": ""}),
    "share memory and are alive together": ("t1", {"over": ""}),
}


@pytest.mark.parametrize(("fault", "change"), WRONG.items(), ids=WRONG.keys())
def test_the_verifier_rejects(fault: str, change: tuple[str, dict[str, Any]]) -> None:
    options = Options(disable=("borrow-results",))
    plan = check(attention, SQUARE, SQUARE, SQUARE, options=options)
    if "no one dispatch" in fault:  # else the places differ, which is said first
        plan = changed(changed(plan, "t0", host="r0", slot=0), "t1", over="", slot=NBYTES)
    name, fields = change
    with pytest.raises(VerificationError, match=fault):
        verify_plan(changed(plan, name, **fields))


ORDER = """plan @f {
  buffer x: f32[64] argument 0
  buffer r0: f32[64] result 0
  buffer r1: f32[64] result 1
  buffer t0: f32[64] transient slot 0
  buffer t1: f32[64] transient slot 0 over t0
  dispatch @map.0 map (exp)  reads x[0:64]  writes t0[0:64]
  READS_FIRST
  barrier t0[0:64]  // RAW @map.0 -> @map.2
  dispatch @map.2 map (sin)  reads t0[0:64]  writes t1[0:64]
  READS_LAST
  barrier t1[0:64]  // RAW @map.2 -> @map.3
  dispatch @map.3 map (tan)  reads t1[0:64]  writes r0[0:64]
}
"""
READER = """barrier t0[0:64]  // RAW @map.0 -> @map.1
  dispatch @map.1 map (cos)  reads t0[0:64]  writes r1[0:64]"""
PART = {"reads t0[0:64]  writes t1[0:64]": "reads t0[0:63]  writes t1[0:63]"}


def plan_text(first: str, last: str) -> str:
    return "\n".join(
        line
        for line in ORDER.replace("READS_FIRST", first).replace("READS_LAST", last).splitlines()
        if line.strip()
    )


@pytest.mark.parametrize("text", [plan_text(READER, ""), plan_text("", READER)])
def test_the_verifier_rejects_other_readers(text: str) -> None:
    """Whether before or after: nothing orders the other reader before the overwriting."""
    with pytest.raises(VerificationError, match="touched later"):
        verify_plan(parse_plan(text))


def test_the_verifier_rejects_parts() -> None:
    text = plan_text("", "")
    verify_plan(parse_plan(text))
    for whole, part in PART.items():
        with pytest.raises(VerificationError, match="does not read all of one"):
            verify_plan(
                parse_plan(text.replace(whole, part).replace("reads t1[0:64]", "reads t1[0:63]"))
            )


def test_order_for_the_sake_of_memory() -> None:
    """A gradient reads the activation twice: what is written over it waits for the other one."""

    def f(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return h @ w, (jnp.exp(x @ w.T) * (1 - h * h)) @ w

    plan = check(f, SQUARE, SQUARE, orders=4)
    (new,) = [b for b in plan.buffers if b.over == "t0"]
    (wait,) = [b for b in plan.barriers if b.hazard == "WAR"]
    assert (wait.buffer, wait.nbytes) == ("t0", NBYTES)
    assert wait.dst == next(d.name for d in plan.dispatches if d.writes[0].buffer == new.name)
    assert plan.arena_nbytes == NBYTES
    without = replace(plan, barriers=tuple(b for b in plan.barriers if b is not wait))
    with pytest.raises(VerificationError, match=r"does not wait|touched later"):
        verify_plan(without)
    narrow = replace(wait, ranges=(Box((0, 0), (63, 64), (1, 1)),))
    other = tuple(narrow if b is wait else b for b in plan.barriers)
    with pytest.raises(VerificationError, match=r"does not wait for .*: WAR on t0\[63:64, 0:64\]"):
        verify_plan(replace(plan, barriers=other))


def test_one_wait_where_two_results_could_take_one_place() -> None:
    def f(a: Any) -> Any:
        total = lax.cumsum(a)
        chosen = jnp.where(total > 0, total, total.at[3].add(1.0))
        return lax.cumsum(total[2:5]), chosen, chosen

    options = Options(disable="select-updates")  # which copies nothing
    plan = check(f, SQUARE[0], options=options, orders=4)
    assert {b.over for b in plan.buffers if b.kind == "result"} == {"", "t0", "t2"}
    assert len(set(plan.barriers)) == len(plan.barriers)
