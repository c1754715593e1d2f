"""`Plan.peak`: what the peak of memory is made of adds up to what a call allocates, and is what the
picture of memory shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import stagejit
from stagejit.base.numbers import nbytes_text
from stagejit.codegen.target import Target
from stagejit.errors import OptionsError
from stagejit.inspect.pictures import memory
from stagejit.schedule.memory.lifetimes import lives_of, owned
from stagejit.schedule.memory.packing import FRAME_NBYTES
from stagejit.schedule.memory.peak import Peak
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from tests.runtime.modelled.test_agree import PROGRAMS, compilation, nested, repeated

S, L = np.ones((16, 16), np.float32), np.ones((200, 200), np.float32)


def plans(plan: Plan) -> Iterator[Plan]:
    yield plan
    for dispatch in plan.dispatches:
        for body in dispatch.bodies:
            yield from plans(body.plan)


def bytes_in_use(plan: Plan) -> list[int]:
    """At each position by marking every byte that somebody still needs: of the arena, and of values
    that pass between runs."""
    used = [np.zeros(plan.arena_nbytes, bool) for _ in plan.dispatches]
    passed = [0 for _ in plan.dispatches]
    for life in lives_of(plan):
        buffer = life.buffer
        if buffer.kind != "transient" or buffer.host:
            continue
        for at in range(life.first, life.last + 1):
            if buffer.slot is None:
                passed[at] += buffer.nbytes
            else:
                used[at][buffer.slot : buffer.slot + buffer.nbytes] = True
    return [int(marks.sum()) + more for marks, more in zip(used, passed, strict=True)]


def check(plan: Plan, peak: Peak, *, inside: bool = False) -> None:
    counted = bytes_in_use(plan)
    assert peak.nbytes == sum(each.nbytes for each in peak.buffers)
    if not peak.buffers:
        assert not any(counted)
        return
    assert peak.nbytes == max(counted)
    assert peak.position == counted.index(peak.nbytes)
    assert peak.dispatch == plan.dispatches[peak.position].name
    assert peak.loc == plan.dispatches[peak.position].loc
    assert peak.idle_nbytes >= 0
    on_stack = plan.arena_nbytes <= FRAME_NBYTES and not inside
    assert peak.stack_nbytes == (plan.arena_nbytes if on_stack else 0)
    if not inside:
        assert peak.allocated_nbytes == plan.peak_nbytes
    mine = {life.buffer.name for life in owned(lives_of(plan))}
    for each in peak.buffers:
        assert each.name in mine
        assert each.nbytes == plan.buffer(each.name).nbytes
        (writer,) = (d for d in plan.dispatches if d.name == each.writer)
        assert each.loc == writer.loc
        for within in each.inside:
            (dispatch,) = (d for d in plan.dispatches if d.name == within.dispatch)
            body = dispatch.bodies[within.number]
            check(body.plan, within.peak, inside=True)
            own = body.plan.arena_nbytes + sum(carried.nbytes for carried in within.carried)
            assert within.threads * own <= each.nbytes
            assert within.peak.nbytes + within.peak.idle_nbytes == body.plan.arena_nbytes
        if each.inside:  # what lies there is known but for what lines are rounded up to
            most = max(
                w.threads * (w.peak.nbytes + w.peak.idle_nbytes + sum(c.nbytes for c in w.carried))
                for w in each.inside
            )
            assert each.nbytes - most <= 256 * max(w.threads for w in each.inside)


def check_picture(plan: Plan, title: str) -> None:
    panels = {panel.title: panel for panel in memory.panels(plan)}
    note = panels[f"memory of {title}"].note
    assert f"peak of transients {nbytes_text(plan.peak.nbytes)}" in note
    if plan.peak.nbytes:
        assert f"at @{plan.peak.dispatch}," in note
        told = panels[f"buffers of the peak of {title}"].details
        assert all(each.what in str(told) for each in plan.peak.buffers)


@pytest.mark.parametrize("x", [S, L], ids=["small", "large"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_adds_up_to_what_a_call_allocates(program: Any, x: Any) -> None:
    f = stagejit.jit(program)
    plan = f.plan(x)
    check(plan, plan.peak)
    check_picture(plan, plan.name)
    explained = f.explain(x)
    assert explained.peak == plan.peak
    data = json.loads(json.dumps(explained.as_json()))
    assert data["peak"] == json.loads(json.dumps(plan.peak.as_json()))
    assert data["peak"]["allocated_nbytes"] == data["summary"]["peak_nbytes"]
    shown = f"peak of memory: {plan.peak}"
    assert (shown in str(explained)) == bool(plan.peak_nbytes)
    for each in plans(plan):
        check(each, each.peak, inside=False)


def test_a_loop_has_its_own_arena_in_a_buffer() -> None:
    peak = stagejit.jit(repeated).plan(L).peak
    (inside,) = (each for buffer in peak.buffers for each in buffer.inside)
    assert inside.dispatch == peak.dispatch
    assert [each.nbytes for each in inside.carried] == [L.nbytes]  # one of two that change places
    assert f"no transients in body 0 of @{inside.dispatch}" in str(peak)
    peak = stagejit.jit(nested).plan(L).peak
    assert "of transients in body 0 of @" in str(peak)


def test_threads_have_a_part_each() -> None:
    def rows(x: Any) -> Any:
        return lax.map(lambda row: jnp.tanh(jnp.outer(row, row) @ x).sum(0), x)

    made = compilation(rows, L, replace(Target.host(), cores=4)).run_until("schedule")
    peak = made.plan.peak
    check(made.plan, peak)
    (inside,) = (each for buffer in peak.buffers for each in buffer.inside)
    assert inside.threads == 4
    assert "for each of 4 threads" in str(peak)


PLAN = """plan @f {
  buffer x: f32[256] argument 0
  buffer r0: f32[256] result 0
  buffer t0: f32[256] transient slot 0
  buffer t1: f32[512] transient slot 1024
  buffer t2: f32[256] transient slot 3072
  dispatch @a map (exp)  reads x[0:256]  writes t0[0:256]
  barrier t0[0:256]  // RAW @a -> @b
  dispatch @b map (exp)  reads t0[0:256]  writes t1[0:512]
  barrier t1[0:512]  // RAW @b -> @c
  dispatch @c map (exp)  reads t1[0:512]  writes t2[0:256]
  barrier t2[0:256]  // RAW @c -> @d
  dispatch @d map (exp)  reads t2[0:256]  writes r0[0:256]
}"""


def test_a_buffer_is_in_use_until_the_dispatch_that_writes_over_it_has_read_it() -> None:
    over = PLAN.replace(
        "t2: f32[256] transient slot 3072", "t2: f32[512] transient slot 1024 over t1"
    )
    until = {each.name: each.until for each in parse_plan(over).peak.buffers}
    assert until == {"t0": "b", "t1": "c"}


def test_the_text() -> None:
    assert str(parse_plan(PLAN).peak) == (
        "3,072 bytes of transients while @b runs; 1,024 bytes idle then\n"
        "  2,048 bytes  t1: f32[512] transient at byte 1024, written by @b, until @c\n"
        "  1,024 bytes  t0: f32[256] transient at byte 0, written by @a, until @b"
    )


def test_what_is_written_over_a_larger_buffer_counts_as_that_one() -> None:
    text = PLAN.replace("slot 3072", "slot 1024 over t1")
    for each in (text, text.replace("[0:256]", "[0:1]")):
        plan = parse_plan(each)
        check(plan, plan.peak)


def test_a_small_arena_is_on_the_stack_and_not_allocated() -> None:
    text = PLAN
    for old, new in (("1024", "256"), ("3072", "512"), ("f32[256]", "f32[64]"), ("512]", "64]")):
        text = text.replace(old, new)
    plan = parse_plan(text.replace("[0:256]", "[0:64]"))
    peak = plan.peak
    assert plan.peak_nbytes == peak.allocated_nbytes == 0
    assert (peak.nbytes, peak.stack_nbytes) == (512, 768)
    assert "; 256 bytes idle then; 768 bytes on the stack" in str(peak)


def test_many_buffers_are_counted() -> None:
    lines = [f"  buffer t{n}: f32[512] transient slot {2048 * n}" for n in range(20)]
    writes = ", ".join(f"t{n}[0:512]" for n in range(20))
    text = "\n".join(["plan @f {", *lines, f"  dispatch @a fill ()  writes {writes}", "}"])
    assert "  and 4 more buffers of 8,192 bytes" in str(parse_plan(text).peak)
    assert len(parse_plan(text).peak.buffers) == 20


def test_there_may_be_none() -> None:
    plan = stagejit.jit(lambda x: x + 1).plan(S)
    assert plan.peak.buffers == ()
    assert plan.peak.dispatch == ""
    assert str(plan.peak) == "no transients"


def test_dont_tell_of_symbolic_sizes() -> None:
    (size,) = export.symbolic_shape("n")
    f = stagejit.jit(lambda x: jnp.sin(x) @ x)
    shape = jax.ShapeDtypeStruct((size, size), np.float32)
    with pytest.raises(OptionsError, match="symbolic sizes"):
        _ = f.plan(shape).peak
    assert f.explain(shape).peak is None
    assert f.explain(shape).as_json()["peak"] is None
