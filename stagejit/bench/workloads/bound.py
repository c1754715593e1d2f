"""Programs whose parameters stay the same from call to call, for `stagejit.bind`.

Input: parameters, then arguments. Output: results. Invariant: plain JAX, written as a user would:
`jax.jit` gets the parameters as arguments, `bind` keeps them.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.workloads.inputs import Normal


def mlp(params: Any, x: jax.Array) -> jax.Array:
    """Layers of (weights, bias) with relu between them; x: (batch, inputs)."""
    *hidden, (w, b) = params
    for weights, bias in hidden:
        x = jax.nn.relu(x @ weights + bias)
    result: jax.Array = x @ w + b
    return result


def mlp_parameters(normal: Normal, sizes: tuple[int, ...] = (1024, 2048, 2048, 1024)) -> Any:
    return [
        (normal(a, b, scale=a**-0.5), normal(b, scale=0.1)) for a, b in itertools.pairwise(sizes)
    ]


def resnet(params: Any, x: jax.Array) -> jax.Array:
    """A stem, then residual blocks of two convolutions with batch norm at inference (He et al.,
    2015), the mean over the image, and a product; x: (batch, height, width, 3)."""
    x = jax.nn.relu(_normalized(params["stem"], x))
    for block in params["blocks"]:
        y = jax.nn.relu(_normalized(block[0], x))
        x = jax.nn.relu(x + _normalized(block[1], y))
    result: jax.Array = x.mean((1, 2)) @ params["head"]
    return result


def _normalized(layer: Any, x: jax.Array) -> jax.Array:
    y = jax.lax.conv_general_dilated(
        x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    scale = layer["gain"] * jax.lax.rsqrt(layer["variance"] + 1e-5)
    result: jax.Array = (y - layer["mean"]) * scale + layer["bias"]
    return result


def resnet_parameters(normal: Normal, width: int = 64, blocks: int = 4) -> Any:
    def layer(channels: int) -> Any:
        return {
            "w": normal(3, 3, channels, width, scale=(9 * channels) ** -0.5),
            "gain": 1 + normal(width, scale=0.1), "bias": normal(width, scale=0.1),
            "mean": normal(width, scale=0.1), "variance": 1 + np.abs(normal(width)),
        }  # fmt: skip

    return {
        "stem": layer(3),
        "blocks": [(layer(width), layer(width)) for _ in range(blocks)],
        "head": normal(width, 10, scale=0.1),
    }


CACHES = 12, 2, 12, 256, 64  # of `decode`, f32


def nbytes_up_to(position: int) -> int:
    """Of the caches, what a step of `decode` there has to read: keys up to it, since the mask drops
    the scores of others, and all values: a probability of zero times what is not finite is NaN."""
    layers, _, heads, tokens, d = CACHES
    return 4 * layers * heads * (position + tokens) * d


def decode(
    params: Any, caches: jax.Array, token: jax.Array, position: jax.Array, heads: int = 12
) -> tuple[jax.Array, jax.Array]:
    """One token through all layers of a decoder (pre-norm, GPT-2's sizes): in each, its keys and
    values are written into the cache at `position`, and all up to it are read.

    caches: (layers, 2, heads, tokens, d); token: (1, heads * d). Gives caches and token."""
    state = caches, token
    for number, weights in enumerate(params):
        state = _layer(state, weights, jnp.int32(number), position, heads)
    return state


def decode_scanned(
    params: Any, caches: jax.Array, token: jax.Array, position: jax.Array, heads: int = 12
) -> tuple[jax.Array, jax.Array]:
    """The same as a scan over layers. params: each of a layer's arrays, stacked."""

    def layer(state: tuple[jax.Array, jax.Array], x: Any) -> tuple[Any, None]:
        weights, number = x
        return _layer(state, weights, number, position, heads), None

    xs = params, jnp.arange(caches.shape[0], dtype=jnp.int32)
    state: tuple[jax.Array, jax.Array] = jax.lax.scan(layer, (caches, token), xs)[0]
    return state


def _layer(
    state: tuple[jax.Array, jax.Array], weights: Any, number: jax.Array, position: jax.Array,
    heads: int,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    (caches, token), (wqkv, wo, w1, w2, g1, g2) = state, weights
    width = token.shape[-1]
    seen = jnp.arange(caches.shape[3]) <= position
    zero = jnp.zeros_like(position)
    q, k, v = jnp.split(_rows(token) * g1 @ wqkv, 3, -1)
    new = jnp.stack([k, v]).reshape(1, 2, heads, 1, -1)
    corner = (number, zero, zero, position, zero)
    caches = jax.lax.dynamic_update_slice(caches, new, corner)
    keys, values = jax.lax.dynamic_index_in_dim(caches, number, keepdims=False)
    scores = jnp.einsum("hd,htd->ht", q.reshape(heads, -1), keys) * (width // heads) ** -0.5
    scores = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1)
    attended = jnp.einsum("ht,htd->hd", scores, values).reshape(1, width)
    token = token + attended @ wo
    token = token + jax.nn.gelu(_rows(token) * g2 @ w1) @ w2
    return caches, token


def _rows(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def decoder_parameters(normal: Normal, width: int = 768, layers: int = 12) -> Any:
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    return [
        (*(normal(*shape, scale=0.02) for shape in shapes), 1 + normal(width, scale=0.1),
         1 + normal(width, scale=0.1))
        for _ in range(layers)
    ]  # fmt: skip


def stacked_parameters(normal: Normal, width: int = 768, layers: int = 12) -> Any:
    """Those of `decode_scanned`."""
    return tuple(map(np.stack, zip(*decoder_parameters(normal, width, layers), strict=True)))
