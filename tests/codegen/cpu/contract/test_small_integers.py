"""Products of integers of few bits, which are summed as floats while these are exact."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit

OPTIONS = stagejit.Options(verify=True, delegate=False)


def product(a: Any, b: Any, dtype: Any = jnp.int32) -> Any:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=dtype)


def convolution(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), ((2, 1), (0, 3)), rhs_dilation=(1, 2), preferred_element_type=jnp.int32
    )


def as_floats(f: Any, *args: Any) -> bool:
    return " sums: as f32" in stagejit.jit(f).explain(*args).as_text(kernels=True)


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.int8, 1024), (np.uint8, 258), (np.int16, 0), (np.uint16, 0)]
)
def test_the_longest_exact_sums(dtype: Any, most: int) -> None:
    """Of the largest products; one more is a sum that no float of 32 bits holds."""
    info = np.iinfo(dtype)
    largest = info.min or info.max
    for steps in (1, max(most, 1), most + 1, 1500):
        a, b = np.full((5, steps), largest, dtype), np.full((steps, 33), largest, dtype)
        a[0] = 1
        assert as_floats(product, a, b) == (steps <= most), steps
        found = stagejit.jit(product, options=OPTIONS)(a, b)
        wanted = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(found, wanted.astype(np.int32))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int16, jnp.uint32])
def test_results_that_keep_the_low_bits_of_a_sum(dtype: Any) -> None:
    r = np.random.default_rng(0)
    a, b = (r.integers(-128, 127, shape, np.int8) for shape in ((17, 300), (300, 40)))
    found = stagejit.jit(product, static_argnums=2, options=OPTIONS)(a, b, dtype)
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(found, wanted.astype(np.dtype(dtype)))
    assert not as_floats(lambda a, b: product(a, b, dtype), a, b)


@pytest.mark.parametrize("seed", range(6))
def test_any_shape(seed: int) -> None:
    r = np.random.default_rng(seed)
    m, k, n = (int(size) for size in r.integers(1, 200, 3))
    a, b = (r.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    f = stagejit.jit(lambda a, b: jnp.maximum(product(a, b), 7) * 3, options=OPTIONS)
    wanted = np.maximum(a.astype(np.int64) @ b.astype(np.int64), 7) * 3
    np.testing.assert_array_equal(f(a, b), wanted.astype(np.int32))


def test_borders_of_a_convolution() -> None:
    r = np.random.default_rng(1)
    x, w = (
        r.integers(-128, 128, (2, 7, 9, 8), np.int8),
        r.integers(-128, 128, (5, 7, 3, 2), np.int8),
    )
    assert as_floats(convolution, x, w)
    found = stagejit.jit(convolution, options=OPTIONS)(x, w)
    wanted = convolution(*(jnp.asarray(side, jnp.int32) for side in (x, w)))
    np.testing.assert_array_equal(found, wanted)
