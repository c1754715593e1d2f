"""Special functions composed of elementary ones."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from scipy import special

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.trace.math.special_coefficients import DIGAMMA_AT_ROOT, DIGAMMA_ROOT, LGAMMA_AT_2
from stagejit.trace.translate import graph_of

X = np.array([0.1, 0.5, 0.99, 1, 1.5, 2, 3.7, 10, 100, 1e5, -0.5, -1.3, -7.7, -0.001, np.inf])
POLES = np.array([-1.0, -2.0, np.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("fn", [lax.lgamma, lax.digamma])
def test_gamma_functions_agree_with_xla(fn: Any, dtype: Any) -> None:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        x = np.concatenate([X, POLES]).astype(dtype)
        ours = interpret(graph_of(fn, x, delegate=False), [x])[0]
        theirs = np.asarray(jax.jit(fn)(x))
    rtol = {2: 4e-3, 4: 2e-5, 8: 1e-12}[x.dtype.itemsize]
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


def test_digamma_of_zero_is_infinite() -> None:
    x = np.array([0.0, -0.0], np.float32)
    np.testing.assert_array_equal(interpret(graph_of(lax.digamma, x), [x])[0], [-np.inf, np.inf])


def test_lgamma_against_the_standard_library() -> None:
    x = X[X > 0][:-1]
    graph = graph_of(lax.lgamma, x.astype(np.float32))
    expected = [math.lgamma(v) for v in x]
    np.testing.assert_allclose(
        interpret(graph, [x], precision="f64")[0], expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="a primitive of jax 0.12")
@pytest.mark.parametrize("degree", [0, 1, 5, 20])
def test_polynomials_by_horners_rule(degree: int) -> None:
    x, c = np.array([0.5, -2, 1], np.float32), [np.float32(k - 2) for k in range(degree + 1)]

    def fn(x: Any) -> Any:
        return lax.polynomial(x, c)

    ours = interpret(graph_of(fn, x, delegate=False), [x])[0]
    np.testing.assert_allclose(ours, jax.jit(fn)(x), rtol=1e-5)


def ulps(actual: Any, truth: Any, dtype: Any) -> float:
    """The largest error, relative to the truth, in units of the last place."""
    error = np.abs(np.asarray(actual).astype(np.float64) - truth)
    return float((error / np.maximum(np.abs(truth), 1e-300)).max() / np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lgamma_is_accurate_next_to_its_zeros(dtype: Any) -> None:
    near = 2.0 ** -np.arange(1, np.finfo(dtype).nmant - 1)
    x = np.concatenate([np.linspace(0.5, 3.49, 500), 1 + near, 1 - near, 2 + near, 2 - near])
    x = x.astype(dtype)
    lgamma = ctypes.CDLL(ctypes.util.find_library("m")).lgamma  # Python's own is no better
    lgamma.restype, lgamma.argtypes = ctypes.c_double, [ctypes.c_double]
    truth = np.vectorize(lgamma)(x.astype(np.float64))
    with jax.enable_x64(dtype is np.float64):
        actual = stagejit.jit(lax.lgamma)(x)
        zeros = stagejit.jit(lax.lgamma)(np.array([1, 2] * 16, dtype))
    assert ulps(actual, truth, dtype) < 10
    assert not np.asarray(zeros).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digamma_is_accurate_next_to_its_root(dtype: Any) -> None:
    near = 2.0 ** -np.arange(1, np.finfo(dtype).nmant - 1)
    root = 1.4616321449683623
    x = np.concatenate([np.linspace(1, 2, 500), root + near, root - near]).astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        actual = stagejit.jit(lax.digamma)(x)
    assert ulps(actual, special.digamma(x.astype(np.float64)), dtype) < 25


def test_coefficients_are_those_of_the_series() -> None:
    k = np.arange(2, len(LGAMMA_AT_2) + 1)
    np.testing.assert_allclose(LGAMMA_AT_2[1:], (-1.0) ** k * special.zetac(k) / k, rtol=1e-15)
    assert LGAMMA_AT_2[0] == 1 - np.euler_gamma
    n = np.arange(1, len(DIGAMMA_AT_ROOT) + 1)
    root = sum(DIGAMMA_ROOT["f64"])
    expected = (-1.0) ** (n + 1) * special.zeta(n + 1, root)
    np.testing.assert_allclose(DIGAMMA_AT_ROOT, expected, rtol=1e-14)
    assert sum(DIGAMMA_ROOT["f32"]) == root
