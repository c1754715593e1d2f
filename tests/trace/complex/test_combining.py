"""Products, extrema, running results and scatters of complex numbers, next to NumPy."""

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


def numbers(*shape: int) -> Any:
    return RNG.normal(size=(*shape, 2)).astype(np.float32).view(np.complex64)[..., 0]


def ties(*shape: int) -> Any:
    return RNG.integers(-2, 3, (*shape, 2)).astype(np.float32).view(np.complex64)[..., 0]


def check(program: Callable[..., Any], expected: Any, *args: Any) -> None:
    staged = stagejit.jit(program)
    np.testing.assert_allclose(staged(*args), expected, rtol=1e-5, atol=1e-5)
    assert not staged.plan(*args).delegated


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33])
def test_reductions(size: int) -> None:
    z = numbers(3, size)
    check(lambda z: jnp.prod(z, axis=1), np.prod(z.astype(np.complex128), axis=1), z)
    z = ties(size, 4)
    check(lambda z: jnp.max(z, axis=0), np.max(z, axis=0), z)
    check(jnp.min, np.min(z), z)


def test_no_elements() -> None:
    check(lambda z: jnp.prod(z, axis=1), np.ones(3), numbers(3, 0))
    check(lambda z: lax.reduce(z, np.complex64(2j), lax.mul, (1,)), np.full(3, 2j), numbers(3, 0))


@pytest.mark.parametrize("fn", ["mul", "max", "add"])
def test_generic_reductions(fn: str) -> None:
    z, init = ties(4, 6), np.complex64(1 + 1j)
    ufunc = {"mul": np.multiply, "max": np.maximum, "add": np.add}[fn]
    body = {"mul": lax.mul, "max": lax.max, "add": lax.add}[fn]
    check(lambda z: lax.reduce(z, init, body, (1,)), ufunc(init, ufunc.reduce(z, axis=1)), z)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("fn", ["cumsum", "cumprod", "cummax", "cummin"])
def test_running(fn: str, reverse: bool) -> None:
    z = ties(11, 3) if "m" in fn[3:] and fn != "cumsum" else numbers(11, 3)
    ufunc = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
    turned = z[::-1] if reverse else z
    expected = ufunc[fn].accumulate(turned, axis=0)
    function = getattr(lax, fn)
    check(
        lambda z: function(z, axis=0, reverse=reverse), expected[::-1] if reverse else expected, z
    )


def test_running_logarithms_of_sums() -> None:
    z = numbers(3, 9)
    expected = np.cumsum(np.exp(z.astype(np.complex128)), axis=1)
    check(lambda z: jnp.exp(lax.cumlogsumexp(z, axis=1)), expected, z)


@pytest.mark.some(2)
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("fn", ["add", "subtract", "multiply", "max", "min"])
def test_scatters(fn: str, mode: str) -> None:
    """Rows that are met several times, and some out of bounds."""
    x, updates = ties(5, 3), ties(8, 3)
    rows = np.array([1, 4, 1, 0, 4, 1, 2, 7 if mode != "promise_in_bounds" else 3], np.int32)
    ufunc = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply,
             "max": np.maximum, "min": np.minimum}[fn]  # fmt: skip
    expected = x.astype(np.complex128)
    for row, update in zip(rows, updates, strict=True):
        at = min(row, 4) if mode == "clip" else row
        if at < 5:
            expected[at] = ufunc(expected[at], update)
    check(lambda x, i, u: getattr(x.at[i], fn)(u, mode=mode), expected, x, rows, updates)


def test_windows_and_batches_of_scatters() -> None:
    x, rows, updates = ties(4, 6, 2), RNG.integers(0, 6, (4, 9)), ties(4, 9, 2)
    program = jax.vmap(lambda x, i, u: x.at[i].multiply(u))
    expected = x.astype(np.complex128)
    for b in range(4):
        for i, row in enumerate(rows[b]):
            expected[b, row] *= updates[b, i]
    check(program, expected, x, rows.astype(np.int32), updates)
    expected = x.copy()
    expected[1:3, ::2] *= 2j
    check(lambda x: x.at[1:3, ::2].multiply(2j), expected, x)
