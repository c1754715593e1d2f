"""zeta, polygamma and Bessel functions against SciPy, and functions that JAX itself writes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from scipy import special

import stagejit

RTOL = {"float16": 4e-3, "float32": 4e-6, "float64": 2e-14}
TYPES = list(RTOL)


def close(ours: Any, expected: Any, dtype: str, scale: float = 1.0) -> None:
    assert ours.dtype == dtype
    with np.errstate(over="ignore"):
        expected = expected.astype(dtype)
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), expected.astype(np.float64), rtol=scale * RTOL[dtype],
        atol=float(np.finfo(dtype).tiny),
    )  # fmt: skip


def computed(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        assert not stagejit.jit(fn).plan(*args).delegated
        return stagejit.jit(fn)(*args)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", TYPES)
def test_zeta(dtype: str) -> None:
    x = [1.5, 2, 3, 4, 5, 7, 10, 2, 3, 5, 2, 3, 4, 1, 0.5, 3, 2.5, 2, 2]
    q = [0.3, 5, 0.1, 2, 100, 9, 3, -0.5, -0.5, -0.25, -20.5, -20.75, -3.25, 2, 2, 1, -2.5, 0, -4]
    x, q = (np.array(each).astype(dtype) for each in (x, q))  # type: ignore[assignment]
    wide = [np.asarray(each).astype(np.float64) for each in (x, q)]
    close(computed(lax.zeta, x, q), special.zeta(*wide), dtype)


def test_zeta_where_it_is_no_number() -> None:
    x, q = np.array([3, 3, 2.5, np.nan, 2], np.float32), np.array([-2, 0, -0.5, 1, np.nan])
    assert np.isnan(computed(lax.zeta, x, q.astype(np.float32))).all()


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", TYPES)
def test_polygamma(dtype: str) -> None:
    m = np.array([0, 1, 2, 3, 4, 1, 2, 3, 1, 5]).astype(dtype)
    x = np.array([2.25, 1.5, 0.5, 7, 9, -0.5, -0.5, -3.75, 0, -4.25]).astype(dtype)
    expected = [float(special.polygamma(int(a), float(b))) for a, b in zip(m, x, strict=True)]
    close(computed(lax.polygamma, m, x), np.array(expected), dtype, scale=2)
    assert np.isnan(computed(lax.polygamma, np.float32([0.5, -1]), np.float32([1, 1]))).all()


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["i0e", "i1e"])
def test_bessel_functions(name: str, dtype: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 401), [0, 8, -8, np.inf, -np.inf, np.nan]])
    x = x.astype(dtype)
    fn = {"i0e": lax.bessel_i0e, "i1e": lax.bessel_i1e}[name]
    close(computed(fn, x), getattr(special, name)(x.astype(np.float64)), dtype)
    assert np.signbit(computed(lax.bessel_i1e, -np.zeros(1, dtype)))[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_incomplete_functions(dtype: str) -> None:
    """Loops until all elements converge, by what JAX lowers them to."""
    random = np.random.default_rng(0)
    a, x = (random.gamma(2.0, 2.0, 300).astype(dtype) for _ in range(2))
    u = random.uniform(size=300).astype(dtype)
    wide = [each.astype(np.float64) for each in (a, x, u)]
    close(computed(lax.igamma, a, x), special.gammainc(*wide[:2]), dtype, scale=20)
    close(computed(lax.igammac, a, x), special.gammaincc(*wide[:2]), dtype, scale=20)
    close(computed(lax.betainc, a, x, u), special.betainc(*wide), dtype, scale=100)
    for fn in (lax.igamma_grad_a, lax.random_gamma_grad):
        with jax.enable_x64(True):
            theirs = np.asarray(jax.jit(fn)(*wide[:2]))
        close(computed(fn, a, x), theirs, dtype, scale=200)


def extremes(dtype: str) -> np.ndarray:
    """By orders of magnitude, and more closely where the methods change. For a and x of 1e20, the
    series takes so many terms that JAX does not come back."""
    info = np.finfo(dtype)
    orders = np.geomspace(float(info.tiny), 1, 16)
    return np.array([0, *orders, 0.5, 1 + info.eps, 1.5, 3, 10, 100, 1e3, np.inf], dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fn", [lax.igamma, lax.igammac, lax.betainc])
def test_probabilities_are_within_bounds(fn: Any, dtype: str) -> None:
    """And no number only where JAX has none."""
    shares = np.array([0, 1e-30, 1e-7, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 2.0**-8, 1], dtype)
    axes = [extremes(dtype), extremes(dtype), *([shares] if fn is lax.betainc else [])]
    args = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
    made = np.asarray(computed(fn, *args)).astype(np.float64)
    with jax.enable_x64(True):
        theirs = np.asarray(jax.jit(fn)(*args)).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(theirs))
    made = made[~np.isnan(made)]
    assert made.min() >= 0
    assert made.max() <= 1
