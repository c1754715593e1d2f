"""Every value of every small type is converted as ml_dtypes does it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import stagejit
from stagejit.trace.math.small_numbers import _BITS, _FLOATS

VERIFYING = stagejit.Options(verify=True)
TARGETS = ("float32", "float16", "bfloat16")


def convert(x: Any, dtype: str) -> np.ndarray[Any, Any]:
    staged = stagejit.jit(lambda x: x.astype(dtype), options=VERIFYING)
    assert not staged.plan(x).delegated
    return np.asarray(staged(x))


@pytest.mark.parametrize("name", _FLOATS)
def test_every_small_float(name: str) -> None:
    every = np.arange(1 << _FLOATS[name].bits, dtype=np.uint8).view(getattr(ml_dtypes, name))
    for target in TARGETS:
        expected = every.astype(np.float32).astype(jnp.dtype(target)).astype(np.float64)
        actual = convert(jnp.asarray(every), target).astype(np.float64)
        np.testing.assert_array_equal(actual, expected)
        finite = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(actual)[finite], np.signbit(expected)[finite])


@pytest.mark.parametrize("name", _BITS)
def test_every_small_integer(name: str) -> None:
    dtype = getattr(ml_dtypes, name)
    info: Any = ml_dtypes.iinfo(dtype)
    every = np.arange(info.min, info.max + 1, dtype=np.int8)
    for target in ("int8", "uint8", "int32", "uint16", "float32", "bfloat16"):
        x = jnp.asarray(every.astype(dtype))
        expected = every.astype(jnp.dtype(target)).astype(np.float64)
        np.testing.assert_array_equal(convert(x, target).astype(np.float64), expected)
    for source in ("int8", "int32", "uint32"):
        numbers = np.arange(-40, 40).astype(source)
        expected = numbers.astype(np.int8).astype(dtype).astype(np.int8)
        np.testing.assert_array_equal(convert(jnp.asarray(numbers), name).astype(np.int8), expected)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", [*_FLOATS, *_BITS])
@pytest.mark.parametrize("target", ["complex64", "complex128"])
def test_complex_numbers_have_them_as_real_parts(name: str, target: str) -> None:
    with jax.enable_x64(target == "complex128"):
        numbers = jnp.asarray(np.array([0, 1, 1.5, -1, 1], np.float32)).astype(name)
        actual = convert(numbers, target)
        assert actual.dtype == target
        np.testing.assert_array_equal(actual, np.asarray(numbers).astype(np.float32))


def test_what_stays_with_xla() -> None:
    def reason(x: Any, dtype: str) -> str:
        (left,) = stagejit.jit(lambda x: x.astype(dtype)).plan(x).delegated
        return left.reason

    x = jnp.arange(4.0)
    assert reason(x, "float8_e5m2") == "convert_element_type: element type float8_e5m2"
    assert reason(x, "int4") == "convert_element_type: element type int4"
    assert reason(x.astype("float8_e5m2"), "int8").endswith("element type float8_e5m2")
    assert reason(x.astype("float8_e8m0fnu"), "float32").endswith("element type float8_e8m0fnu")


def test_weights_of_four_bits() -> None:
    weights = jnp.arange(-8, 8).reshape(4, 4).astype("int4")
    x = jnp.ones((3, 4))
    staged = stagejit.jit(lambda x, w: x @ (w.astype(jnp.float32) * 0.5))
    assert not staged.plan(x, weights).delegated
    expected = np.ones((3, 4)) @ (np.arange(-8, 8).reshape(4, 4) * 0.5)
    np.testing.assert_array_equal(staged(x, weights), expected)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", _BITS)
@pytest.mark.parametrize("fn", [jnp.add, jnp.multiply, jnp.subtract], ids=lambda fn: fn.__name__)
def test_small_integers_wrap_before_they_are_converted(name: str, fn: Any) -> None:
    """XLA computes on them, and does not wrap what it converts to a byte in the same loop."""
    info: Any = ml_dtypes.iinfo(getattr(ml_dtypes, name))
    every = np.arange(info.min, info.max + 1)
    wraps = (np.asarray(fn(every, every[::-1])) - info.min) % len(every) + info.min
    x = jnp.asarray(every).astype(name)
    for target in ("float32", "int32", "bool"):
        staged = stagejit.jit(lambda x, to=target: fn(x, x[::-1]).astype(to), options=VERIFYING)
        np.testing.assert_array_equal(staged(x), wraps.astype(target))
