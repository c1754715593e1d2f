"""Special functions composed of elementary ones."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from stagejit.graph.build import graph_of
from stagejit.graph.interpreter import interpret

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
