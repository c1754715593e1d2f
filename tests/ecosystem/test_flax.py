"""Flax: linen with dropout and batch norm, nnx, their own jits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.runtime.cpu.loader import call_count
from tests.ecosystem.harness import agree, check, require, staged

require("flax", "optax")

from flax import linen, nnx  # noqa: E402


def test_linen() -> None:
    check("flax linen", wide=True)


def test_nnx() -> None:
    check("flax nnx", wide=True)


def test_dropout_drops_the_same() -> None:
    """random bits are bitwise those of jax.jit"""
    layer = linen.Dropout(0.4, deterministic=False)
    x = jnp.ones((64, 33))

    def run(key: Any, x: Any) -> Any:
        return layer.apply({}, x, rngs={"dropout": key})

    expected = jax.jit(run)(jax.random.key(3), x)
    np.testing.assert_array_equal(staged(run, jax.random.key(3), x), expected)


def test_nnx_jit() -> None:
    def trained() -> Any:
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

        @nnx.jit
        def step(model: Any, x: Any) -> Any:
            grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
            model.kernel[...] -= 0.1 * grads["kernel"][...]
            return jnp.sum(model(x))

        return step(model, jnp.ones((5, 4))), model.kernel[...]

    expected, before = trained(), call_count()
    with stagejit.enabled():
        agree(jax.block_until_ready(trained()), expected, 1e-5)
    assert call_count() > before
