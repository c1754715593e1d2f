"""Complex arithmetic is ours, next to NumPy's in complex128, also where squares leave the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from tests.randomness import RNG

VERIFYING = stagejit.Options(verify=True)
SHAPE = (5, 7)


def numbers(dtype: Any = np.complex64) -> Any:
    return (RNG.normal(size=SHAPE) + 1j * RNG.normal(size=SHAPE)).astype(dtype)


def sum_of_rows(z: Any) -> Any:
    return jax.vmap(lambda row: lax.psum(row, "rows"), axis_name="rows", out_axes=None)(z)


Z, W, X = numbers(), numbers(), RNG.normal(size=SHAPE).astype(np.float32)
PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mul": lambda z, w, x: z * w,
    "div": lambda z, w, x: z / w,
    "mixed": lambda z, w, x: (z * x + 1j) / 2.0 - w.conj(),
    "chain": lambda z, w, x: ((z * w + z) * w - w) * (-z),
    "abs": lambda z, w, x: abs(z * w),
    "parts": lambda z, w, x: (z.real, (z * w).imag, -z),
    "powers": lambda z, w, x: (z**2, z**3, z**4, z**1, z**7, z**-1, z**-2),
    "functions": lambda z, w, x: jnp.sqrt(jnp.cos(z * w) + jnp.tanh(z)) / jnp.log(w),
    "chosen": lambda z, w, x: (lax.clamp(z, w, w + x), jnp.where(x > 0, z, w)),
    "counted": lambda z, w, x: lax.iota(np.complex64, 7) + 1j,
    "sums": lambda z, w, x: ((z * w).sum(0), z.sum()),
    "sums of a mapped axis": lambda z, w, x: sum_of_rows(z * w),
    "moved": lambda z, w, x: (z * w).T[1:, ::2] + 1,
    "compared": lambda z, w, x: (z == w, z != z, z * 1 == z),
}


def allclose(actual: Any, expected: Any, rtol: float = 1e-5) -> None:
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", PROGRAMS)
def test_against_numpy(name: str) -> None:
    program = PROGRAMS[name]
    staged = stagejit.jit(program, options=VERIFYING)
    wide = (Z.astype(np.complex128), W.astype(np.complex128), X.astype(np.float64))
    allclose(staged(Z, W, X), program(*wide))
    assert not staged.plan(Z, W, X).delegated


@pytest.mark.parametrize("name", PROGRAMS)
def test_double(name: str) -> None:
    program = PROGRAMS[name]
    with jax.enable_x64(True):
        arguments = numbers(np.complex128), numbers(np.complex128), X.astype(np.float64)
        staged = stagejit.jit(program, options=VERIFYING)
        allclose(staged(*arguments), program(*arguments), 1e-12)
        assert not staged.plan(*arguments).delegated


def test_bits_of_the_same_type() -> None:
    staged = stagejit.jit(lambda z: lax.bitcast_convert_type(z, np.complex64) * 2)
    np.testing.assert_array_equal(staged(Z), 2 * Z)
    assert not staged.plan(Z).delegated


def test_exp_and_conversions() -> None:
    def program(z: Any, x: Any) -> Any:
        return jnp.exp(z), jnp.exp(lax.complex(x, jnp.zeros_like(x))), x.astype(jnp.complex64)

    staged = stagejit.jit(program, options=VERIFYING)
    allclose(staged(Z, X), (np.exp(Z), np.exp(X) + 0j, X + 0j))
    assert not staged.plan(Z, X).delegated
    ints = jnp.arange(4)
    np.testing.assert_array_equal(
        stagejit.jit(lambda n: (n > 1).astype(jnp.complex64) + n.astype(jnp.complex64))(ints),
        [0, 1, 3, 4],
    )


def test_large_and_small_parts() -> None:
    """Squares of these parts are infinite, or zero, in f32."""
    sizes = np.array([1e-30, 1e30, 3e25, 1.0, 0.0], np.float32)
    z = (sizes[:, None] + 1j * sizes[None, :]).astype(np.complex64)
    lengths = stagejit.jit(jnp.abs)(z)
    np.testing.assert_allclose(lengths, np.abs(z.astype(np.complex128)), rtol=1e-6)
    w = z.ravel()[:-1][::-1].copy()
    with np.errstate(all="ignore"):
        expected = (z.ravel()[:-1].astype(np.complex128) / w).astype(np.complex64)
    np.testing.assert_allclose(
        stagejit.jit(lambda z, w: z / w)(z.ravel()[:-1], w), expected, rtol=1e-5, atol=1e-37
    )


def test_what_is_not_finite() -> None:
    inf, nan = np.inf, np.nan
    z = np.array([complex(inf, nan), complex(nan, -inf), complex(nan, 1), complex(-inf, 2), 0j],
                 np.complex64)  # fmt: skip
    np.testing.assert_array_equal(stagejit.jit(jnp.abs)(z), np.abs(z))
    with np.errstate(all="ignore"):
        quotients = stagejit.jit(lambda z: z / np.complex64(0))(np.array([1, 1j, 0], np.complex64))
    assert not np.isfinite(np.asarray(quotients)).any()


def test_derivatives_loops_and_batches() -> None:
    def loss(z: Any) -> Any:
        final, _ = lax.scan(lambda c, r: (c * r + 1, None), z[0], z)
        return jnp.sum(jnp.abs(final) ** 2)

    for program in (jax.grad(loss), jax.vmap(jax.grad(loss)), jax.jit(loss)):
        z = np.stack([Z, W]) if program is not jax.grad(loss) else Z
        allclose(stagejit.jit(program)(z), jax.jit(program)(z), 1e-3)


@pytest.mark.parametrize("fn", ["max", "min"])
def test_order(fn: str) -> None:
    """By real parts, then imaginary ones; the first that has a NaN is the result, as in NumPy."""
    parts = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan], np.float32)
    z = np.zeros((7, 7), np.complex64)
    z.real, z.imag = np.meshgrid(parts, parts)
    x, y = z.reshape(-1, 1), z.reshape(1, -1)
    ours = np.asarray(stagejit.jit(getattr(lax, fn))(*np.broadcast_arrays(x, y)))
    with np.errstate(invalid="ignore"):
        expected = {"max": np.maximum, "min": np.minimum}[fn](x, y)
    np.testing.assert_array_equal(ours.view(np.float32), expected.view(np.float32))


NEAR_ONE: dict[str, Callable[[Any], Any]] = {
    "square": lambda z: 1 - jnp.square(z),
    "product": lambda z: 1 - z * z,
    "power": lambda z: 1 - z**2,
    "the other way": lambda z: z**2 - 1,
    "root": lambda z: lax.rsqrt(1 - jnp.square(z)),
    "of a sum": lambda z: 1 - jnp.square(z * 1),
    **{
        fn.__name__: jax.grad(lambda z, fn=fn: (lambda y: y.real + 2 * y.imag)(fn(z)).sum())
        for fn in (jnp.arccos, jnp.arcsin, jnp.arctanh)
    },
}


@pytest.mark.parametrize("name", NEAR_ONE)
def test_near_one_nothing_is_lost_to_a_square(name: str) -> None:
    """Ten times the rounding of a float, at any distance from 1 and -1."""
    r = np.random.default_rng(0)
    away = 10 ** r.uniform(-5, 1, 4000) * np.exp(2j * np.pi * r.uniform(0, 1, 4000))
    z = (r.choice([-1, 1], 4000) + away).astype(np.complex64)
    f = NEAR_ONE[name]
    with jax.enable_x64(True):
        expected = np.asarray(jax.jit(f)(jnp.asarray(z.astype(np.complex128))))
    made = np.asarray(stagejit.jit(f, options=VERIFYING)(z))
    assert (abs(made - expected) / abs(expected)).max() < 1e-6


@pytest.mark.parametrize("name", ["square", "product", "power", "the other way"])
def test_zeros_of_what_is_taken_from_one_have_a_sign(name: str) -> None:
    """It says on which side of a cut the root lies, or the derivative of an arc function."""
    sizes = np.array([0, 0.5, 1, 2, 3.28, 1e-20], np.float32)
    parts = np.concatenate([sizes, -sizes])
    z = np.empty((12, 12), np.complex64)
    z.real, z.imag = np.meshgrid(parts, parts)
    expected = z * z - 1 if name == "the other way" else 1 - z * z
    made = np.asarray(stagejit.jit(NEAR_ONE[name], options=VERIFYING)(z))
    for ours, wanted in ((made.real, expected.real), (made.imag, expected.imag)):
        zero = wanted == 0
        np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(wanted[zero]))


SQUARES: dict[str, Callable[[Any], Any]] = {
    "square": jnp.square,
    "product": lambda z: z * z,
    "power": lambda z: z**2,
}


@pytest.mark.parametrize("name", SQUARES)
def test_parts_of_squares_keep_their_digits(name: str) -> None:
    """The real part where both parts of a number are nearly as large, and the other way around."""
    r = np.random.default_rng(0)
    a = r.choice([-1, 1], 4000) * 10 ** r.uniform(-5, 5, 4000)
    b = r.choice([-1, 1], 4000) * a * (1 + 10 ** r.uniform(-6, 1, 4000))
    z = (a + 1j * b).astype(np.complex64)
    expected = SQUARES[name](z.astype(np.complex128))
    made = np.asarray(stagejit.jit(SQUARES[name], options=VERIFYING)(z))
    np.testing.assert_allclose(made.real, expected.real, rtol=1e-6)
    np.testing.assert_allclose(made.imag, expected.imag, rtol=1e-6)


@pytest.mark.parametrize("name", SQUARES)
def test_squares_of_what_is_large_or_infinite(name: str) -> None:
    z = [complex(np.inf, 1), complex(np.inf, 1e30), complex(1e30, 1e30), complex(-1, -1)]
    made = np.asarray(stagejit.jit(SQUARES[name], options=VERIFYING)(np.asarray(z, np.complex64)))
    np.testing.assert_array_equal(made.real, [np.inf, np.inf, 0, 0])
    assert not np.signbit(made.real).any()


def test_dont_take_other_differences_for_squares() -> None:
    def of_parts(z: Any, w: Any) -> Any:
        a, b = z.real, w.imag
        return 1 - lax.complex(a * a - b * b, z.imag), 1 - lax.complex(a * a - a * b, z.imag)

    for f in (
        of_parts, lambda z, w: 1 - z * w, lambda z, w: (1 + 1j) - z * z, lambda z, w: 1j - z * z,
        lambda z, w: z - z * z, lambda z, w: 1 - lax.complex(z.real, z.imag),
        lambda z, w: (1 - jnp.square(z), jnp.square(z) - 1),
    ):  # fmt: skip
        wide = (Z.astype(np.complex128), W.astype(np.complex128))
        with jax.enable_x64(True):
            expected = jax.jit(f)(*wide)
        allclose(stagejit.jit(f)(Z, W), expected)
