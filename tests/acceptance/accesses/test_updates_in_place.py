"""Reads of a buffer that is then updated in place come before the write; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.schedule.planning import check, plan_of

D = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)
I = np.int32(5)  # noqa: E741

Case = Callable[..., Any]


def row_added(d: Any, i: Any, w: Any) -> Any:
    row = lax.dynamic_slice(d, (i, 0), (1, 32))
    return lax.dynamic_update_slice(d, jnp.exp(row) + w[:1], (i, 0))


def row_through_a_product(d: Any, i: Any, w: Any) -> Any:
    row = lax.dynamic_slice(d, (i, 0), (1, 32))
    return lax.dynamic_update_slice(d, row @ w, (i, 0))


def neighbour_moved(d: Any, i: Any, w: Any) -> Any:
    row = lax.dynamic_slice(d, (i + 1, 0), (1, 32))
    return lax.dynamic_update_slice(d, row * 2, (i, 0)) + 0 * w[0]


def rows_swapped(d: Any, i: Any, w: Any) -> Any:
    first, second = lax.dynamic_slice(d, (i, 0), (1, 32)), d[7:8]
    return lax.dynamic_update_slice(d.at[7:8].set(first), second, (i, 0))


def sum_written(d: Any, i: Any, w: Any) -> Any:
    return d.at[2:4].set(d.sum())


def whole_writes(plan: Plan) -> int:
    """Dispatches, those in loops included, that certainly write all of a buffer of D's size."""
    own = sum(
        access.exact and access.nbytes == D.nbytes and dispatch.kind != "loop"
        for dispatch in plan.dispatches
        for access in dispatch.writes
    )
    return own + sum(whole_writes(b.plan) for dispatch in plan.dispatches for b in dispatch.bodies)


CASES = [row_added, row_through_a_product, rows_swapped, sum_written]


@pytest.mark.parametrize("case", [*CASES, neighbour_moved], ids=lambda case: case.__name__)
def test_every_legal_order_gives_the_same_values(case: Case) -> None:
    check(case, D, I, W, donated=(True, False, False))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_donated_buffer_is_not_copied(case: Case) -> None:
    plan = plan_of(case, D, I, W, donated=(True, False, False))
    assert whole_writes(plan) == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_dont_write_an_argument_that_is_not_donated(case: Case) -> None:
    plan = plan_of(case, D, I, W)
    assert whole_writes(plan) == 1


@pytest.mark.parametrize("case", [*CASES, neighbour_moved], ids=lambda case: case.__name__)
def test_values(case: Case) -> None:
    expected = jax.jit(case)(D, I, W)
    donated = stagejit.jit(case, donate_argnums=0, options=Options(cache_dir="", verify=True))
    np.testing.assert_allclose(donated(jnp.array(D), I, W), expected, rtol=1e-5, atol=1e-5)
    kept = stagejit.jit(case, options=Options(cache_dir=""))
    np.testing.assert_allclose(kept(D, I, W), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_loop_carries_the_buffer_in_place(case: Case) -> None:
    def loop(d: Any, w: Any) -> Any:
        return lax.scan(lambda c, i: (case(c, i, w), i * 2), d, jnp.arange(3, 40))

    jitted = stagejit.jit(loop, donate_argnums=0, options=Options(cache_dir=""))
    expected = jax.jit(loop)(D, W)
    got = jitted(jnp.array(D), W)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
    assert whole_writes(jitted.plan(D, W)) == 0
