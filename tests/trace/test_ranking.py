"""Short sorts by integers are native; all others are XLA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.trace.translate import graph_of

RNG = np.random.default_rng(5)


def integers(*shape: int, dtype: str = "int32", high: int = 9) -> Any:
    return RNG.integers(0, high, shape).astype(dtype)


def native(f: Callable[..., Any], *args: Any) -> Any:
    return stagejit.jit(f, options=Options(delegate=False, verify=True))(*args)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (64,), (3, 5), (2, 3, 17)])
def test_sorts(shape: tuple[int, ...], dtype: str) -> None:
    x = integers(*shape, dtype=dtype)
    if dtype.startswith("int"):
        x = x - np.asarray(4, dtype)
    for axis in range(x.ndim):
        np.testing.assert_array_equal(native(lambda x: jnp.sort(x, axis), x), np.sort(x, axis))  # noqa: B023
        order = native(lambda x: jnp.argsort(x, axis), x)  # noqa: B023
        np.testing.assert_array_equal(order, np.argsort(x, axis, kind="stable"))


def test_extremes() -> None:
    info = np.iinfo(np.int32)
    x = np.array([info.max, 0, info.min, -1, info.max, info.min, 1], np.int32)
    np.testing.assert_array_equal(native(jnp.sort, x), np.sort(x))


@pytest.mark.parametrize("keys", [1, 2])
def test_several_keys_and_what_goes_with_them(keys: int) -> None:
    """NaN, signed zeros and bools are moved, not looked at"""
    first, second = integers(4, 20, high=3), integers(4, 20, high=3)
    values = RNG.standard_normal((4, 20)).astype(np.float32)
    values[:, ::3], values[:, ::5] = np.nan, -0.0
    args = first, second, values, values > 0

    def f(*args: Any) -> Any:
        return lax.sort(args, dimension=1, num_keys=keys)

    for ours, expected in zip(native(f, *args), jax.jit(f)(*args), strict=True):
        np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))


def test_gradient_of_solves_in_a_loop() -> None:
    a = (4 * np.eye(4) + RNG.standard_normal((4, 4))).astype(np.float32)
    b = RNG.standard_normal((4, 2)).astype(np.float32)

    def f(a: Any, b: Any) -> Any:
        def step(b: Any, _: Any) -> Any:
            return jsl.lu_solve(jsl.lu_factor(a), b), None

        return jnp.sum(lax.scan(step, b, None, length=3)[0] ** 2)

    ours = native(jax.grad(f, (0, 1)), a, b)
    with jax.enable_x64(True):
        exact = jax.grad(f, (0, 1))(a.astype(np.float64), b.astype(np.float64))
    for x, y in zip(ours, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * float(np.abs(y).max()))


@pytest.mark.parametrize(
    "x",
    [integers(65), integers(8).astype(np.float32), integers(8) > 4, np.zeros((0, 3), np.int32)],
    ids=["long", "floats", "bools", "empty"],
)
def test_dont_rank_others(x: Any) -> None:
    kinds = [op.kind for op in graph_of(lambda x: lax.sort(x, dimension=0), x)]
    assert "delegate" in kinds or not x.size
    np.testing.assert_array_equal(
        stagejit.jit(lambda x: lax.sort(x, dimension=0))(x), np.sort(x, 0)
    )
