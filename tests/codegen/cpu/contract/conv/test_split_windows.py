"""Convolutions whose sums are split: strides, dilations, uneven last parts, gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.options import Options


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]], int]:
    """A convolution or the gradient of its weights, its operands, and how many parts."""
    rank = draw(st.integers(1, 2))
    taps = [draw(st.integers(1, 7)) for _ in range(rank)]
    strides = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank)]
    sizes = [draw(st.integers(step * (tap - 1) + 1, 40))
             for tap, step in zip(taps, dilation, strict=True)]  # fmt: skip
    batch, channels, features = (draw(st.sampled_from((1, 2, 5))) for _ in range(3))
    last = draw(st.booleans())
    spec = ("NHWC"[: rank + 1] + "C", "HWIO"[:rank] + "IO", "NHWC"[: rank + 1] + "C")
    if not last:
        spec = ("NC" + "HW"[:rank], "OI" + "HW"[:rank], "NC" + "HW"[:rank])
    lhs = [batch, *sizes, channels] if last else [batch, channels, *sizes]
    rhs = [*taps, channels, features] if last else [features, channels, *taps]
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def convolved(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=spec
        )

    def gradient(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: (convolved(x, w) ** 2).sum())(w)

    args = [numbers.integers(-4, 5, shape).astype(np.float32) for shape in (lhs, rhs)]
    return draw(st.sampled_from((convolved, gradient))), args, draw(st.integers(2, 9))


@given(convolutions())
def test_values(made: tuple[Any, list[np.ndarray[Any, Any]], int]) -> None:
    fn, args, parts = made
    options = Options(verify=True, split={"conv": parts})
    np.testing.assert_array_equal(stagejit.jit(fn, options=options)(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_each_part_has_taps_of_its_own(stride: int, parts: int) -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, [stride], "VALID")

    x, w = jnp.arange(200.0).reshape(1, 2, 100), jnp.arange(14.0).reshape(1, 2, 7)
    options = Options(split={"conv": parts})
    np.testing.assert_array_equal(stagejit.jit(fn, options=options)(x, w), jax.jit(fn)(x, w))
