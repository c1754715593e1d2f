"""Programs whose speed and memory hang on where values are placed: skip connections and caches.

Input: arrays in f32. Output: results, and functions that make seeded parameters. Invariant: plain
JAX, written as a user would, so both compilers meet the same concatenations and updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stagejit.bench.workloads import residual_block
from stagejit.bench.workloads.inputs import Normal


def write_rows(carry: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Row i of `carry` (m, n) grows by exp of row i of `rows` (k, n), k <= m; also the row sums.

    The work is proportional to `rows`, whatever the size of `carry`, unless the compiler copies it.
    """

    def step(table: jax.Array, item: Any) -> Any:
        i, row = item
        old = jax.lax.dynamic_slice(table, (i, 0), (1, table.shape[1]))
        return jax.lax.dynamic_update_slice(table, jnp.exp(row)[None] + old, (i, 0)), row.sum()

    result: tuple[jax.Array, jax.Array] = jax.lax.scan(step, carry, (jnp.arange(len(rows)), rows))
    return result


def rrdb(x: jax.Array, blocks: Sequence[Any]) -> jax.Array:
    """The residual-in-residual dense block of ESRGAN: `blocks` one after the other, `y * 0.2 + x`.

    x: (n, 64, h, w); blocks: parameters of `residual_block` for each."""
    y = x
    for block in blocks:
        y = residual_block.residual_block(y, block)
    return y * residual_block.RESIDUAL_SCALE + x


def densenet(x: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
    """Each layer reads the concatenation of all before (Huang et al., 2017), without its norms.

    x: (n, c, h, w); weights: OIHW, each c + (sum of earlier O) channels in. Channel means."""
    for weight in weights:
        x = jnp.concatenate([x, jax.nn.relu(_conv(x, weight, "NCHW", "OIHW"))], 1)
    return x.mean((2, 3))


def densenet_weights(normal: Normal, layers: int = 6, first: int = 16, growth: int = 12) -> Any:
    return [normal(growth, first + growth * i, 3, 3, scale=0.05) for i in range(layers)]


def unet(x: jax.Array, params: Any) -> jax.Array:
    """Two levels down and up again, each level's features concatenated on the way up.

    x: (n, h, w, c), h and w multiples of 4 (Ronneberger et al., 2015, with SAME convolutions)."""
    (enter, down1, down2), (up2, up1), leave = params
    level0 = jax.nn.relu(_conv(x, enter))
    level1 = jax.nn.relu(_conv(level0, down1, stride=2))
    level2 = jax.nn.relu(_conv(level1, down2, stride=2))
    level1 = jax.nn.relu(_conv(jnp.concatenate([level1, _doubled(level2)], -1), up2))
    level0 = jax.nn.relu(_conv(jnp.concatenate([level0, _doubled(level1)], -1), up1))
    return _conv(level0, leave)


def unet_weights(normal: Normal, channels: int = 3, width: int = 16) -> Any:
    def weight(fan_in: int, fan_out: int) -> NDArray[np.float32]:
        return normal(3, 3, fan_in, fan_out, scale=0.1)

    down = (weight(channels, width), weight(width, 2 * width), weight(2 * width, 4 * width))
    return down, (weight(6 * width, 2 * width), weight(3 * width, width)), weight(width, channels)


def decode_step(
    caches: jax.Array, token: jax.Array, position: jax.Array, weights: Any, heads: int = 8
) -> tuple[jax.Array, jax.Array]:
    """One step of attention with a cache: the keys and values at `position` are written, then all
    up to it are read.

    caches: (2, batch, heads, tokens, d), keys then values; token: (batch, heads * d)."""
    wqkv, wo = weights
    batch, width = token.shape
    q, k, v = (a.reshape(batch, heads, 1, -1) for a in jnp.split(token @ wqkv, 3, -1))
    zero = jnp.zeros_like(position)
    corner = (zero, zero, zero, position, zero)
    caches = jax.lax.dynamic_update_slice(caches, jnp.stack([k, v]), corner)
    keys, values = caches
    scores = q @ keys.swapaxes(-1, -2) / np.sqrt(width // heads).astype(np.float32)
    scores = jnp.where(jnp.arange(keys.shape[2]) <= position, scores, -1e30)
    attended = jax.nn.softmax(scores, -1) @ values
    return caches, attended.reshape(batch, width) @ wo


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention of each token to those before it; q, k, v: (heads, tokens, d)."""
    tokens, d = q.shape[1:]
    scores = jnp.einsum("htd,hsd->hts", q, k) / np.sqrt(d).astype(np.float32)
    seen = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -jnp.inf)
    return jnp.einsum("hts,hsd->htd", jax.nn.softmax(seen, -1), v)


def adam_step(state: Any) -> Any:
    """One step of Adam (Kingma and Ba, 2015) for a list of (parameter, gradient, mean of gradients,
    mean of their squares); gives the new parameters and means."""

    def step(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    return [step(*each) for each in state]


def adam_state(r: Normal) -> Any:
    """200 parameters: weights of 64 x 64 and biases of 64 by turns."""
    shapes = [(64, 64), (64,)] * 100
    return [(r(*s), r(*s), r(*s), np.abs(r(*s))) for s in shapes]


def _conv(
    x: jax.Array, weight: jax.Array, image: str = "NHWC", kernel: str = "HWIO", stride: int = 1
) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, weight, (stride, stride), "SAME", dimension_numbers=(image, kernel, image)
    )


def _doubled(x: jax.Array) -> jax.Array:
    """Nearest-neighbour upsampling of (n, h, w, c) by two."""
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
