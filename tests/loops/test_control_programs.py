"""Random nests of loops and branches that update, alias and exchange arrays.

Floats are small whole numbers, so results are exact: whatever order, fusion or place they are
computed in. `STAGEJIT_FUZZ_EXAMPLES` sets how many programs each test draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.options import SWITCHES, Options
from tests.sampling import examples
from tests.schedule.planning import check

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1200)]

State = tuple[Any, Any, Any, Any]  # two matrices, a row, a counter
Step = Callable[[State], State]
DEPTH = 3


def clipped(x: Any) -> Any:
    return jnp.clip(x, -50, 50)


def _set_rows(d: Any, e: Any, v: Any, i: Any) -> State:
    return d.at[1:3].set(e[:2]), e, v, i


def _add_row(d: Any, e: Any, v: Any, i: Any) -> State:
    return clipped(d.at[i].add(v)), e, v, i


def _set_row(d: Any, e: Any, v: Any, i: Any) -> State:
    return lax.dynamic_update_slice(d, v[None] + 1, (i, 0)), e, v, i


def _element(d: Any, e: Any, v: Any, i: Any) -> State:
    return d, e.at[2, 1].set(v[0] - 1), v, i


def _column(d: Any, e: Any, v: Any, i: Any) -> State:
    return d.at[:, ::2].set(e[:, 1::2]), e, v, i


def _exchange(d: Any, e: Any, v: Any, i: Any) -> State:
    return e, d, v, i


def _alias(d: Any, e: Any, v: Any, i: Any) -> State:
    return d, d, v, i


def _combine(d: Any, e: Any, v: Any, i: Any) -> State:
    return clipped(d - e), e, v, i


def _turn(d: Any, e: Any, v: Any, i: Any) -> State:
    return d[::-1], e, v[::-1], i


def _shift(d: Any, e: Any, v: Any, i: Any) -> State:
    return d.at[:-1].set(d[1:]), e, v, i


def _row(d: Any, e: Any, v: Any, i: Any) -> State:
    return d, e, clipped(d[i] + e[0]), i


def _sums(d: Any, e: Any, v: Any, i: Any) -> State:
    return d, e, clipped(d.sum(0)), i


def _count(d: Any, e: Any, v: Any, i: Any) -> State:
    return d, e, v, (i + 1) % 5


def _gate(d: Any, e: Any, v: Any, i: Any) -> State:
    d, e = lax.optimization_barrier((d, e))
    return d, jnp.maximum(d, e), v, i


def _clear(d: Any, e: Any, v: Any, i: Any) -> State:
    return jnp.zeros_like(d), e, jnp.ones_like(v), i


LEAVES: list[Callable[..., State]] = [
    _set_rows, _add_row, _set_row, _element, _column, _exchange, _alias, _combine, _turn, _shift,
    _row, _sums, _count, _gate, _clear,
]  # fmt: skip


def _predicate(kind: int, state: State) -> Any:
    d, e, v, i = state
    return [i % 2 == 0, d[0, 0] > v[1], e.sum() > 3, i > 2][kind]


def _cond(kind: int, yes: Step, no: Step) -> Step:
    return lambda s: lax.cond(_predicate(kind, s), yes, no, s)


def _switch(blocks: list[Step]) -> Step:
    return lambda s: lax.switch(s[3], blocks, s)


def _fori(trip: int, block: Step) -> Step:
    stop = (lambda s: s[3]) if trip < 0 else (lambda s: trip)
    return lambda s: lax.fori_loop(0, stop(s), lambda _, s: block(s), s)


def _while(kind: int, block: Step) -> Step:
    def run(state: State) -> State:
        goes_on = lambda c: (c[0] < 3) & _predicate(kind, c[1])  # noqa: E731
        return lax.while_loop(goes_on, lambda c: (c[0] + 1, block(c[1])), (0, state))[1]

    return run


def _scan(reverse: bool, block: Step) -> Step:
    def run(state: State) -> State:
        xs = state[1]

        def step(s: State, x: Any) -> tuple[State, Any]:
            d, e, v, i = block(s)
            return (d, e, clipped(v + x), i), (d[1], v, x, xs[0])

        (d, e, v, i), (rows, vs, same, again) = lax.scan(step, state, xs, reverse=reverse)
        return clipped(d + rows), clipped(e - vs + same - again), v, i

    return run


def _partly(which: int, block: Step) -> Step:
    """A branch that changes one part of the state alone."""

    def run(state: State) -> State:
        part = lax.cond(state[3] > 1, lambda s: block(s)[which], lambda s: s[which], state)
        return tuple(part if at == which else x for at, x in enumerate(state))  # type: ignore[return-value]

    return run


def _batched(block: Step) -> Step:
    """The block for two states at once."""

    def run(state: State) -> State:
        other = tuple(x + 1 for x in state[:3])
        both = jax.vmap(lambda d, e, v: block((d, e, v, state[3])))
        d, e, v, i = both(*(jnp.stack(pair) for pair in zip(state[:3], other, strict=True)))
        return d[0], e[1], v[1], jnp.max(i)

    return run


Program = tuple[Any, ...]  # of steps: the name of a leaf, or (kind, parameters, programs)


@st.composite
def programs(draw: Any, depth: int = DEPTH) -> Program:
    """A few steps, one after the other; each may be a loop or a branch of such."""
    inner, predicate = programs(depth - 1), st.integers(0, 3)
    leaf = st.sampled_from([leaf.__name__ for leaf in LEAVES])
    nests = [
        st.tuples(st.just("cond"), predicate, inner, inner),
        st.tuples(st.just("cond"), predicate, inner, st.just(())),
        st.tuples(st.just("switch"), inner, inner, inner),
        st.tuples(st.just("fori"), st.integers(-1, 3), inner),
        st.tuples(st.just("while"), predicate, inner),
        st.tuples(st.just("scan"), st.booleans(), inner),
        st.tuples(st.just("partly"), st.integers(0, 2), inner),
        st.tuples(st.just("batched"), inner),
    ]
    step = st.one_of(leaf, leaf, *nests) if depth else leaf
    return tuple(draw(st.lists(step, min_size=1, max_size=3)))


def block_of(program: Program) -> Step:
    steps = [_step(step) for step in program]

    def run(state: State) -> State:
        for step in steps:
            state = step(state)
        return state

    return run


def _step(step: Any) -> Step:
    if isinstance(step, str):
        leaf = next(leaf for leaf in LEAVES if leaf.__name__ == step)
        return lambda state: leaf(*state)
    kind, *rest = step
    parts = [block_of(part) if isinstance(part, tuple) else part for part in rest]
    if kind == "switch":
        return _switch(parts)
    nests: dict[str, Callable[..., Step]] = {
        "cond": _cond, "fori": _fori, "while": _while, "scan": _scan, "partly": _partly,
        "batched": _batched,
    }  # fmt: skip
    return nests[kind](*parts)


def start(seed: int) -> State:
    rng = np.random.default_rng(seed)
    d, e = (rng.integers(-9, 10, (4, 4)).astype(np.float32) for _ in range(2))
    return d, e, rng.integers(-9, 10, 4).astype(np.float32), np.int32(rng.integers(0, 4))


def function(program: Program) -> Callable[..., Any]:
    return lambda d, e, v, i: block_of(program)((d, e, v, i))


def agree(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@given(programs(), st.integers(0, 9), st.tuples(*[st.booleans()] * 4))
def test_plans_in_any_order(program: Program, seed: int, donated: tuple[bool, ...]) -> None:
    check(function(program), *start(seed), donated=donated, orders=3)


@settings(max_examples=-(-examples() * 3 // 5))  # the dearest of these
@given(programs(), st.integers(0, 9), st.sets(st.integers(0, 3)))
def test_compiled(program: Program, seed: int, donated: set[int]) -> None:
    f, state = function(program), start(seed)
    expected = jax.jit(f)(*state)
    options = Options(verify=True, delegate=False)
    ours = stagejit.jit(f, donate_argnums=tuple(donated), options=options)
    agree(ours(*map(jnp.array, state)), expected)


@given(programs(2), st.integers(0, 9), st.sets(st.sampled_from(sorted(SWITCHES))))
def test_any_rewrites_switched_off(program: Program, seed: int, disabled: set[str]) -> None:
    f, state = function(program), start(seed)
    expected = jax.jit(f)(*state)
    options = Options(verify=True, disable=tuple(disabled))
    agree(stagejit.jit(f, donate_argnums=(0, 1), options=options)(*map(jnp.array, state)), expected)
