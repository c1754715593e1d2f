"""Sampling: one native loop, nothing copied, the tokens of `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.bench.generation import measuring
from stagejit.bench.generation.sampling import empty_state
from tests.bench.generation.test_model import TINY, TOKENS, assert_near, reference, tiny_parameters

COUNT = 40  # more than the cache has places


@pytest.mark.parametrize("weights", measuring.FORMS)
def test_the_loop_is_native_and_copies_nothing(weights: str) -> None:
    bound = measuring.bound(TINY, tiny_parameters(), COUNT, weights)
    plan = bound.plan(empty_state(TINY), jax.random.key(0), jnp.float32(1))
    assert not plan.delegated
    assert not plan.copies
    assert not plan.packs
    assert [dispatch.kind for dispatch in plan.dispatches] == ["loop"]
    keys = [b for b in plan.buffers if b.kind == "argument" and len(b.shape) == 4]
    assert [buffer.result is not None for buffer in keys] == [True, True]  # in place


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_tokens_are_those_of_jax(temperature: float) -> None:
    """Its random bits, and logits that differ in the last bits: no draw of these is that close."""
    params, key = tiny_parameters(), jax.random.key(5)
    calls = (measuring.bound(TINY, params, COUNT, "f32"), measuring.by_jax(TINY, params, COUNT))
    states, tokens = zip(
        *(call(empty_state(TINY), key, jnp.float32(temperature)) for call in calls), strict=True
    )
    np.testing.assert_array_equal(*tokens)
    assert len(set(np.asarray(tokens[0]).tolist())) > 3
    assert_near(states[0].logits, states[1].logits)
    assert_near(states[0].logits, reference(params, np.asarray(tokens[0]))[-1])


def test_chunks_are_one_text() -> None:
    params, key, temperature = tiny_parameters(), jax.random.key(5), jnp.float32(1)
    state, whole = measuring.by_jax(TINY, params, 16)(empty_state(TINY), key, temperature)
    half = measuring.bound(TINY, params, 8, "f32")
    state, first = half(empty_state(TINY), key, temperature)
    state, second = half(state, key, temperature)
    np.testing.assert_array_equal(whole, np.concatenate([first, second]))


def test_reading_is_stepping() -> None:
    params = tiny_parameters()
    state = measuring.bound_reader(TINY, params, "f32")(empty_state(TINY), jnp.asarray(TOKENS))
    assert int(state.position) == len(TOKENS)
    assert_near(state.logits, reference(params, TOKENS)[-1])


def test_narrow_weights_are_those_of_the_loop() -> None:
    params, tokens = tiny_parameters(), jnp.asarray(TOKENS)
    errors = [measuring.logits_error(TINY, params, tokens, form) for form in measuring.FORMS]
    assert errors[0] < 1e-5
    assert errors[0] < errors[1] < 0.1  # bf16
    assert errors[0] < errors[2] < 0.1  # int8
    bound = measuring.bound(TINY, params, 4, "int8")
    bound(empty_state(TINY), jax.random.key(0), jnp.float32(1))
    assert len(bound.weight_error) == 4 * TINY.layers + 1  # all matrices but the embedding
    assert bound.memory_analysis()["kept_nbytes"] < 0.5 * bound.memory_analysis()["weight_nbytes"]
