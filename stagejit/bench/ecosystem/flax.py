"""Flax: training steps with linen (dropout and batch norm) and with nnx.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def linen_training() -> Made:
    import optax
    from flax import linen as nn

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, *, train: bool) -> Any:
            x = nn.Conv(16, (3, 3), use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2)).reshape(x.shape[0], -1)
            x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(64)(x)))
            return nn.Dense(10)(x)

    net, optimizer = Net(), optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (16, 14, 14, 1))
    variables = net.init(jax.random.key(0), x, train=False)
    params, batch_stats = variables["params"], variables["batch_stats"]

    def step(params: Any, batch_stats: Any, state: Any, key: Any, x: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, changed = net.apply(
                {"params": params, "batch_stats": batch_stats}, x, train=True,
                rngs={"dropout": key}, mutable=["batch_stats"],
            )  # fmt: skip
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), changed["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), stats, state, value

    state = optimizer.init(params)
    return step, (params, batch_stats, state, jax.random.key(5), x, jnp.arange(16) % 10)


def nnx_training() -> Made:
    import optax
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(32, 64, rngs=rngs)
            self.norm = nnx.LayerNorm(64, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.last = nnx.Linear(64, 4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    definition, initial = nnx.split((model, optimizer))

    def step(initial: Any, x: Any, y: Any) -> Any:
        model, optimizer = nnx.merge(definition, initial)

        def loss(model: Any) -> Any:
            return ((model(x) - y) ** 2).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    x = jax.random.normal(jax.random.key(1), (64, 32))
    return step, (initial, x, jnp.tanh(x[:, :4]))


PROGRAMS = (
    LibraryProgram("flax linen", ("flax", "optax"), linen_training),
    LibraryProgram("flax nnx", ("flax", "optax"), nnx_training),
)
