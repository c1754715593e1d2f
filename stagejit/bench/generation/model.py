"""A GPT: a decoder of pre-norm blocks whose attention has rotary positions. Plain JAX.

Input: parameters, and tokens; or a cache of keys and values, and one token. Output: logits.
Invariant: one token at a time, through the cache, gives the logits of the whole sequence, as long
as that is no longer than the cache; a longer one sees as many tokens as the cache has places.

Attention, GELU and blocks are those of GPT-2 (Radford et al., 2019); norms have no bias; positions
are turns of queries and keys (Su et al., 2021), so the cache can be a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Parameters = dict[str, Any]
Cache = tuple[Array, Array]  # keys and values: (layers, heads, context, width of a head)


@dataclass(frozen=True)
class Config:
    """context: how many tokens a token sees, itself included."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int

    @property
    def parameter_count(self) -> int:
        """Matrices only; norms are few."""
        return self.layers * 12 * self.width**2 + 2 * self.vocabulary * self.width


SMALL = Config(vocabulary=128, context=256, width=128, layers=4, heads=4)
GPT2 = Config(vocabulary=50304, context=1024, width=768, layers=12, heads=12)


def parameters(config: Config, key: Array) -> Parameters:
    """Random ones, as GPT-2 starts with."""
    width, small = config.width, 0.02 / (2 * config.layers) ** 0.5
    keys = iter(jax.random.split(key, 2 + 4 * config.layers))

    def normal(rows: int, columns: int, scale: float = 0.02) -> Array:
        return scale * jax.random.normal(next(keys), (rows, columns))

    return {
        "embedding": normal(config.vocabulary, width),
        "layers": [
            {
                "attention gain": jnp.ones(width),
                "queries, keys, values": normal(width, 3 * width),
                "attended": normal(width, width, small),
                "hidden gain": jnp.ones(width),
                "up": normal(width, 4 * width),
                "down": normal(4 * width, width, small),
            }
            for _ in range(config.layers)
        ],
        "gain": jnp.ones(width),
        "logits": normal(width, config.vocabulary),
    }


def logits_of(config: Config, params: Parameters, tokens: Array) -> Array:
    """Of the next token after each; tokens: (t,) integers, t at most the context."""
    positions = jnp.arange(len(tokens))
    seen = positions[:, None] >= positions

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        q, k = turned(q, positions), turned(k, positions)
        return attention(q, k, v, seen)

    return _through(config, params, tokens, attend)


def step(
    config: Config, params: Parameters, cache: Cache, token: Array, position: Array
) -> tuple[Array, Cache]:
    """The logits after one more token, and the cache with it. position: how many came before."""
    keys, values = cache
    place = position % config.context
    seen = jnp.arange(config.context) <= position

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        nonlocal keys, values
        q, k = turned(q, position[None]), turned(k, position[None])
        keys = jax.lax.dynamic_update_slice(keys, k[None], (layer, 0, place, 0))
        values = jax.lax.dynamic_update_slice(values, v[None], (layer, 0, place, 0))
        return attention(q, keys[layer], values[layer], seen)

    logits = _through(config, params, token[None], attend)
    return logits[0], (keys, values)


def empty_cache(config: Config) -> Cache:
    shape = (config.layers, config.heads, config.context, config.width // config.heads)
    return jnp.zeros(shape), jnp.zeros(shape)


def _through(
    config: Config, params: Parameters, tokens: Array, attend: Callable[..., Array]
) -> Array:
    """All blocks. attend: of a layer's number, queries, keys and values (heads, t, d)."""
    x = params["embedding"][tokens]
    for number, layer in enumerate(params["layers"]):
        mixed = normalized(x) * layer["attention gain"] @ layer["queries, keys, values"]
        q, k, v = mixed.reshape(len(tokens), 3, config.heads, -1).transpose(1, 2, 0, 3)
        attended = attend(number, q, k, v).swapaxes(0, 1).reshape(x.shape)
        x = x + attended @ layer["attended"]
        hidden = normalized(x) * layer["hidden gain"] @ layer["up"]
        x = x + jax.nn.gelu(hidden) @ layer["down"]
    logits: Array = normalized(x) * params["gain"] @ params["logits"]
    return logits


def attention(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """q: (heads, t, d); k and v: (heads, s, d); seen: of the s, by each of the t or by all."""
    scores = jnp.einsum("htd,hsd->hts", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("hts,hsd->htd", weights, v)


def turned(x: Array, positions: Array) -> Array:
    """x: (heads, t, d). Pairs of numbers are turned by an angle for each position."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def normalized(x: Array) -> Array:
    """Each row with mean 0 and variance 1."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
