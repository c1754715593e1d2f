"""Training: random windows of a text, cross entropy, Adam. One program for a step.

Input: a model's configuration, tokens. Output: parameters, step after step, and the loss.
Invariant: the same seed gives the same windows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import stagejit
from stagejit.bench.generation.corpus import Tokens
from stagejit.bench.generation.model import Config, Parameters, logits_of, parameters


@dataclass(frozen=True)
class Schedule:
    """steps: of `batch` windows each. rate: the largest, after `warmup` steps; it falls from there
    as a cosine does."""

    steps: int = 1500  # one at least
    batch: int = 12
    rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.1
    seed: int = 0


class State(NamedTuple):
    """means, squares: of gradients, as Adam keeps them."""

    params: Parameters
    means: Parameters
    squares: Parameters
    step: Array


def train(
    config: Config, schedule: Schedule, text: Tokens, begun: State | None = None
) -> Iterator[tuple[float, State]]:
    """The loss and the state after each step; that belongs to the next step. begun: the state to go
    on from."""
    state = initial(config, schedule) if begun is None else begun
    step = stagejit.jit(functools.partial(train_step, config, schedule), donate_argnums=0)
    tokens = jnp.asarray(text)
    for _ in range(int(state.step), schedule.steps):
        state, loss = step(state, tokens)
        yield float(loss), state


def initial(config: Config, schedule: Schedule) -> State:
    params = parameters(config, jax.random.key(schedule.seed))
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, zeros, jax.tree.map(jnp.copy, zeros), jnp.int32(0))


def train_step(
    config: Config, schedule: Schedule, state: State, text: Array
) -> tuple[State, Array]:
    key = jax.random.fold_in(jax.random.key(schedule.seed + 1), state.step)
    windows = windows_of(text, key, schedule.batch, config.context + 1)
    loss, gradients = jax.value_and_grad(functools.partial(loss_of, config))(state.params, windows)
    return adam(schedule, state, gradients), loss


def windows_of(text: Array, key: Array, count: int, length: int) -> Array:
    """(count, length) tokens from random places."""
    starts = jax.random.randint(key, (count,), 0, len(text) - length + 1)
    return jax.vmap(lambda start: jax.lax.dynamic_slice(text, (start,), (length,)))(starts)


def loss_of(config: Config, params: Parameters, windows: Array) -> Array:
    """Nats a token, on average; windows: (batch, t + 1), whose last token is only asked for."""
    logits = jax.vmap(functools.partial(logits_of, config, params))(windows[:, :-1])
    each = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(each, windows[:, 1:, None].astype(jnp.int32), axis=-1)
    return -right.mean()


def adam(schedule: Schedule, state: State, gradients: Parameters) -> State:
    """AdamW (Loshchilov and Hutter, 2019), with b1 = 0.9, b2 = 0.99; matrices decay, gains do
    not."""
    step = state.step + 1
    rate, b1, b2 = rate_at(schedule, step), 0.9, 0.99
    means = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.means, gradients)
    squares = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state.squares, gradients)

    def moved(p: Array, m: Array, s: Array) -> Any:
        change = m / (1 - b1**step) / (jnp.sqrt(s / (1 - b2**step)) + 1e-8)
        return p - rate * (change + (schedule.decay * p if p.ndim > 1 else 0.0))

    return State(jax.tree.map(moved, state.params, means, squares), means, squares, step)


def rate_at(schedule: Schedule, step: Array) -> Array:
    warm = jnp.minimum(step / schedule.warmup, 1.0)
    done = jnp.clip((step - schedule.warmup) / max(schedule.steps - schedule.warmup, 1), 0.0, 1.0)
    return schedule.rate * warm * (0.1 + 0.45 * (1 + jnp.cos(jnp.pi * done)))
