"""run-beside: which dispatches move next to which, and when they stay where they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.options import Options
from stagejit.schedule import build
from stagejit.schedule.conflicts.order import brought_together
from stagejit.schedule.conflicts.reduction import barriers
from stagejit.schedule.plans.plan import Plan
from tests.expected.left import left
from tests.schedule.planning import check

OFF = Options(disable=("run-beside",))


def bits(*positions: int) -> int:
    return sum(1 << at for at in positions)


def test_two_chains_run_beside_each_other() -> None:
    chains = {1: bits(0), 3: bits(2)}
    assert brought_together(range(4), chains, [True] * 4) == [0, 2, 1, 3]


def test_dont_move_large_ones() -> None:
    chains = {1: bits(0), 3: bits(2)}
    assert brought_together(range(4), chains, [True, True, False, True]) == [0, 1, 2, 3]


def test_a_small_chain_runs_beside_a_large_one() -> None:
    chains = {1: bits(0), 3: bits(2)}
    assert brought_together(range(4), chains, [False, False, True, True]) == [0, 2, 1, 3]


def test_what_depends_on_both_comes_last() -> None:
    chains = {1: bits(0), 3: bits(2), 4: bits(1, 3)}
    assert brought_together(range(5), chains, [True] * 5) == [0, 2, 1, 3, 4]


def test_a_group_has_an_end() -> None:
    many = {1: bits(0)}  # everybody else waits for nobody
    order = brought_together(range(40), many, [True] * 40)
    assert order.index(1) == 16


@st.composite
def programs(draw: Any) -> tuple[list[int], dict[int, int], list[bool]]:
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    before = {
        at: bits(*draw(st.lists(st.sampled_from(order[:number]), max_size=3, unique=True)))
        for number, at in enumerate(order)
        if number
    }
    return list(order), before, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(programs())
def test_dependences_keep_their_direction_and_large_ones_their_order(program: Any) -> None:
    order, before, small = program
    made = brought_together(order, before, small)
    assert sorted(made) == sorted(order)
    for at, needed in before.items():
        assert all(made.index(b) < made.index(at) for b in order if needed >> b & 1)
    assert [at for at in made if not small[at]] == [at for at in order if not small[at]]


def towers(x: Any, y: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w), jnp.tanh(jnp.tanh(y @ w) @ w)


def array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(0.1)


def names(plan: Plan) -> list[str]:
    return [dispatch.name for dispatch in plan.dispatches]


def decisions(plan: Plan) -> list[tuple[bool, str]]:
    return [(d.applied, d.reason) for d in plan.decisions if d.rewrite == "run-beside"]


def test_products_of_two_chains_alternate() -> None:
    plan = check(towers, array(8, 16), array(8, 16), array(16, 16))
    assert names(plan) == ["contract.0", "contract.2", "contract.1", "contract.3"]
    assert decisions(plan) == [(True, "runs beside dispatches that it does not depend on")]


def test_barriers_are_worked_out_for_the_order_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def counted(*args: Any, **how: Any) -> Any:
        made.append(1)
        return barriers(*args, **how)

    monkeypatch.setattr(build, "barriers", counted)
    plan = check(towers, array(8, 16), array(8, 16), array(16, 16))
    assert plan.barriers
    assert sum(made) == 1


@pytest.mark.parametrize("options", [OFF, Options(full_barriers=True)])
def test_off_keeps_the_order_of_the_program(options: Options) -> None:
    plan = check(towers, array(8, 16), array(8, 16), array(16, 16), options=options)
    assert names(plan) == [f"contract.{number}" for number in range(4)]
    assert decisions(plan) == []


def test_dont_take_more_memory() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        a, b = x @ w, v @ v @ v
        # The softmax is written over `a`; were it beside the last factor of `b`, it would come
        # before the product that reads `a`.
        return (b @ a).sum(), (jax.nn.softmax(a, 1) @ w.T).sum()

    args = array(8, 4), array(4, 512), array(8, 8)
    plan, off = check(f, *args), check(f, *args, options=OFF)
    ((applied, reason),) = decisions(plan)
    assert not applied
    assert reason.endswith("bytes of transients more")
    assert names(plan) == names(off)
    assert plan.peak_nbytes == off.peak_nbytes


def test_dont_reorder_around_what_is_left_to_xla() -> None:
    def f(x: Any, y: Any) -> Any:
        return left(jnp.tanh(x @ x) @ x), jnp.tanh(y @ y) @ y

    plan = check(f, array(8, 8), array(8, 8))
    assert plan.delegated
    assert decisions(plan) == []


def test_chains_inside_a_loop() -> None:
    def f(x: Any, y: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: towers(*c, w), (x, y))

    plan = check(f, array(8, 16), array(8, 16), array(16, 16))
    (loop,) = (dispatch for dispatch in plan.dispatches if dispatch.bodies)
    inner = names(loop.bodies[0].plan)
    assert inner.index("contract.2") < inner.index("contract.1")


def test_dont_guess_what_is_small_for_all_sizes() -> None:
    (n,) = jax.export.symbolic_shape("n")
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((n, 16), (n, 16), (16, 16))]
    plan = stagejit.jit(towers).plan(*args)
    assert names(plan) == [f"contract.{number}" for number in range(4)]
    assert decisions(plan) == []


def test_carries_that_change_places_keep_their_order() -> None:
    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, row: ((c[1], c[0]), c[0] + row), (x[0], x[1]), x[:3])

    assert decisions(check(f, array(4, 5))) == decisions(check(f, array(4, 5), options=OFF)) == []
