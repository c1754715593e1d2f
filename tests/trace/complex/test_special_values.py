"""Functions of complex numbers on a grid of special parts, next to NumPy's in complex128.

Where a part of the wanted result is NaN, C leaves the sign of the other one open. Where NumPy has a
formula of its own instead of C's function, JAX's result counts, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import stagejit

INF = np.inf
Function = Callable[[Any], Any]

# Those that are C's in NumPy.
OF_C: dict[str, Function] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
FORMULAS: dict[str, Function] = {
    "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "sign": np.sign,
    "rsqrt": lambda z: 1 / np.sqrt(z), "logistic": lambda z: 1 / (1 + np.exp(-z)),
}  # fmt: skip
TOLERANCE = {"complex64": 3e-6, "complex128": 1e-13}


def grid(dtype: str, *, largest: float = INF) -> np.ndarray[Any, Any]:
    """Every pair of parts among zeros, ones, infinities, NaN, and what squares leave the range."""
    info = np.finfo(dtype)
    sizes = [0, 1, 0.5, 2, 3.7, INF, 1e-3, 1e-20, 100.0, float(info.max) / 2,
             float(info.max) ** 0.5 * 4, float(info.tiny) ** 0.5 / 4]  # fmt: skip
    kept = [x for x in sizes if x <= largest]
    parts = np.array([*kept, *(-x for x in kept), np.nan], info.dtype)
    z: np.ndarray[Any, Any] = np.empty((parts.size, parts.size), dtype)
    z.real, z.imag = np.meshgrid(parts, parts)
    return z.ravel()


def same(ours: Any, wanted: Any) -> Any:
    """Where both parts agree: bits of zeros and infinities, others to a few ulp; denormals are
    zeros, but for their sign."""
    good = np.ones(ours.shape, np.bool_)
    least, tolerance = np.finfo(ours.dtype).tiny, TOLERANCE[str(ours.dtype)]
    signed = ~np.isnan(wanted) & ((wanted == 0) | (np.abs(wanted) > least))
    for p, q in ((ours.real, wanted.real), (ours.imag, wanted.imag)):
        near = np.abs(p - q) <= tolerance * np.abs(q) + 4 * least
        good &= (np.isnan(p) & np.isnan(q)) | (p == q) | near
        good &= ~signed | (p != 0) | (q != 0) | (np.signbit(p) == np.signbit(q))
    return good


def run(name: str, z: Any) -> Any:
    with jax.enable_x64(True):
        staged = stagejit.jit(getattr(lax, name))
        assert not staged.plan(z).delegated
        return np.asarray(staged(z))


def as_jax(name: str, z: Any, ours: Any, good: Any) -> Any:
    """Where both agree with each other, asked only where something is not good yet."""
    if good.all():
        return good
    with jax.enable_x64(True):
        return same(ours, np.asarray(jax.jit(getattr(lax, name))(z)))


def wanted(function: Function, z: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(z.astype(np.complex128)).astype(z.dtype)


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OF_C)
def test_as_c_has_it(name: str, dtype: str) -> None:
    z = grid(dtype)
    ours = run(name, z)
    expected = wanted(OF_C[name], z)
    good = same(ours, expected)
    if name in ("tan", "tanh"):  # C leaves open what part of 0 + inf i is NaN
        good |= as_jax(name, z, ours, good)
    if name == "exp":  # and the sign of zeros at -inf + inf i
        good |= (z.real == -INF) & np.isinf(z.imag) & (ours == 0)
    assert good.all(), list(zip(z[~good], ours[~good], expected[~good], strict=True))[:8]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FORMULAS)
def test_as_numpy_or_jax_has_it(name: str, dtype: str) -> None:
    z = grid(dtype, largest=1e3)
    z = z[np.isfinite(z)]
    ours = run(name, z)
    expected = wanted(FORMULAS[name], z)
    good = same(ours, expected)
    good |= as_jax(name, z, ours, good)
    assert good.all(), list(zip(z[~good], ours[~good], expected[~good], strict=True))[:8]


SPECIAL = {
    "sign": [(complex(INF, 2), 1), (complex(-INF, np.nan), -1), (complex(3, -INF), -1j)],
    "rsqrt": [(complex(INF, 1), 0), (complex(-INF, INF), 0), (complex(1, INF), 0)],
    "logistic": [(complex(-INF, 2), 0), (complex(INF, 5), 1), (-200 + 1j, 0)],
    "expm1": [(complex(-INF, 1), -1), (complex(-INF, INF), -1)],
    "integer_pow": [(complex(INF, INF), 0), (complex(np.nan, INF), 0)],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_infinite_parts(name: str) -> None:
    points, expected = (np.array(x, np.complex64) for x in zip(*SPECIAL[name], strict=True))
    function = (lambda z: z**-1) if name == "integer_pow" else getattr(lax, name)
    ours = np.asarray(stagejit.jit(function)(points))
    np.testing.assert_allclose(ours, expected, atol=1e-37)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_near_what_cancels(dtype: str) -> None:
    """Inverse functions around their branch points."""
    rng = np.random.default_rng(0)
    angle, off = rng.uniform(0, 2 * np.pi, 500), 10.0 ** rng.uniform(-5, -1, 500)
    w = (1 + off * np.exp(1j * angle)).astype(dtype)
    for name, function in (("asin", np.arcsin), ("acosh", np.arccosh), ("atanh", np.arctanh)):
        assert same(run(name, w), wanted(function, w)).all(), name


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["log", "log1p"])
def test_logarithms_of_sizes_near_one(name: str, dtype: str) -> None:
    """Around the unit circle, also where it passes through zero, next to logarithms of exact
    squares: all bits are right but a few of the last place, of it or of squares in two f64."""
    rng, size = np.random.default_rng(0), 2000
    angle, off = rng.uniform(0, 2 * np.pi, size), 10.0 ** rng.uniform(-6, -1, size)
    angle[: size // 2] *= 10.0 ** rng.uniform(-6, 0, size // 2)
    angle[size // 4 : size // 2] += np.pi  # squares cancel each other where 1 + x passes -1
    off[::4] = 0
    sine = np.sin(angle / 2)
    x = (np.sin(angle) * 1j - 2 * sine * sine) * (1 + off) + off * rng.choice([-1, 1], size)
    z = (x if name == "log1p" else 1 + x).astype(dtype)
    # As near to the circle as numbers are, where squares cancel each other.
    half = z.real[: size // 2].astype(np.longdouble) + (name == "log1p")
    z.imag[: size // 2] = np.sqrt(np.maximum(1 - half * half, 0))
    ours = run(name, z)
    expected = np.array([size_of_log(w, name == "log1p") for w in z.tolist()])
    eps, least = np.finfo(dtype).eps, np.finfo(np.float64).eps ** 2
    np.testing.assert_allclose(ours.real, expected, rtol=4 * eps, atol=least)
    angles = np.angle(z.astype(np.clongdouble) + (name == "log1p"))
    np.testing.assert_allclose(ours.imag, angles.astype(np.float64), rtol=4 * eps, atol=0)


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OF_C)
def test_at_any_size(name: str, dtype: str) -> None:
    """Both parts of each size that is no denormal, from the least to the largest."""
    rng, info, count = np.random.default_rng(2), np.finfo(dtype), 20000
    exponents = rng.integers(info.minexp, info.maxexp, (2, count))
    near = rng.integers(-8, 24, (2, count))  # where there is more to go wrong
    exponents = np.where(rng.random((2, count)) < 0.5, near, exponents)
    parts = np.ldexp(rng.uniform(1, 2, (2, count)).astype(info.dtype), exponents)
    parts *= rng.choice(np.array([-1, 1], info.dtype), (2, count))
    z = (parts[0] + 1j * parts[1]).astype(dtype)
    edge = np.array([1 + 1j * info.tiny, info.tiny + 1j, info.tiny - 1j * info.tiny], dtype)
    z = np.concatenate([z, edge])
    exact = OF_C[name](z.astype(np.clongdouble))
    good = same(run(name, z), exact.astype(dtype))
    assert good.all(), list(zip(z[~good], run(name, z)[~good], exact[~good], strict=True))[:8]


def size_of_log(z: complex, plus_one: bool) -> float:
    """log |z| or log |1 + z|"""
    a, b = Fraction(z.real) - (0 if plus_one else 1), Fraction(z.imag)
    return math.log1p(2 * a + a * a + b * b) / 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 200, 2)).astype(np.float32).view(np.complex64)[..., 0]
    staged = stagejit.jit(lax.pow)
    np.testing.assert_allclose(staged(x, y), x.astype(np.complex128) ** y, rtol=2e-5)
    zeros = np.zeros(4, np.complex64)
    exponents = np.array([0, 2, 1 + 1j, -1], np.complex64)
    np.testing.assert_array_equal(staged(zeros, exponents), [1, 0, 0, complex(np.nan, np.nan)])
    n = np.arange(-3, 5, dtype=np.int32)
    np.testing.assert_allclose(
        staged(np.full(8, 0.5 - 1j, np.complex64), n), (0.5 - 1j) ** n, rtol=1e-5
    )
