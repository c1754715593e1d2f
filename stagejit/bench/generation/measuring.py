"""Tokens a second: one bound loop of ours, `jax.jit` of the same program, PyTorch token by token.

Input: a model, its parameters, who is compared. Output: `Speed`s, and how far our logits are from
those of `jax.jit`. Invariant: all compute the same model from the same parameters, one sequence at
a time, and wait for their tokens; calls are interleaved.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import stagejit
from stagejit.bench.generation import in_torch
from stagejit.bench.generation.model import Config, Parameters
from stagejit.bench.generation.sampling import State, empty_state, generate, read
from stagejit.bench.timing import Timing, interleave

FORMS = ("f32", "bf16", "int8", "int4")
OPPONENTS = ("jax", "torch", "torch.compile")

Generate = Callable[[State, Array, Array], tuple[State, Array]]


@dataclass(frozen=True)
class Speed:
    """timing: of one token. nbytes: of the weights that it reads."""

    name: str
    timing: Timing
    nbytes: int


def bound(config: Config, params: Parameters, count: int, weights: str) -> Any:
    """`generate` of `count` tokens, bound to the parameters; the state is donated."""
    form: Any = None if weights == "f32" else weights
    function = functools.partial(generate, config, count)
    return stagejit.bind(function, params, weights=form, donate_argnums=0)


def bound_reader(config: Config, params: Parameters, weights: str) -> Any:
    """`read`, bound to the parameters; the state is donated."""
    form: Any = None if weights == "f32" else weights
    function = functools.partial(read, config)
    return stagejit.bind(function, params, weights=form, donate_argnums=0)


def by_jax(config: Config, params: Parameters, count: int) -> Generate:
    jitted = jax.jit(functools.partial(generate, config, count), donate_argnums=1)
    return functools.partial(jitted, params)


def logits_error(config: Config, params: Parameters, tokens: Array, weights: str) -> float:
    """max|ours - theirs| / max|theirs| of the logits after these tokens: ours are bound, theirs of
    `jax.jit`."""
    ours = bound_reader(config, params, weights)(empty_state(config), tokens).logits
    theirs = jax.jit(functools.partial(read, config))(params, empty_state(config), tokens).logits
    return float(jnp.abs(ours - theirs).max() / jnp.abs(theirs).max())


def measure(
    config: Config,
    params: Parameters,
    count: int,
    weights: str,
    opponents: Sequence[str],
    seconds: float,
) -> list[Speed]:
    """Of calls that generate `count` tokens each. Raises CommandError for PyTorch that is not
    there."""
    ours = bound(config, params, count, weights)
    calls = {f"stagejit.bind, {weights}": _call(ours, config)}
    for name in opponents:
        if name == "jax":
            calls["jax.jit"] = _call(by_jax(config, params, count), config)
        else:
            is_compiled = name == "torch.compile"
            calls["torch.compile" if is_compiled else "PyTorch"] = _torch_call(
                in_torch.Decoder(config, params, compile=is_compiled), count
            )
    timings = interleave(list(calls.values()), seconds * len(calls))
    kept = int(ours.memory_analysis()["kept_nbytes"])
    theirs = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    nbytes = [_read(config, params, kept), *[_read(config, params, theirs)] * len(opponents)]
    return [
        Speed(name, each(timing, count), read_by)
        for (name, timing, read_by) in zip(calls, timings, nbytes, strict=True)
    ]


def each(timing: Timing, count: int) -> Timing:
    """The same of one of `count` tokens."""
    return Timing(timing.median / count, timing.spread, timing.best / count, timing.samples)


def _read(config: Config, params: Parameters, kept: int) -> int:
    """What a token reads of that which is kept: all, but of the embedding its own row."""
    embedding: int = params["embedding"].nbytes
    return kept - embedding + embedding // config.vocabulary


def _call(function: Generate, config: Config) -> Callable[[], object]:
    state, key, temperature = empty_state(config), jax.random.key(0), jnp.float32(1.0)

    def call() -> object:
        nonlocal state
        state, tokens = function(state, key, temperature)
        return np.asarray(tokens)

    return call


def _torch_call(decoder: in_torch.Decoder, count: int) -> Callable[[], object]:
    in_torch.use_cores(len(os.sched_getaffinity(0)))
    logits = decoder.step(decoder.torch.tensor(0))

    def call() -> object:
        nonlocal logits
        logits, tokens = decoder.generate(count, logits, 1.0)
        return tokens

    return call
