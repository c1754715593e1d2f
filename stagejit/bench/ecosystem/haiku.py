"""Haiku: a training step of a recurrent network with dropout.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def lstm_training() -> Made:
    import haiku as hk
    import optax

    def forward(x: Any) -> Any:
        core = hk.LSTM(32)
        hidden, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        hidden = hk.dropout(hk.next_rng_key(), 0.1, hidden)
        return hk.Linear(1)(hidden)

    net, optimizer = hk.transform(forward), optax.sgd(1e-2, momentum=0.9)

    def step(params: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((net.apply(params, key, x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    x = jax.random.normal(jax.random.key(1), (20, 16, 8))
    params = net.init(jax.random.key(0), x)
    return step, (params, optimizer.init(params), jax.random.key(2), x, x.sum(-1, keepdims=True))


PROGRAMS = (LibraryProgram("haiku LSTM", ("haiku", "optax"), lstm_training),)
