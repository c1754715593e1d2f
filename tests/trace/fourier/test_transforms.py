"""Fourier transforms of all kinds and lengths, against NumPy with long doubles and against XLA."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import extending
from tests.randomness import RNG

VERIFYING = stagejit.Options(verify=True)
NUMPY: dict[str, Any] = {
    "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn,
}  # fmt: skip
# One element, chains of sums, one product, fours with each rest, an eight first, products and
# convolutions for primes, alone and with other factors.
LENGTHS = (
    1, 2, 3, 7, 10, 16, 17, 20, 24, 25, 29, 32, 35, 37, 64, 74, 96, 100, 101, 176, 202, 256, 263,
    128, 192, 1000, 1155,
)  # fmt: skip
SHAPES = (
    ((2, 6, 10), 2), ((4, 4, 4), 3), ((3, 17, 8), 2), ((5, 1, 7), 3), ((1, 6), 2), ((6, 1), 2),
    ((2, 3, 64, 5), 3), ((16, 48), 2), ((101, 6), 2), ((2, 20, 34), 1), ((8, 2), 2),
)  # fmt: skip


def given(kind: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    if kind == "IRFFT":
        shape = (*shape[:-1], shape[-1] // 2 + 1)
    x = RNG.standard_normal(shape).astype(dtype)
    return x if kind == "RFFT" else x + 1j * RNG.standard_normal(shape).astype(dtype)


def exact(kind: str, x: Any, lengths: tuple[int, ...]) -> Any:
    wide = x.astype(np.clongdouble if np.iscomplexobj(x) else np.longdouble)
    return NUMPY[kind](wide, s=lengths, axes=tuple(range(-len(lengths), 0)))


def error(made: Any, wanted: Any) -> float:
    """The mean square, in roundings of the mean size."""
    size = math.sqrt(np.mean(np.abs(wanted) ** 2)) * np.finfo(made.dtype).eps
    return math.sqrt(np.mean(np.abs(made - wanted) ** 2)) / size


def check(kind: str, shape: tuple[int, ...], axes: int = 1, dtype: Any = np.float32) -> None:
    """As exact as XLA's, within a factor of two; some roundings differ where there are few."""
    x, lengths = given(kind, shape, dtype), shape[-axes:]
    staged = stagejit.jit(lambda x: lax.fft(x, kind, lengths), options=VERIFYING)
    assert not staged.plan(x).delegated
    plain = jax.jit(lambda x: lax.fft(x, kind, lengths))
    made, theirs = np.asarray(staged(x)), np.asarray(plain(x))
    assert (made.shape, made.dtype) == (theirs.shape, theirs.dtype)
    wanted = exact(kind, x, lengths)
    assert error(made, wanted) <= 2 * error(theirs, wanted) + 0.3


@pytest.mark.some(3)
@pytest.mark.parametrize("length", LENGTHS)
def test_any_length(length: int, some_of: Any) -> None:
    for kind in some_of(NUMPY, 2):
        check(kind, (5, length))


@pytest.mark.some(3)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_any_axes(shape: tuple[int, ...], axes: int, some_of: Any) -> None:
    for kind in some_of(NUMPY, 2):
        check(kind, shape, axes)


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", NUMPY)
@pytest.mark.parametrize("length", [16, 40, 37, 256])
def test_double_precision(kind: str, length: int) -> None:
    with jax.enable_x64(True):
        check(kind, (3, length), dtype=np.float64)


def test_a_long_line() -> None:
    check("FFT", (1, 1 << 16))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 4)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    for fn in (jnp.fft.fft, jnp.fft.ifft, jnp.fft.rfft, jnp.fft.irfft):
        x = np.zeros(shape, np.float32)
        assert stagejit.jit(fn)(x).shape == fn(x).shape


def test_what_does_not_count_is_not_read() -> None:
    """The imaginary parts of the first element and, of even lengths, of the last one."""
    for length in (8, 9, 40):
        x = given("IRFFT", (3, length))
        x.imag[:, 0] = np.nan
        wanted = x.copy()
        wanted[:, 0] = x[:, 0].real
        if length % 2 == 0:
            x.imag[:, -1] = np.inf
            wanted[:, -1] = x[:, -1].real
        made = stagejit.jit(lambda x, n=length: jnp.fft.irfft(x, n))(x)
        np.testing.assert_allclose(made, np.fft.irfft(wanted, length), atol=1e-6)


def test_dont_take_a_line_of_another_length() -> None:
    """JAX's own function would have cut it; XLA says what is wrong."""
    x = np.ones(4, np.complex64)
    (left,) = stagejit.jit(lambda x: lax.fft(x, "IRFFT", (8,))).plan(x).delegated
    assert left.reason == "fft: 4 elements of the transform of 8 real ones"


def test_dont_keep_too_many_roots() -> None:
    x = jax.ShapeDtypeStruct((1 << 23,), np.complex64)
    (left,) = stagejit.jit(jnp.fft.fft).plan(x).delegated
    assert left.reason == "fft: a line of 8388608 elements has too many roots of unity to keep"


def test_under_transformations() -> None:
    x, w = given("RFFT", (4, 6, 20)), given("RFFT", (4, 6, 20))

    def loss(x: Any) -> Any:
        y = jnp.fft.rfft2(x)
        return jnp.sum(jnp.fft.irfft2(y * jnp.fft.rfft2(w[0])) ** 2) + jnp.sum(
            jnp.abs(jnp.fft.ifft(x, axis=0)) ** 2
        )

    for f in (jax.grad(loss), jax.vmap(loss), jax.vmap(jax.grad(loss))):
        ours = stagejit.jit(f)
        assert not ours.plan(x).delegated
        made, wanted = np.asarray(ours(x)), np.asarray(jax.jit(f)(x))
        assert np.abs(made - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_in_a_loop() -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, c: jnp.fft.ifft(jnp.fft.fft(c) * 1j), x)

    x = given("FFT", (3, 24))
    assert not stagejit.jit(f).plan(x).delegated
    np.testing.assert_allclose(stagejit.jit(f)(x), x * 1j, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "passes"), [((64, 16), 1), ((64, 256), 4), ((64, 1024), 5), ((64, 100), 3)]
)
def test_each_step_is_one_pass(shape: tuple[int, ...], passes: int) -> None:
    options = stagejit.Options(disable=("tile-and-fuse",))
    plan = stagejit.jit(jnp.fft.fft, options=options).plan(given("FFT", shape))
    assert len(plan.dispatches) == passes


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((64, 343), ["map", "fill", "map", "map", "map"]),
        ((64, 101), ["map", "fill", "contract", "map"]),
        ((64, 25), ["map", "fill", "map", "map"]),
    ],
)
def test_odd_real_lines_are_copied_neither_before_nor_after(
    shape: tuple[int, ...], kinds: list[str]
) -> None:
    """The first step reads them, beside zeros, and the last one makes the half that is wanted."""
    options = stagejit.Options(disable=("tile-and-fuse",))
    plan = stagejit.jit(jnp.fft.rfft, options=options).plan(given("RFFT", shape))
    assert [each.kind for each in plan.dispatches] == kinds


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (jnp.fft.fft, (64, 1024)),
        (jnp.fft.ifft, (96, 1000)),
        (jnp.fft.rfft, (1024, 256)),
        (jnp.fft.irfft, (512, 129)),
        (jnp.fft.fft, (64, 1009)),
    ],
)
def test_a_line_takes_all_steps_on_one_core(fn: Any, shape: tuple[int, ...]) -> None:
    """One fork, and what a step makes is in the cache of who reads it."""
    machine = extending.cpu("two-cores", cores=2, l2_nbytes=1 << 20)
    x = jax.ShapeDtypeStruct(shape, np.float32 if fn is jnp.fft.rfft else np.complex64)
    plan = stagejit.jit(fn, options=stagejit.Options(extensions=machine)).plan(x)
    assert [each.kind for each in plan.dispatches] == ["loop"]
    assert plan.dispatches[0].bodies[0].threads == 2
