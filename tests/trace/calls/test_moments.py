"""Moments of weights in jaxprs: a check fails for an earlier one, and others wait for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import GoneError
from stagejit.trace.calls.moments import after_p, at_p, check_p, snapshot_operand

NOW = np.array([5, 6, 2], np.uint32)
X = jnp.arange(12.0).reshape(3, 4)


def checked(then: Any, x: Any) -> Any:
    return after_p.bind(jnp.sin(x), check_p.bind(then, jnp.asarray(NOW), function="f"))


COMPILERS = {"at once": lambda f: f, "jax": jax.jit, "stagejit": stagejit.jit}


def words(*words: int) -> Any:
    return jnp.array(words, jnp.uint32)


@pytest.mark.parametrize("name", COMPILERS)
def test_an_earlier_moment_of_the_same_function_fails(name: str) -> None:
    call = COMPILERS[name](checked)
    for then in (words(5, 6, 2), words(5, 7, 1), words(4, 6, 1), words(0, 0, 0)):
        np.testing.assert_allclose(call(then, X), jnp.sin(X), rtol=1e-6)
    for then in (words(5, 6, 1), words(5, 6, 0), words(5, 6, 3)):
        with pytest.raises(
            (GoneError, jax.errors.JaxRuntimeError, ValueError), match="f: its weights were updated"
        ):
            jax.block_until_ready(call(then, X))


@pytest.mark.parametrize("name", COMPILERS)
def test_of_a_batch_the_same_function_decides(name: str) -> None:
    call = COMPILERS[name](jax.vmap(checked))
    others = [words(5, 6, 2), words(9, 9, 9), words(0, 0, 0)]
    np.testing.assert_allclose(call(jnp.stack(others), X), jnp.sin(X), rtol=1e-6)
    with pytest.raises(Exception, match="f: its weights were updated"):
        jax.block_until_ready(call(jnp.stack([*others[:2], words(5, 6, 1)]), X))


def test_derivatives_wait_too() -> None:
    then = words(5, 6, 2)
    for function in (
        jax.grad(lambda x: checked(then, x).sum()),
        lambda x: jax.jvp(lambda x: checked(then, x), (x,), (jnp.ones_like(x),))[1],
        jax.vmap(jax.grad(lambda x: checked(then, x).sum())),
    ):
        np.testing.assert_allclose(jax.jit(function)(X), jnp.cos(X), rtol=1e-6)
        jaxpr = str(jax.make_jaxpr(function)(X))
        assert jaxpr.count("stagejit_after") == 2
        assert "stagejit_check" in jaxpr


def test_one_program_with_both_parts_of_a_gradient_checks_nothing() -> None:
    bound = stagejit.bind(lambda w, x: jnp.sin(x @ w) @ w.T, jnp.eye(4))
    gradient = stagejit.jit(jax.grad(lambda x: bound(x).sum()))
    assert "moment" not in str(gradient.plan(X))
    backward = jax.jit(lambda x: jax.vjp(bound, x))(X)[1]
    assert "moment" in str(stagejit.jit(backward).plan(X))


def test_values_of_any_type_wait() -> None:
    now = words(5, 6, 2)
    values = (jnp.arange(3), jnp.array(True), 1 + 2j * X, X.astype(jnp.bfloat16))

    @stagejit.jit
    def waiting(then: Any, *values: Any) -> Any:
        check = check_p.bind(then, jnp.asarray(NOW), function="f")
        return [after_p.bind(each, check) for each in values]

    for one, other in zip(waiting(now, *values), values, strict=True):
        assert (one == other).all()


def test_loops_check_in_each_iteration() -> None:
    thens = jnp.stack([words(5, 6, 2)] * 3)

    @stagejit.jit
    def loop(thens: Any, x: Any) -> Any:
        return lax.scan(lambda x, then: (checked(then, x), None), x, thens)[0]

    np.testing.assert_allclose(loop(thens, X), jnp.sin(jnp.sin(jnp.sin(X))), rtol=1e-5)
    with pytest.raises(Exception, match="were updated"):
        jax.block_until_ready(loop(thens.at[2, 2].set(1), X))


def at(now: Any, snapshot: Any) -> Any:
    return at_p.bind(now, snapshot)


SNAPSHOTS = {
    "its own": (lambda x, s, now: at(now, s), 1),
    "of what it calls": (lambda x, s, now: jax.jit(lambda s: at(now, s))(s) + 1, 1),
    "the first of two": (lambda x, s, now: at(now, x) + at(now, s), 0),
    "made inside": (lambda x, s, now: at(now, s + 1), None),
    "of a batch": (lambda x, s, now: jax.vmap(at, (None, 0))(now, jnp.stack([s, s])), None),
    "none": (lambda x, s, now: now + s[:3], None),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_which_operand_says_of_which_moment_weights_are(name: str) -> None:
    function, wanted = SNAPSHOTS[name]
    operands = jnp.zeros(6, jnp.uint32), jnp.ones(6, jnp.uint32), jnp.asarray(NOW)
    assert snapshot_operand(jax.make_jaxpr(function)(*operands)) == wanted
    for compiler in COMPILERS.values():
        np.testing.assert_array_equal(compiler(function)(*operands), function(*operands))


def test_a_batch_of_snapshots_is_no_snapshot() -> None:
    batch = jax.make_jaxpr(jax.vmap(at, (None, 0)))(jnp.asarray(NOW), jnp.zeros((2, 6), jnp.uint32))
    assert snapshot_operand(batch) is None
