"""Scans whose steps are written out: which are, values, gradients, and what is left a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.trace import control
from stagejit.trace.translate import graph_of

X = np.linspace(-1, 1, 5 * 12, dtype=np.float32).reshape(5, 12)


def steps(x: Any, **params: Any) -> Any:
    def step(carry: tuple[Any, Any], row: Any) -> Any:
        total, count = carry
        return (jnp.sin(total) + row, count + 1), (total * row, count)

    return lax.scan(step, (x[0], 0), x, **params)


def loops(fn: Any, *args: Any) -> int:
    return sum(op.definition.is_loop for op in graph_of(fn, *args).ops())


@pytest.mark.parametrize("unroll", [True, 5, 6, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_that_are_written_out(unroll: int | bool, reverse: bool) -> None:
    def fn(x: Any) -> Any:
        return steps(x, unroll=unroll, reverse=reverse)

    assert loops(fn, X) == 0
    for found, expected in zip(
        jax.tree.leaves(stagejit.jit(fn)(X)), jax.tree.leaves(jax.jit(fn)(X)), strict=True
    ):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unroll", [False, 1, 2, 4])
def test_dont_write_out_what_is_a_loop_still(unroll: int | bool) -> None:
    assert loops(lambda x: steps(x, unroll=unroll), X) == 1


def test_dont_write_out_very_many_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_MOST_UNROLLED", 9)
    assert loops(lambda x: steps(x, unroll=True), X) == 1


def test_no_step_at_all() -> None:
    empty = X[:0]
    found = stagejit.jit(lambda x: lax.scan(lambda c, r: (c + r, c), X[0], x, unroll=True))(empty)
    np.testing.assert_array_equal(found[0], X[0])
    assert found[1].shape == (0, 12)


def test_a_polynomial_is_one_dispatch() -> None:
    coefficients = np.arange(9, dtype=np.float32)
    plan = stagejit.jit(jnp.polyval).plan(coefficients, X)
    assert len(plan.dispatches) == 1
    found = stagejit.jit(jnp.polyval)(coefficients, X)
    np.testing.assert_allclose(found, np.polyval(coefficients, X.astype(np.float64)), rtol=1e-5)


def test_gradients_keys_and_loops_around() -> None:
    def fn(x: Any, key: Any) -> Any:
        def step(key: Any, row: Any) -> Any:
            key, own = jax.random.split(key)
            return key, jnp.sum(row * jax.random.normal(own, row.shape)) ** 2

        def outer(total: Any, _: Any) -> Any:
            return total + lax.scan(step, key, x, unroll=True)[1].sum() * total, None

        return lax.scan(outer, 1.0, None, length=3)[0]

    key = jax.random.key(0)
    for function, keys in ((fn, key), (jax.grad(fn), key), (jax.vmap(fn, (None, 0)), [key] * 3)):
        args = (X, jnp.stack(keys) if isinstance(keys, list) else keys)
        np.testing.assert_allclose(
            stagejit.jit(function)(*args), jax.jit(function)(*args), rtol=1e-4
        )


def test_what_xla_runs_of_a_step_is_no_reason_against_the_others() -> None:
    """In a loop it would be one for all of it to go there."""

    def step(carry: Any, row: Any) -> Any:
        shape = jax.ShapeDtypeStruct(row.shape, row.dtype)
        return carry + jax.pure_callback(lambda r: np.sin(r), shape, row), None

    def fn(x: Any) -> Any:
        return lax.scan(step, x[0], x, unroll=True)[0]

    np.testing.assert_allclose(stagejit.jit(fn)(X), X[0] + np.sin(X).sum(0), rtol=1e-5, atol=1e-6)
