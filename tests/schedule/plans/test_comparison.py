"""Totals of plans against counts made by hand, and the table of two."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import stagejit
from stagejit.base.machine import Machine
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.inspect.pages import rows_of

X = np.ones((4, 8), np.float32)


def plan(f: Any, *args: Any, disable: tuple[str, ...] = ()) -> Plan:
    made: Plan = stagejit.jit(f, options=Options(disable=disable)).plan(*args)
    return made


def joined(x: Any) -> Any:
    return jnp.concatenate((jnp.sin(x), x.sum(1, keepdims=True)), axis=1)


def test_totals_are_sums_over_dispatches() -> None:
    made = plan(joined, X, disable=("fuse-insert",))
    totals = made.totals()
    assert totals.dispatches == totals.launches == len(made.dispatches)
    assert totals.copies == 2
    assert totals.copied_nbytes == 4 * 9 * 4
    assert totals.read_nbytes + totals.written_nbytes == sum(d.nbytes for d in made.dispatches)
    assert totals.flops == sum(d.flops for d in made.dispatches)
    assert totals.barriers == len(made.barriers)


def test_what_stands_in_a_loop_counts_as_often_as_it_turns() -> None:
    made = plan(lambda x: lax.fori_loop(0, 5, lambda _, c: jnp.sin(c) * 2, x), X)
    totals = made.totals()
    (inner,) = (d for d in made.all_dispatches() if d.kind == "map")
    assert totals.launches == 5 + sum(d.kind != "loop" for d in made.dispatches)
    assert totals.flops == 5 * inner.flops
    turns = {d.name: times for d, times in made.launches()}
    assert turns[inner.name] == 5


def test_of_a_loop_that_a_condition_ends_a_turn_counts() -> None:
    made = plan(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x), X)
    assert None in [times for _, times in made.launches()]
    assert made.totals().launches >= 1


def test_the_difference_of_two_plans() -> None:
    compared = plan(joined, X).compare(plan(joined, X, disable=("fuse-insert",)))
    rows = {row.name: row for row in compared.rows}
    assert rows["copies"].difference == 2
    assert rows["dispatches"].difference == 2
    assert rows["flops"].difference == 0
    more = rows["floor_seconds"].difference
    assert more is not None
    assert more > 0
    assert rows["copies"] in compared.differing
    assert rows["flops"] not in compared.differing
    head, *lines = str(compared).splitlines()
    assert head.split() == ["joined", "joined,", "other", "difference"]
    (copies,) = (line for line in lines if line.startswith("copies "))
    assert copies.split() == ["copies", "0", "2", "+2"]
    assert ["copies", "0", "2", "+2"] in rows_of(compared._repr_html_())
    data = json.loads(json.dumps(compared.as_json()))
    assert data["second"]["copies"] - data["first"]["copies"] == 2


def test_a_plan_is_the_same_as_itself() -> None:
    made = plan(joined, X)
    assert made.compare(made).differing == ()


def test_symbolic_sizes_have_bytes_and_no_time() -> None:
    (size,) = export.symbolic_shape("n")
    made = plan(lambda x: jnp.sin(x) * 2, jax.ShapeDtypeStruct((size, 8), np.float32))
    totals = made.totals()
    assert str(totals.read_nbytes) == "32*n"
    assert totals.floor_seconds is None
    assert json.dumps(totals.as_json())
    (line,) = (line for line in str(made.compare(made)).splitlines() if line.startswith("floor"))
    assert line.split() == ["floor", "?", "?"]


def test_a_floor_is_of_all_cores_and_of_memory() -> None:
    machine = Machine(cores=4, peak_flops=1e9, core_bandwidth=1e9, bandwidth=3e9)
    assert machine.floor_seconds(10**9, 0) == 0.25
    assert machine.floor_seconds(10**9, 3 * 10**9) == 1.0


def test_totals_walk_the_buffers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many dispatches there are."""
    x, asked = jnp.ones((8, 8)), list[int]()
    sizes = Plan.sizes.__get__

    def counting(self: Plan) -> tuple[str, ...]:
        asked.append(len(self.buffers))
        return sizes(self)  # as if nobody counted

    made = []
    for length in (10, 40):
        chain = plan(lambda x, n=length: [x := jnp.tanh(x @ x) for _ in range(n)][-1], x)
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "sizes", property(counting))
            chain.totals()
        made.append((sum(asked), len(chain.buffers)))
    (few, buffers), (many, more) = made
    assert many * buffers <= 2 * few * more
