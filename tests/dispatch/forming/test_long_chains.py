"""Long chains of ops are cut, in time that grows with them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stagejit.dispatch.groups.chains import LONGEST_CHAIN
from tests.dispatch.forming.fusing import f32, kinds
from tests.schedule.planning import check


def test_long_chains_are_cut() -> None:
    def chain(x: Any) -> Any:
        for _ in range(300):
            x = jnp.abs(x) + 1
        return x

    plan = check(chain, f32(7))
    assert len(plan.dispatches) == -(-600 // LONGEST_CHAIN)
    reasons = {d.reason for d in plan.decisions if not d.applied}
    assert f"{LONGEST_CHAIN} ops in a row are too many for one dispatch" in reasons
    assert "map has as many ops behind it as one dispatch may have" in reasons


def test_long_chains_of_rows_are_cut_where_nothing_is_evaluated_again() -> None:
    """What is behind the cut is reduced by a dispatch of its own, which reads what is before it."""

    def chain(x: Any) -> Any:
        for k in range(100):
            mean = x.mean(-1, keepdims=True)
            x = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1) * (k + 3) + x
        return x

    plan = check(chain, f32(3, 5))
    assert [len(d.reads) for d in plan.dispatches] == [1] * len(plan.dispatches)
    assert sum(d.ops.count("square") for d in plan.dispatches) == 100
    assert sum(d.ops.count("div") for d in plan.dispatches) == 300
    reasons = {d.reason for d in plan.decisions if not d.applied}
    assert "reduce has as many ops behind it as one dispatch may have" in reasons


def test_long_chains_are_cut_where_nothing_is_evaluated_again() -> None:
    """Three ops read each value of the chain: cut behind them, each would need all before it."""

    def chain(x: Any) -> Any:
        for k in range(150):
            x = jnp.where(x > k, x - 1, jnp.maximum(x * 0.5, 0.1 * k))
        return x

    plan = check(chain, f32(7))
    floats = [op for d in plan.dispatches for op in d.ops if op in ("gt", "sub", "mul", "max")]
    assert len(floats) == 4 * 150
    assert all(len(d.writes) == 1 for d in plan.dispatches)


def test_a_chain_that_fits_is_not_cut_where_it_is_shared() -> None:
    def chain(x: Any) -> Any:
        for _ in range(75):
            x = jnp.abs(x) * 0.5 + x
        return x

    assert kinds(check(chain, f32(7))) == ["map"]


def test_long_epilogues_are_cut() -> None:
    def chain(x: Any, w: Any) -> Any:
        x = x @ w
        for _ in range(200):
            x = jnp.abs(x) + 1
        return x

    plan = check(chain, f32(7, 7), f32(7, 7))
    assert kinds(plan) == ["contract", "map"]


def test_diamonds_of_refused_consumers_take_no_exponential_time() -> None:
    def chain(x: Any) -> Any:
        y = x.sum()
        for _ in range(80):
            y = y * 0.5 + y
        z = jnp.broadcast_to(x.sum(0), x.shape)
        for _ in range(80):
            z = z * 0.5 + z
        return y, z

    assert check(chain, f32(200, 300)).dispatches
