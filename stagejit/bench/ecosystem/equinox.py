"""Equinox: training steps of an MLP.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def mlp_training() -> Made:
    import equinox as eqx
    import optax

    model = eqx.nn.MLP(16, 1, 64, 3, activation=jax.nn.gelu, key=jax.random.key(0))
    optimizer = optax.adamw(1e-3)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: Any, y: Any) -> Any:
        predicted = jax.vmap(eqx.combine(params, static))(x)
        return jnp.mean((predicted - y) ** 2)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return eqx.apply_updates(params, updates), state, value

    x = jax.random.normal(jax.random.key(1), (128, 16))
    return step, (params, optimizer.init(params), x, jnp.sin(x.sum(1, keepdims=True)))


PROGRAMS = (LibraryProgram("equinox MLP", ("equinox", "optax"), mlp_training),)
