"""Slices of repeated arrays, in every kind of kernel: the repeat is read where the array lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import Options

X = np.random.default_rng(0).standard_normal((3, 26)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 13, 5)).astype(np.float32)


def every_other(x: Any) -> Any:
    """Memory is at 26 i + 2 j + 1, as in one loop over both; the repeated array is not."""
    return jnp.tile(x, (1, 3))[:, 27:52:2]


def product(x: Any) -> Any:
    return jnp.tensordot(every_other(x), W, 2)


def sums(x: Any) -> Any:
    return (every_other(x) * W[..., 0]).sum(), (every_other(x) * W[..., 0]).sum(1)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(every_other(x), (0, 1))


def scattered(x: Any) -> Any:
    return jnp.zeros((7, 3, 13)).at[x.argmax() % 7].add(every_other(x))


def running(x: Any) -> Any:
    return jnp.cumsum(every_other(x), 0), jnp.cumsum(every_other(x), 1)


def two_periods(x: Any) -> Any:
    return jnp.tile(x, (2, 3))[1:5, 26:52] * 2, jnp.tile(x, (3, 2))[::3, 1:52:2] + 1


def gradient_of_a_transposed_convolution_with_circular_padding(x: Any) -> Any:
    """As flax's ConvTranspose: the odd taps meet rows 1, 3, ..., 25 of the repeated gradient."""
    dims = lax.conv_dimension_numbers((3, 13, 4), (3, 27, 4), ("CWN", "IWO", "WNC"))
    taps = jnp.tile(jnp.stack([x, -x, x + 1, x * 2], -1), (1, 3, 1))[:, 26:53]
    return lax.conv_general_dilated(W[..., :4], taps, (1,), ((2, 2),), (2,), None, dims)


CASES = [
    every_other,
    product,
    sums,
    softmax,
    scattered,
    running,
    two_periods,
    gradient_of_a_transposed_convolution_with_circular_padding,
]


@pytest.mark.some(2)
@pytest.mark.parametrize("f", CASES)
def test_values(f: Callable[..., Any]) -> None:
    made = stagejit.jit(f, options=Options(verify=True))(X)
    for actual, expected in zip(
        jax.tree.leaves(made), jax.tree.leaves(f(jnp.asarray(X))), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
