"""Random programs that read small parts of a buffer and update others: no update copies all of it,
whatever is computed from the parts, and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.schedule.plans.plan import Plan
from tests.schedule.planning import check, plan_of

ROWS, COLUMNS, STEPS = 64, 4, 6
BUFFER, VALUES, PLACES = (
    jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32),
    jax.ShapeDtypeStruct((4, COLUMNS), jnp.float32),
    jax.ShapeDtypeStruct((8,), jnp.int32),
)

# A row of `d` that is made of a small part of it; `at` is a number, `i` a vector of them.
READS: dict[str, Callable[[Any, Any, int], Any]] = {
    "row": lambda d, i, at: d[at],
    "rows": lambda d, i, at: d[at : at + 2].sum(0),
    "computed": lambda d, i, at: d[i[at % 8]],
    "slice": lambda d, i, at: lax.dynamic_slice(d, (i[at % 8], 0), (1, COLUMNS))[0],
    "gather": lambda d, i, at: d[i[:3]].sum(0),
    "take": lambda d, i, at: jnp.take(d, i[at % 4 : at % 4 + 4], axis=0).max(0),
    "column": lambda d, i, at: d[:, at % COLUMNS][:COLUMNS],
    "transpose": lambda d, i, at: d.T[:, at],
    "flat": lambda d, i, at: d.reshape(-1)[at * COLUMNS : at * COLUMNS + COLUMNS],
    "strided": lambda d, i, at: d[at % 4 :: 16].sum(0),
    "reversed": lambda d, i, at: d[at : at + 4][::-1][0],
    "window": lambda d, i, at: lax.reduce_window(d, -jnp.inf, lax.max, (4, 1), (4, 1), "VALID")[
        at % 16
    ],
    "cast": lambda d, i, at: d.astype(jnp.bfloat16)[i[at % 8]].astype(jnp.float32),
    "scaled": lambda d, i, at: (d * 2.0)[at],
}
WRITES: dict[str, Callable[[Any, Any, int, Any], Any]] = {
    "row": lambda d, i, at, v: d.at[at].set(v),
    "computed": lambda d, i, at, v: d.at[i[at % 8]].set(v),
    "slice": lambda d, i, at, v: lax.dynamic_update_slice(d, v[None], (i[at % 8], 0)),
    "add": lambda d, i, at, v: d.at[i[at % 8]].add(v),
    "rows": lambda d, i, at, v: d.at[i[:3]].set(v),
    "of others": lambda d, i, at, v: d.at[i[:2]].set(d[i[2:4]] * 0.5 + v),
    "permutation": lambda d, i, at, v: d.at[i[:2]].set(d[i[:2]][::-1]),
    "of itself": lambda d, i, at, v: d.at[at].set(d[at] * 0.5 + v),
    "of the next": lambda d, i, at, v: d.at[at].set(d[at + 1] + v),
    "block": lambda d, i, at, v: d.at[at : at + 2].add(v),
}


def program(seed: int) -> Callable[[Any, Any, Any], Any]:
    """A running sum of what is read, some of which is written."""
    rng = random.Random(seed)
    reads = [(rng.choice([*READS]), rng.randrange(ROWS - 4)) for _ in range(STEPS)]
    writes = [(rng.choice([*WRITES]), rng.randrange(ROWS - 4)) for _ in range(STEPS)]
    order = rng.sample([True] * STEPS + [False] * STEPS, 2 * STEPS)
    chosen = [rng.random() for _ in range(STEPS)]

    def f(d: Any, x: Any, i: Any) -> Any:
        values, total, number = [x[0]], x[1], 0
        for is_read in order:
            if is_read:
                name, at = reads[len(values) - 1]
                values.append(READS[name](d, i, at))
                total = total + values[-1]
            else:
                name, at = writes[number]
                d = WRITES[name](d, i, at, values[int(chosen[number] * len(values))] + 1.0)
                number += 1
        return d, total

    return f


def whole_copies(plan: Plan, nbytes: int) -> list[str]:
    return [
        copy.name for copy in plan.copies if sum(access.nbytes for access in copy.writes) >= nbytes
    ]


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(100))
def test_no_update_copies_the_buffer(seed: int) -> None:
    plan = plan_of(program(seed), BUFFER, VALUES, PLACES, donated=(True, False, False))
    assert whole_copies(plan, 4 * ROWS * COLUMNS) == []


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(100, 140))
def test_results_are_those_of_program_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 9, each.shape).astype(np.float32) for each in (BUFFER, VALUES)]
    places = rng.integers(-2, ROWS + 2, PLACES.shape).astype(np.int32)
    check(program(seed), *arrays, places, donated=(True, False, False))


def running_sum(steps: int) -> Callable[[Any, Any, Any], Any]:
    def f(d: Any, x: Any, i: Any) -> Any:
        total = x[0, 0]
        for step in range(steps):
            d = d.at[i[step % 8]].set(x[step % 4])
            total = total + d[i[(step + 1) % 8]].sum()
        return d, total

    return f


def test_dispatches_grow_with_updates_that_are_read_at_computed_offsets() -> None:
    """An update and a read each, and now and then a sum of many."""
    few, many = (
        len(
            plan_of(running_sum(n), BUFFER, VALUES, PLACES, donated=(True, False, False)).dispatches
        )
        for n in (8, 32)
    )
    assert many <= 4 * few + 8


def kinds(f: Callable[..., Any], donated: bool = True) -> list[str]:
    plan = plan_of(f, BUFFER, VALUES, PLACES, donated=(donated, False, False))
    return [each.kind for each in plan.dispatches]


def test_what_is_large_is_not_read_before() -> None:
    """A copy costs no more: what waits for the update reads all of the buffer."""

    def f(d: Any, x: Any, i: Any) -> Any:
        new = d.at[i[0]].set(x[0])
        return new, d * new[i[1]]

    assert kinds(f).count("copy") == 1


def test_dont_keep_reads_of_what_nobody_overwrites() -> None:
    """An argument that is not donated is copied once, whoever reads it."""

    def f(d: Any, x: Any, i: Any) -> Any:
        read = d[i[:3]].sum(0)
        new = d.at[i[0]].set(x[0])
        return new, read + new[i[1]]

    assert kinds(f, donated=False) == ["copy", "scatter", "reduce"]
    assert kinds(f) == ["map", "scatter", "reduce"]


def test_reads_of_one_version_are_one_dispatch() -> None:
    def f(d: Any, x: Any, i: Any) -> Any:
        a, b = d[i[0]], d[i[1]]
        new = d.at[i[2]].set(x[0])
        return new, a * new[i[3]], b + new[i[4]]

    assert kinds(f) == ["map", "scatter", "map"]
