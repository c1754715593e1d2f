"""The sign of zeros through reductions, scans, products and extrema, as IEEE 754 has it: a sum is
-0 where all its terms are, so that one term is its own sum; max(-0, +0) is +0, min(-0, +0) is -0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options

Array = np.ndarray[Any, np.dtype[Any]]
SHAPES = [(1,), (2,), (7,), (16,), (33,), (300,), (1, 1), (5, 1), (1, 5), (4, 16), (17, 33),
          (40, 300), (2, 3, 5), (3, 16, 4)]  # fmt: skip
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def zeros(shape: tuple[int, ...], dtype: Any, seed: int, negative: float) -> Array:
    rng = np.random.default_rng(seed)
    sign = rng.random(shape) < negative
    return np.where(sign, -0.0, 0.0).astype(dtype)


def signs(x: Any) -> Array:
    """Minus signs; all of `x` has to be zero."""
    x = np.asarray(x).astype(np.float32)
    assert (x == 0).all()
    return np.signbit(x)


def staged(function: Callable[..., Any], *args: Any) -> Any:
    return stagejit.jit(function, options=Options(delegate=False))(*args)


@pytest.mark.some(3)
@pytest.mark.parametrize("negative", [1.0, 0.9], ids=["all", "most"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_and_scans(shape: tuple[int, ...], dtype: Any, negative: float) -> None:
    x = zeros(shape, dtype, len(shape), negative)
    minus = signs(x)
    axes = [*range(len(shape)), tuple(range(len(shape)))]

    def program(x: jax.Array) -> list[jax.Array]:
        results = [f(x, axis) for axis in axes for f in (jnp.sum, jnp.max, jnp.min, jnp.prod)]
        for axis in range(len(shape)):
            results += [lax.cumsum(x, axis), lax.cummax(x, axis), lax.cummin(x, axis)]
            results += [lax.cumsum(x, axis, reverse=True)]
        return results

    expected: list[Array] = []
    for axis in axes:
        odd = np.logical_xor.reduce(minus.reshape(-1) if isinstance(axis, tuple) else minus,
                                    axis=0 if isinstance(axis, tuple) else axis)  # fmt: skip
        expected += [minus.all(axis), minus.all(axis), minus.any(axis), odd]
    for axis in range(len(shape)):
        every = np.logical_and.accumulate(minus, axis)
        some = np.logical_or.accumulate(minus, axis)
        back = np.flip(np.logical_and.accumulate(np.flip(minus, axis), axis), axis)
        expected += [every, every, some, back]
    for actual, truth in zip(staged(program, x), expected, strict=True):
        np.testing.assert_array_equal(signs(actual), truth)


@pytest.mark.some(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("k", [1, 2, 7, 16, 40])
@pytest.mark.parametrize(
    ("path", "left", "right"),
    [("k,k->", "k", "k"), ("mk,kn->mn", "mk", "kn"), ("mk,nk->mn", "mk", "nk"),
     ("km,kn->mn", "km", "kn"), ("bmk,bkn->bmn", "bmk", "bkn"), ("mk,k->m", "mk", "k")],
)  # fmt: skip
def test_products(path: str, left: str, right: str, k: int, dtype: Any) -> None:
    """Rows of x are zeros of one sign, all of y is positive, so terms of a sum have one sign."""
    for m, n in ((1, 1), (3, 17), (20, 33)):
        sizes = {"k": k, "m": m, "n": n, "b": 2}
        shape = tuple(sizes[name] for name in left)
        rows = [1 if name == "k" else sizes[name] for name in left]
        minus = np.broadcast_to(np.random.default_rng(1).random(rows) < 0.6, shape)
        x = np.where(minus, -0.0, 0.0).astype(dtype)
        y = np.ones([sizes[name] for name in right]).astype(dtype)
        actual = staged(lambda x, y: jnp.einsum(path, x, y), x, y)
        truth = np.einsum(path, minus.astype(float), np.ones(y.shape)) == k
        np.testing.assert_array_equal(signs(actual), truth)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("channels", [1, 5, 16])
def test_convolutions(channels: int, k: int) -> None:
    x = np.full((2, channels, 9, 9), -0.0, np.float32)
    w = np.ones((17, channels, k, k), np.float32)
    actual = staged(lambda x, w: lax.conv(x, w, (1, 1), "VALID"), x, w)
    assert signs(actual).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_extrema(dtype: Any) -> None:
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid([0.0, -0.0] * 20, [0.0, -0.0]))
    one, two = signs(x), signs(y)

    def program(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        return [jnp.maximum(x, y), jnp.minimum(x, y), jax.nn.relu(x), jnp.maximum(-0.0, x),
                jnp.minimum(x, 0.0), jnp.minimum(-0.0, x), lax.clamp(x, y, x),
                jnp.clip(x, 0.0, 1.0), jnp.clip(x, -1.0, -0.0)]  # fmt: skip

    every, none = np.ones_like(one), np.zeros_like(one)
    truths = [one & two, one | two, none, one, one, every, (one & two) | one, none, every]
    for actual, truth in zip(staged(program, x, y), truths, strict=True):
        np.testing.assert_array_equal(signs(actual), truth)


def test_empty_sums_are_positive() -> None:
    empty = np.zeros((3, 0), np.float32)
    actual = staged(lambda x: [x.sum(1), x.sum(0).sum(), x @ x.T, x.sum()], empty)
    assert not any(signs(a).any() for a in actual)


def test_scatter_extrema() -> None:
    plus, minus = np.zeros(8, np.float32), np.full(8, -0.0, np.float32)
    at = np.array([1, 1, 5])

    def program(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        return [x.at[at].max(y[:3]), y.at[at].max(x[:3]), x.at[at].min(y[:3]),
                y.at[at].min(x[:3]), y.at[at].add(y[:3])]  # fmt: skip

    touched = np.isin(np.arange(8), at)
    truths = [np.zeros(8, bool), ~touched, touched, np.ones(8, bool), np.ones(8, bool)]
    for actual, truth in zip(staged(program, plus, minus), truths, strict=True):
        np.testing.assert_array_equal(signs(actual), truth)
