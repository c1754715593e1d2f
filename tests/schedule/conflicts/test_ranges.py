"""Ranges are sound by themselves: nothing has settled but what barriers name, and nothing is named
for which nobody waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import SWITCHES, Options
from tests.schedule.constants import turned
from tests.schedule.execution.settling import Settling
from tests.schedule.mutations import check_mutations
from tests.schedule.planning import prepared, schedule_graph, without_void
from tests.strategies import RandomProgram, programs

X = np.linspace(-1, 1, 64, dtype=np.float32)


def settles(
    fn: Callable[..., Any],
    *args: Any,
    donated: Any = (),
    options: Options | None = None,
    orders: int = 3,
    mutations: int | None = None,
) -> int:
    """Runs `fn` in several orders in which nothing has settled but what barriers name. Returns the
    number of mutations of its plan, all of which the checker has rejected."""
    graph = prepared(fn, args, donated, options)
    expected = interpret(graph, args)
    made = schedule_graph(graph, options)
    for seed in range(orders):
        got = Settling(made, random.Random(seed) if seed else None)(args)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(without_void(a), without_void(b))
    return check_mutations(made.plan, most=mutations)


def overwritten_at_the_start(a: Any, b: Any) -> Any:
    """The first two elements come from b: who waits for that has not waited for the others."""
    return lax.cumsum(lax.cumsum(a).at[0:2].set(lax.cumsum(b)))


def read_twice(a: Any) -> Any:
    """Transients one after the other in one place, each read by several."""
    for _ in range(4):
        a = lax.cumsum(jnp.tanh(lax.cumsum(a)) + lax.cumsum(a, reverse=True))
    return a


def updates(d: Any, a: Any) -> Any:
    for start in (0, 7, 3, 20, 18):
        d = d.at[start : start + 5].set(lax.cumsum(a) + d[start + 1 : start + 6])
    return lax.cumsum(d), d


def strided(d: Any, a: Any) -> Any:
    d = d.at[::2].set(lax.cumsum(a))
    d = d.at[::3].add(lax.cumsum(jnp.resize(a, 22)))
    return lax.cumsum(d)


def in_loops(d: Any, a: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        c = c.at[0:3].set(lax.cumsum(c[1:4]) + x)
        return c, lax.cumsum(c)[-1]

    c, ys = lax.scan(step, lax.cumsum(d), a)
    return lax.cumsum(c.at[1:2].set(0)), ys


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "overwritten at the start": (overwritten_at_the_start, (X, X[:2])),
    "read twice": (read_twice, (X,)),
    "updates": (updates, (X, X[:5])),
    "strided": (strided, (X, X[:32])),
    "in loops": (in_loops, (X, X[:5])),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("donated", [False, True])
def test_only_what_barriers_name_has_settled(name: str, donated: bool) -> None:
    fn, args = PROGRAMS[name]
    assert settles(fn, *args, donated=[donated] * len(args), orders=5)


@pytest.mark.fuzz
@given(
    program=programs(max_steps=12), data=st.data(), rng=st.randoms(use_true_random=False),
    off=st.sets(st.sampled_from(sorted(SWITCHES)), max_size=3), turn=st.booleans(),
)  # fmt: skip
def test_random_programs(
    program: RandomProgram, data: Any, rng: Any, off: set[str], turn: bool
) -> None:
    donated = data.draw(
        st.lists(st.booleans(), min_size=len(program.args), max_size=len(program.args))
    )
    options = Options(disable=tuple(sorted(off)))
    if turn:
        with turned(rng):
            settles(program.fn, *program.args, donated=donated, options=options, mutations=8)
    else:
        settles(program.fn, *program.args, donated=donated, options=options, mutations=8)
