"""Text from a GPT: two programs, of one loop each, around `model.step`.

Input: parameters, a cache of keys and values, tokens. Output: the cache after them; new tokens.
Invariant: the loop carries the cache, which is donated, so that no copy of it is ever made.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stagejit.bench.generation.model import Cache, Config, Parameters, empty_cache, step


class State(NamedTuple):
    """logits: of the next token. position: how many tokens the cache has seen."""

    cache: Cache
    logits: Array
    position: Array


def empty_state(config: Config) -> State:
    return State(empty_cache(config), jnp.zeros(config.vocabulary), jnp.int32(0))


def read(config: Config, params: Parameters, state: State, tokens: Array) -> State:
    """The state after some tokens more, one after the other."""

    def one(state: State, token: Array) -> tuple[State, None]:
        logits, cache = step(config, params, state.cache, token, state.position)
        return State(cache, logits, state.position + 1), None

    return jax.lax.scan(one, state, tokens)[0]


def generate(
    config: Config, count: int, params: Parameters, state: State, key: Array, temperature: Array
) -> tuple[State, Array]:
    """`count` more tokens, each drawn from the logits over `temperature`; the likeliest for 0."""

    def one(state: State, _: None) -> tuple[State, Array]:
        own = jax.random.fold_in(key, state.position)
        drawn = jax.random.categorical(own, state.logits / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0, drawn, jnp.argmax(state.logits))
        logits, cache = step(config, params, state.cache, token, state.position)
        return State(cache, logits, state.position + 1), token

    return jax.lax.scan(one, state, length=count)
