"""Loops whose iterations several threads share: their values are those of one thread, bit by bit,
however many threads call the program at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.target import Target
from stagejit.options import Options
from stagejit.schedule.threads.parallel_loops import NAME
from tests.randomness import RNG

OFF = Options(disable=(NAME,))


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


W, ROWS = array(48, 48), array(64, 40, 48)


def products(x: Any) -> Any:
    return lax.map(lambda r: jnp.tanh(r @ W) @ W, x)


def attention(q: Any) -> Any:
    return lax.map(lambda r: jax.nn.softmax(r @ q[0].T, axis=-1) @ q[1], q)


def gathers(x: Any) -> Any:
    def row(at: Any) -> Any:
        return jnp.sort(x[at % x.shape[0]], axis=0)[::-1]

    return lax.map(row, jnp.arange(61) * 7)


def nested(x: Any) -> Any:
    return lax.map(lambda r: lax.map(lambda line: jnp.cumsum(jnp.exp(line)) / W[0, 0], r), x)


def solver(x: Any) -> Any:
    def row(r: Any) -> Any:
        return lax.while_loop(
            lambda c: c[0] < jnp.abs(r[0, 0]) * 4, lambda c: (c[0] + 1, jnp.sin(c[1]) + r), (0.0, r)
        )[1]

    return lax.map(row, x)


def stacked(x: Any) -> Any:
    return lax.scan(lambda c, r: (c, (jnp.exp(r @ W), jnp.max(r))), 0, x, reverse=True)[1]


def under_vmap(x: Any) -> Any:
    return jax.vmap(products)(jnp.stack([x, x * 2]))


def gradients(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.sin(products(x))))(x)


def rows_updated(x: Any) -> Any:
    return lax.fori_loop(
        3, 63, lambda i, y: y.at[i - 2].add(jnp.exp(y[i - 2, :, :8] @ W[:8]) * i), x
    )


def counted(x: Any) -> Any:
    return lax.scan(lambda c, r: (c + jnp.int16(-3), jnp.tanh(r @ W) * c), jnp.int16(9), x)


def solved(x: Any) -> Any:
    return lax.map(lambda r: jnp.linalg.solve(r @ r.T + 40 * jnp.eye(40), r), x)


PROGRAMS = [
    products,
    attention,
    gathers,
    nested,
    solver,
    stacked,
    under_vmap,
    gradients,
    rows_updated,
    counted,
    solved,
]


def threads_of(f: Callable[..., Any], *args: Any) -> int:
    """The most threads that share a loop."""
    dispatches = stagejit.jit(f).plan(*args).all_dispatches()
    return max((body.threads for d in dispatches for body in d.bodies), default=0)


def assert_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.some(2)
@pytest.mark.parametrize("f", PROGRAMS)
def test_values_are_those_of_one_thread(f: Callable[..., Any]) -> None:
    assert threads_of(f, ROWS) == Target.host().cores
    expected = stagejit.jit(f, options=OFF)(ROWS)
    assert_equal(stagejit.jit(f)(ROWS), expected)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(jax.jit(f)(ROWS)), strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-3)


@pytest.mark.parametrize("f", [products, nested, solver])
def test_kernels_stay_within_their_bounds(f: Callable[..., Any]) -> None:
    verified = stagejit.jit(f, options=Options(verify=True))
    assert_equal(verified(ROWS), stagejit.jit(f, options=OFF)(ROWS))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 17, 63])
def test_ragged_counts(count: int) -> None:
    x = array(count, 128, 48)
    assert_equal(stagejit.jit(products)(x), stagejit.jit(products, options=OFF)(x))


def test_threads_call_one_executable_at_once() -> None:
    compiled = stagejit.jit(attention).lower(ROWS).compile()
    inputs = [array(*ROWS.shape) for _ in range(6)]
    expected = [stagejit.jit(attention, options=OFF)(x) for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            for ours, theirs in zip(pool.map(compiled, inputs), expected, strict=True):
                assert_equal(ours, theirs)


def test_memory_counts_the_transients_of_all_threads() -> None:
    ours = stagejit.jit(products).lower(ROWS).compile().memory_analysis()
    off = stagejit.jit(products, options=OFF).lower(ROWS).compile().memory_analysis()
    assert ours["peak_nbytes"] == Target.host().cores * off["peak_nbytes"]


def test_the_host_program_says_who_runs_what() -> None:
    text = stagejit.jit(products).lower(ROWS).as_text("host")
    cores = Target.host().cores
    assert cores == 1 or f"loop 64 on {cores} threads grain " in text
    assert cores == 1 or "arena+7680*i0" in text
    assert "parallel" not in text
