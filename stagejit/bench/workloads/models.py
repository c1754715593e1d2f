"""Small models: a transformer block, an LSTM, a perceptron, each with its parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.workloads import operations
from stagejit.bench.workloads.inputs import Normal


def transformer_block(x: jax.Array, params: tuple[jax.Array, ...], heads: int = 12) -> jax.Array:
    """Pre-norm block, causal attention, x: (batch, tokens, width)."""
    wqkv, wo, w1, w2, g1, g2 = params
    batch, tokens, width = x.shape

    def split_heads(a: jax.Array) -> jax.Array:
        return a.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)

    q, k, v = (split_heads(a) for a in jnp.split(operations.normalized(x) * g1 @ wqkv, 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads).astype(np.float32)
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    attended = jax.nn.softmax(jnp.where(causal, scores, -1e30), -1) @ v
    x = x + attended.transpose(0, 2, 1, 3).reshape(batch, tokens, width) @ wo
    return x + jax.nn.gelu(operations.normalized(x) * g2 @ w1) @ w2


def transformer_loss(params: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
    return (transformer_block(x, params) ** 2).mean()


def transformer_parameters(normal: Normal, width: int = 768) -> tuple[Any, ...]:
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    return (*(normal(*shape, scale=0.02) for shape in shapes), normal(width), normal(width))


def lstm(xs: jax.Array, wx: jax.Array, wh: jax.Array, bias: jax.Array) -> jax.Array:
    """xs: (time, batch, inputs); the hidden states of all steps."""

    def step(carry: Any, x: jax.Array) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ wx + h @ wh + bias, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((xs.shape[1], wh.shape[0]))
    states: jax.Array = jax.lax.scan(step, (zeros, zeros), xs)[1]
    return states


def mlp_loss(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return ((x @ weight + bias) ** 2).mean()


def mlp_parameters(normal: Normal) -> list[tuple[Any, Any]]:
    return [(normal(8, 32), normal(32)), (normal(32, 32), normal(32)), (normal(32, 1), normal(1))]
