"""limit-operands where one op has several results, which are made together."""

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
from tests.dispatch.rewrites.limits.plans import reasons, touched


def ints(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.int32)


X, Y, Z, W = (ints(3, 9, seed=seed) for seed in range(4))
LARGE, STARTS = ints(5, 12, seed=4), np.array([1, 2], np.int32)


def largest(x: Any) -> Any:
    best, where = lax.top_k(x, 4)
    return where, x.at[0, jnp.array([0])].add(jnp.max(best, initial=0)), x[:, None], best


def largest_of_three(x: Any, y: Any, z: Any) -> Any:
    return lax.top_k(x * y + z, 4)


def largest_and_more(x: Any, y: Any) -> Any:
    best, where = lax.top_k(x, 4)
    return best + y[:, :4], where * 2, best, where


def sums(x: Any, y: Any, z: Any, w: Any) -> Any:
    return lax.sort((x + y, y * z, z - w), num_keys=2)


def half(x: Any, y: Any, z: Any) -> Any:
    return lax.sort((x + y, z * y), num_keys=1)[1]


def joined(x: Any, y: Any, z: Any) -> Any:
    a, b = lax.sort((x + z, y * z), num_keys=1)
    return jnp.concatenate([a, b, x], 0), jnp.concatenate([b, y], 1), a


def padded(x: Any, y: Any, z: Any) -> Any:
    return [jnp.pad(each, 1) for each in lax.sort((x + y, z * y), num_keys=1)]


def into_large(x: Any, y: Any, large: Any) -> Any:
    return [large.at[:3, :9].set(each) for each in lax.sort((x + y, x * y), num_keys=1)]


def somewhere(x: Any, y: Any, large: Any, starts: Any) -> Any:
    both = lax.sort((x + y, x * y), num_keys=1)
    return [lax.dynamic_update_slice(large, each, (starts[0], starts[1])) for each in both]


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (largest, (X,)), (largest_of_three, (X, Y, Z)), (largest_and_more, (X, Y)),
    (sums, (X, Y, Z, W)), (half, (X, Y, Z)), (joined, (X, Y, Z)), (padded, (X, Y, Z)),
    (into_large, (X, Y, LARGE)), (somewhere, (X, Y, LARGE, STARTS)),
]  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("function", "args"), PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_any_limit(function: Callable[..., Any], args: tuple[Any, ...], limit: int) -> None:
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    options = Options(verify=True, operand_limit=limit)
    for donated in ((), tuple(range(len(args)))):
        staged = stagejit.jit(function, options=options, donate_argnums=donated)
        found = jax.tree.leaves(staged(*map(jnp.asarray, args)))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_sorted_is_computed_before() -> None:
    """Two operands and two results are within the limit, four and two are not."""
    plan = stagejit.jit(sums, options=Options(operand_limit=6)).plan(X, Y, Z, W)
    assert max(touched(plan)) <= 6
    assert reasons(plan, applied=True) == [
        "it takes 7 buffers, more than the 6 that one dispatch may have"
    ]


def test_dont_take_apart_what_is_made_together() -> None:
    plan = stagejit.jit(largest_of_three, options=Options(operand_limit=2)).plan(X, Y, Z)
    assert "sort alone takes 3 operands, more than the limit of 2" in reasons(plan)
    (sort,) = (d for d in plan.dispatches if d.name.startswith("sort"))
    assert len({a.buffer for a in (*sort.reads, *sort.writes)}) == 3
