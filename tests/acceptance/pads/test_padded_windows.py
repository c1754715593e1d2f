"""Acceptance A2: pads in front of windows are folded into them, or why not."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.acceptance.running import f32, kinds, plan_of, reasons, run, totals

NOTHING = (0, 0)


def convolve(x: Any, w: Any) -> Any:
    """VALID, in float64."""
    rows, columns = x.shape[2] - 2, x.shape[3] - 2
    out = np.zeros((x.shape[0], w.shape[0], rows, columns))
    with np.errstate(invalid="ignore"):
        for i, j in itertools.product(range(3), range(3)):
            part = x[:, :, i : i + rows, j : j + columns].astype(np.float64)
            out += np.einsum("bchw,oc->bohw", part, w[:, :, i, j].astype(np.float64))
    return out


@pytest.mark.parametrize("value", [0.0, 2.0, np.nan, -np.inf])
def test_a2_a_pad_before_a_convolution(value: float) -> None:
    width = ((0, 0), (0, 0), (1, 1), (1, 1))

    def fn(x: Any, w: Any) -> Any:
        return lax.conv(jnp.pad(x, width, constant_values=value), w, (1, 1), "VALID")

    x, w = f32(1, 8, 12, 10), f32(8, 8, 3, 3)
    w[0, 0] = 0  # zero times NaN, and zero times infinity, are NaN
    padded = np.pad(x, width, constant_values=value)
    plan = run(fn, [x, w], convolve(padded, w), off=("fold-pads", "fuse-pad"))
    assert totals(plan) == (1, 0, 0, 0)
    assert kinds(plan) == ["conv"]


@pytest.mark.parametrize("value", [0.0, 2.0, np.nan])
def test_a2_off_brings_the_padded_buffer_back(value: float) -> None:
    def fn(x: Any, w: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=value)
        return lax.conv(padded, w, (1, 1), "VALID")

    plan = plan_of(fn, f32(1, 8, 12, 10), f32(8, 8, 3, 3), disable=["fold-pads"])
    assert plan.transient_nbytes == 8 * 14 * 12 * 4
    assert len(plan.dispatches) == 2


A2_WINDOWS: dict[str, Any] = {
    "strides": ((2, 9, 14, 5), (3, 3, 5, 7), {"window_strides": (2, 3)}),
    "holes": ((2, 9, 14, 5), (3, 3, 5, 7), {"rhs_dilation": (2, 3)}),
    "transposed": ((2, 9, 14, 5), (3, 3, 5, 7), {"lhs_dilation": (2, 3)}),
    "crop": ((2, 9, 14, 5), (3, 3, 5, 7), {"padding": ((-1, 0), (0, -2))}),
    "groups": ((2, 9, 14, 6), (3, 3, 2, 9), {"feature_group_count": 3}),
    "depthwise": ((2, 9, 14, 20), (3, 3, 1, 20), {"feature_group_count": 20}),
    "batches": ((4, 9, 14, 6), (3, 3, 6, 8), {"batch_group_count": 2}),
    "pointwise": ((2, 9, 14, 6), (1, 1, 6, 8), {}),
    "line": ((2, 30, 5), (3, 5, 7), {}),
    "volume": ((2, 5, 6, 7, 3), (3, 3, 3, 3, 7), {}),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("window", A2_WINDOWS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_a2_every_window(window: str, channels_last: bool) -> None:
    shape, kernel, options = A2_WINDOWS[window]
    space = "DHW"[-(len(shape) - 2) :]
    numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
    x, w = f32(*shape), f32(*kernel, seed=1)
    width = [NOTHING, (2, 1), *[(1, 3)] * (len(space) - 1), NOTHING]
    if not channels_last:
        numbers = (f"NC{space}", f"OI{space}", f"NC{space}")
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, (-1, -2), (0, 1))
        width = [NOTHING, NOTHING, *width[1:-1]]
    plain = {"window_strides": (1,) * len(space), "padding": [NOTHING] * len(space)} | options
    for value in (-1.5, np.nan):

        def fn(x: Any, w: Any, value: float = value) -> Any:
            padded = jnp.pad(x, width, constant_values=value)
            return lax.conv_general_dilated(padded, w, dimension_numbers=numbers, **plain)

        expected = jax.jit(fn)(x, w)
        assert np.isnan(expected).any() == np.isnan(value)
        assert totals(run(fn, [x, w], expected)) == (1, 0, 0, 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.int32, np.int8, np.uint8])
def test_a2_every_element_type(dtype: Any) -> None:
    def fn(x: Any, w: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (0, 0), (1, 2), (3, 1)), constant_values=3)
        return lax.conv(padded, w, (1, 1), "VALID")

    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 4, (2, 3, 9, 20)), rng.integers(0, 4, (5, 3, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (3, 1)), constant_values=3)
    expected = convolve(padded, w).astype(np.int64).astype(dtype)
    plan = run(fn, [jnp.asarray(x, dtype), jnp.asarray(w, dtype)], expected)
    assert totals(plan) == (1, 0, 0, 0)


def test_a2_producers_and_consumers_are_fused_around_the_border() -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        padded = jnp.pad(x * 2, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-3.0)
        return jax.nn.relu(lax.conv(padded, w, (1, 1), "VALID") + b[:, None, None])

    x, w, b = f32(1, 8, 12, 10), f32(8, 8, 3, 3), f32(8)
    padded = np.pad(x * 2, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-3.0)
    expected = np.maximum(convolve(padded, w) + b[:, None, None], 0)
    assert totals(run(fn, [x, w, b], expected, off=("fold-pads",))) == (1, 0, 0, 0)


def test_a2_gradients_and_batches() -> None:
    """What JAX derives from a bordered window: a transposed one, one of the weights, and both with
    groups of the batch. All meet the same border."""

    def loss(x: Any, w: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (0, 0), (2, 1), (1, 1)), constant_values=2.0)
        return jnp.sum(lax.conv(padded, w, (2, 1), "VALID") ** 2)

    x, w = f32(3, 2, 4, 12, 10), f32(3, 6, 4, 3, 3)
    gradient = jax.grad(loss, argnums=(0, 1))
    for fn, args in ((gradient, [x[0], w[0]]), (jax.vmap(gradient), [x, w])):
        run(fn, args, jax.jit(fn)(*args), off=("fold-pads",))


def a2_pad(x: Any, width: Any = ((0, 0), (0, 0), (1, 1), (1, 1)), value: Any = 2.0) -> Any:
    return jnp.pad(x, width, constant_values=value)


def a2_conv(x: Any, w: Any, padding: Any = "VALID") -> Any:
    return lax.conv(x, w, (1, 1), padding)


def a2_both(padded: Any, w: Any) -> Any:
    return a2_conv(padded, w), padded


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x, w, v: a2_both(a2_pad(x), w), "the pad has other readers"),
        (
            lambda x, w, v: a2_conv(a2_pad(x, ((0, 0), (0, 0), (1, 1), (0, 2))), w, "SAME"),
            "the window has a border of its own, of another value",
        ),
        (
            lambda x, w, v: a2_conv(a2_pad(x, ((1, 0), (0, 0), (1, 1), (0, 2))), w),
            "the pad is not only around the window's axes",
        ),
        (
            lambda x, w, v: a2_conv(lax.pad(x, 2.0, ((0, 0, 0),) * 3 + ((1, 1, 1),)), w),
            "what is between the elements is not zero",
        ),
        (lambda x, w, v: a2_conv(a2_pad(x, value=v), w), "the border is known at run time only"),
    ],
)
def test_a2_what_is_not_folded_says_why(fn: Any, reason: str) -> None:
    args = [f32(1, 8, 12, 10), f32(8, 8, 3, 3), np.float32(3)]
    plan = run(fn, args, jax.jit(fn)(*args))
    assert reason in reasons(plan, "fold-pads", applied=False)


def test_a2_two_windows_of_one_pad_have_its_border_both() -> None:
    def fn(x: Any, w: Any) -> Any:
        padded = a2_pad(x)
        return a2_conv(padded, w), a2_conv(padded, w * 2)

    x, w = f32(1, 8, 12, 10), f32(8, 8, 3, 3)
    once = convolve(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=2.0), w)
    plan = run(fn, [x, w], (once, 2 * once), off=("fold-pads",))
    assert totals(plan) == (2, 0, 0, 0)


def test_a2_a_crop_beside_the_border() -> None:
    def fn(x: Any, w: Any) -> Any:
        return a2_conv(lax.pad(x, 2.0, ((0, 0, 0), (0, 0, 0), (-1, 2, 0), (3, -4, 0))), w)

    x, w = f32(1, 8, 12, 10), f32(8, 8, 3, 3)
    padded = np.pad(x[:, :, 1:, :-4], ((0, 0), (0, 0), (0, 2), (3, 0)), constant_values=2.0)
    assert totals(run(fn, [x, w], convolve(padded, w), off=("fold-pads",))) == (1, 0, 0, 0)
