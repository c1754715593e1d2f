"""Forms of attention, and what they are in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.cuda.attention import kernel as policy
from stagejit.codegen.cuda.attention import shapes
from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.generate import forget_kernels
from stagejit.graph.meaning.interpreter import interpret
from stagejit.trace.translate import graph_of
from tests.cuda.machine import compilation_of
from tests.randomness import RNG

BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def scores(q: Any, k: Any) -> Any:
    return q @ jnp.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)


def plain(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(scores(q, k), -1) @ v


def causal(q: Any, k: Any, v: Any, low: float = -jnp.inf) -> Any:
    s = scores(q, k)
    seen = jnp.tril(jnp.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2])
    return jax.nn.softmax(jnp.where(seen, s, low), -1) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return jax.nn.softmax(scores(q, k) + bias, -1) @ v


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf), -1) @ v


def where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(scores(q, k), -1, where=mask) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(5 * jnp.tanh(scores(q, k) / 5), -1) @ v


def dropped(q: Any, k: Any, v: Any, kept: Any) -> Any:
    return jnp.where(kept, jax.nn.softmax(scores(q, k), -1) / 0.9, 0) @ v


def divided(q: Any, k: Any, v: Any, by: Any) -> Any:
    """By what is 0 beyond the last key, for who does not look."""
    return jax.nn.softmax(scores(q, k), -1) / by @ v


def causal_divided(q: Any, k: Any, v: Any, by: Any) -> Any:
    there = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None]
    return jax.nn.softmax(jnp.where(there, scores(q, k), -jnp.inf), -1) / by @ v


def segments(q: Any, k: Any, v: Any, rows: Any, keys: Any) -> Any:
    same = rows[:, :, None] == keys[:, None, :]
    return jax.nn.softmax(jnp.where(same, scores(q, k), -1e30), -1) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    at, key = (jnp.arange(size) for size in s.shape[-2:])
    far = at[:, None] - key[None, :]
    return jax.nn.softmax(jnp.where((far >= 0) & (far < 5), s, -jnp.inf), -1) @ v


def library(q: Any, k: Any, v: Any, **more: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, **more)


def shared_keys(q: Any, k: Any, v: Any) -> Any:
    """Heads that share keys and values."""
    s = jnp.einsum("bthd,bsd->bhts", q, k)
    return jnp.einsum("bhts,bsd->bthd", jax.nn.softmax(s, -1), v)


def two_axes(q: Any, k: Any, v: Any) -> Any:
    """Keys of an image."""
    s = jnp.einsum("bqd,bhwd->bqhw", q, k)
    return jnp.einsum("bqhw,bhwe->bqe", jax.nn.softmax(s, (-2, -1)), v)


def around(q: Any, k: Any, v: Any, x: Any) -> Any:
    """What is done before, and after."""
    return jnp.tanh(plain(q * 2, k + 1, -v)) + x, x


def three(t: int, s: int, d: int, e: int, *batch: int, dtype: Any = np.float32) -> tuple[Any, ...]:
    return tuple(normal(*batch, *shape, dtype=dtype) for shape in ((t, d), (s, d), (s, e)))


def heads(b: int, t: int, s: int, n: int, g: int, d: int, dtype: Any = np.float32) -> Any:
    return (normal(b, t, n, d, dtype=dtype), *(normal(b, s, g, d, dtype=dtype) for _ in range(2)))


BIASED = (normal(4, 1, 33), normal(3, 4, 29, 33))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "no batch": (plain, three(70, 131, 16, 16)),
    "one batch": (plain, three(33, 67, 20, 12, 3)),
    "three batches": (plain, three(17, 19, 8, 24, 2, 1, 3)),
    "primes": (plain, three(37, 41, 13, 7, 2)),
    "one query": (plain, three(1, 150, 64, 64, 2)),
    "one key": (plain, three(19, 1, 8, 8, 2)),
    "one of each": (plain, three(3, 5, 1, 1, 2)),
    "wide": (plain, three(20, 40, 200, 300)),
    "deep": (plain, three(20, 150, 264, 130)),
    "causal": (causal, three(67, 67, 16, 16, 2)),
    "causal, more keys": (causal, three(35, 100, 16, 16, 2)),
    "causal, finite": (lambda *args: causal(*args, low=-1e30), three(67, 67, 16, 16, 2)),
    "bias of keys": (biased, (*three(29, 33, 16, 8, 3, 4), BIASED[0])),
    "bias of all": (biased, (*three(29, 33, 16, 8, 3, 4), BIASED[1])),
    "mask": (masked, (*three(29, 33, 16, 8, 3), normal(3, 29, 33) > 0)),
    "mask of keys": (masked, (*three(29, 33, 16, 8, 3), normal(3, 1, 33) > 0)),
    "where": (where, (*three(29, 133, 16, 8, 3), normal(29, 133) > 0)),
    "soft cap": (capped, three(29, 33, 16, 8, 3)),
    "dropout": (dropped, (*three(29, 33, 16, 8, 3), normal(3, 29, 33) > -1)),
    "divided": (divided, (*three(29, 67, 16, 8, 3), RNG.random((3, 1, 67), np.float32) + 0.5)),
    "segments": (segments, (*three(29, 33, 16, 8, 3), RNG.integers(0, 3, (3, 29)),
                            RNG.integers(0, 3, (3, 33)))),
    "window": (window, three(80, 80, 16, 8)),
    "grouped": (library, heads(2, 21, 35, 6, 2, 16)),
    "grouped, causal": (lambda *x: library(*x, is_causal=True), heads(2, 35, 35, 6, 2, 16)),
    "grouped, bias": (lambda q, k, v, b: library(q, k, v, bias=b),
                      (*heads(2, 21, 35, 4, 2, 16), normal(2, 4, 21, 35))),
    "grouped, mask": (lambda q, k, v, m: library(q, k, v, mask=m),
                      (*heads(2, 21, 35, 4, 2, 16), normal(2, 1, 21, 35) > -1)),
    "shared keys": (shared_keys, (normal(2, 11, 3, 16), normal(2, 21, 16), normal(2, 21, 12))),
    "two axes": (two_axes, (normal(2, 11, 16), normal(2, 5, 7, 16), normal(2, 5, 7, 12))),
    "around": (around, (*three(29, 33, 16, 8, 3), normal(3, 29, 8))),
    "values first": (lambda q, k, v: jnp.einsum("se,ts->et", v, jax.nn.softmax(q @ k.T, -1)),
                     three(29, 33, 16, 8)),
    "keys first": (lambda q, k, v: jax.nn.softmax((k @ q.T).T, -1) @ v, three(29, 33, 16, 8)),
    "f64": (causal, three(37, 41, 13, 7, 2, dtype=np.float64)),
    "bf16": (causal, three(70, 133, 64, 32, 2, dtype=BF16)),
    "f16": (plain, three(70, 133, 40, 20, 2, dtype=np.float16)),
    "bf16, odd": (plain, three(21, 23, 13, 7, 2, dtype=BF16)),
    "bf16, deep": (plain, three(40, 70, 200, 130, dtype=BF16)),
    "bf16, grouped": (lambda *x: library(*x, is_causal=True), heads(2, 35, 35, 6, 2, 16, BF16)),
    "bf16, divided": (divided, (*three(29, 67, 16, 8, dtype=BF16),
                                (RNG.random(67) + 0.5).astype(BF16))),
    "bf16, dropout": (dropped, (*three(29, 33, 16, 8, 3, dtype=BF16), normal(3, 29, 33) > -1)),
}  # fmt: skip


def exact(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """By NumPy in float64, as the program is written."""
    with jax.enable_x64(True):
        graph = graph_of(function, *args)
    return interpret(graph, [np.asarray(x) for x in args], precision="f64")


def close(found: list[Any], wanted: list[Any]) -> None:
    for x, y in zip(found, wanted, strict=True):
        within = {2: 2e-2, 4: 3e-6, 8: 1e-14}[np.asarray(x).dtype.itemsize]
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=within, atol=within)


def kernels(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    return list(compilation_of(function, *args).run_until("codegen").kernels.values())


def _forced(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    ranked = shapes.best_shape

    def only(*args: Any) -> Any:
        return replace(ranked(*args), best=shape)

    monkeypatch.setattr(policy, "best_shape", only)
    forget_kernels()


def chosen(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    return [choice.name for kernel in kernels(function, args) for choice in kernel.kernel.choices]


def kinds(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    made = compilation_of(function, *args).run_until("schedule")
    return [dispatch.kind for dispatch in made.plan.dispatches]
