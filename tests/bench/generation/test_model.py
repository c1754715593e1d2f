"""The model, whole and token by token, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.bench.generation import in_torch
from stagejit.bench.generation.model import Config, empty_cache, logits_of, parameters, step

TINY = Config(vocabulary=128, context=16, width=32, layers=2, heads=2)


def tiny_parameters() -> Any:
    """Large enough for attention to matter."""
    params = parameters(TINY, jax.random.key(0))
    return jax.tree.map(lambda p: p * 8 if p.ndim > 1 else p + 0.1 * jnp.arange(p.size) % 1, params)


def reference(params: Any, tokens: Any) -> Any:
    """Logits after each token, in float64; each sees `TINY.context` tokens."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    t, half = len(tokens), TINY.width // TINY.heads // 2

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def turn(x: Any) -> Any:
        angles = np.exp(1j * np.arange(t)[:, None] * 10_000.0 ** (-np.arange(half) / half))
        turned = (x[..., :half] + 1j * x[..., half:]) * angles
        return np.concatenate([turned.real, turned.imag], -1)

    ages = np.arange(t)[:, None] - np.arange(t)
    hidden = (ages < 0) | (ages >= TINY.context)
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        mixed = norm(x) * layer["attention gain"] @ layer["queries, keys, values"]
        q, k, v = mixed.reshape(t, 3, TINY.heads, -1).transpose(1, 2, 0, 3)
        scores = turn(q) @ turn(k).swapaxes(1, 2) / np.sqrt(2 * half)
        weights = np.exp(np.where(hidden, -np.inf, scores))
        weights /= weights.sum(-1, keepdims=True)
        x = x + (weights @ v).swapaxes(0, 1).reshape(t, -1) @ layer["attended"]
        h = norm(x) * layer["hidden gain"] @ layer["up"]
        gelu = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + gelu @ layer["down"]
    return norm(x) * params["gain"] @ params["logits"]


def assert_near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


TOKENS = np.random.default_rng(0).integers(0, 128, 40).astype(np.int32)


def test_a_whole_sequence() -> None:
    params, tokens = tiny_parameters(), TOKENS[: TINY.context]
    found = stagejit.jit(lambda p, t: logits_of(TINY, p, t))(params, tokens)
    assert_near(found, reference(params, tokens))


def test_token_by_token_beyond_the_context() -> None:
    params, cache, found = tiny_parameters(), empty_cache(TINY), []
    one = stagejit.jit(lambda *args: step(TINY, *args))
    for position, token in enumerate(TOKENS):
        logits, cache = one(params, cache, jnp.int32(token), jnp.int32(position))
        found.append(np.asarray(logits))
    assert_near(found, reference(params, TOKENS))


def test_in_torch() -> None:
    pytest.importorskip("torch")
    params = tiny_parameters()
    decoder = in_torch.Decoder(TINY, params)
    found = [decoder.step(decoder.torch.tensor(int(token))).numpy() for token in TOKENS]
    assert_near(found, reference(params, TOKENS))


def test_counts_its_parameters() -> None:
    matrices = [p for p in jax.tree.leaves(parameters(TINY, jax.random.key(0))) if p.ndim > 1]
    assert TINY.parameter_count == sum(p.size for p in matrices)
