"""Equinox: training an MLP, its own jit, its runtime checks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.runtime.cpu.loader import call_count
from tests.ecosystem.harness import agree, check, require

require("equinox", "optax")

import equinox as eqx  # noqa: E402


def test_training_step() -> None:
    check("equinox MLP")


def test_filter_jit() -> None:
    model = eqx.nn.MLP(4, 2, 16, 2, key=jax.random.key(0))
    x = jnp.ones((8, 4))

    def run(model: Any, x: Any) -> Any:
        return jax.vmap(model)(x)

    expected, before = eqx.filter_jit(run)(model, x), call_count()
    with stagejit.enabled():
        agree(jax.block_until_ready(eqx.filter_jit(run)(model, x)), expected, 1e-6)
    assert call_count() > before


def test_error_if() -> None:
    """A check inside a loop neither stops our loop nor is lost."""

    def run(x: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            x = eqx.error_if(x, jnp.any(x > 100), "too large")
            return x * 2

        return jax.lax.fori_loop(0, 5, step, x)

    with stagejit.enabled():
        np.testing.assert_array_equal(jax.jit(run)(jnp.ones(3)), np.full(3, 32.0))
        with pytest.raises(Exception, match="too large"):
            jax.block_until_ready(jax.jit(run)(jnp.full(3, 50.0)))
