"""Convolutions on a GPU: the values of NumPy in f64, under emulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.cuda.machine import run
from tests.randomness import RNG

Array = Any


def some(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def check(function: Callable[..., Any], *args: Array, rough: float = 3e-6) -> None:
    """Against the same in f64, of which NumPy makes sums of products tap by tap."""
    found = run(function, *args, resources=True)
    with jax.enable_x64(True):
        wanted = jax.tree.leaves(function(*(np.asarray(arg, np.float64) for arg in args)))
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=rough, atol=rough * 20)


def reference(image: Array, taps: Array, strides: Any, padding: Any, lhs: Any, rhs: Any) -> Array:
    """NCHW, OIHW: a sum over taps of strided slices."""
    n, c, *sizes = image.shape
    spread = np.zeros((n, c, *((s - 1) * d + 1 for s, d in zip(sizes, lhs, strict=True))))
    spread[..., :: lhs[0], :: lhs[1]] = image
    padded = np.pad(spread, ((0, 0), (0, 0), *padding))
    reach = [(t - 1) * d + 1 for t, d in zip(taps.shape[2:], rhs, strict=True)]
    counts = [max(0, (s - r) // step + 1)
              for s, r, step in zip(padded.shape[2:], reach, strides, strict=True)]  # fmt: skip
    out = np.zeros((n, taps.shape[0], *counts))
    for y, x in itertools.product(*map(range, taps.shape[2:])):
        part = padded[:, :, y * rhs[0] :: strides[0], x * rhs[1] :: strides[1]]
        part = part[:, :, : counts[0], : counts[1]]
        out += np.einsum("nchw,oc->nohw", part, taps[:, :, y, x].astype(np.float64))
    return out


GEOMETRIES = [
    ((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    ((2, 1), ((0, 1), (1, 0)), (1, 1), (1, 1)),
    ((2, 3), ((1, 2), (2, 1)), (1, 1), (2, 1)),
    ((1, 1), ((2, 2), (3, 1)), (1, 1), (1, 2)),
    ((1, 1), ((1, 1), (2, 2)), (2, 2), (1, 1)),
    ((2, 1), ((1, 2), (0, 1)), (3, 2), (1, 2)),
    ((1, 1), ((-1, 3), (2, -1)), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometries(geometry: Any) -> None:
    strides, padding, lhs, rhs = geometry
    image, taps = some(2, 5, 9, 11), some(7, 5, 3, 2)

    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(image, taps, strides, padding, lhs, rhs)

    cut = image[:, :, max(-padding[0][0], 0) :, : 11 + min(padding[1][1], 0)]
    inside = [(max(a, 0), max(b, 0)) for a, b in padding]
    (found,) = run(conv, image, taps, resources=True)
    np.testing.assert_allclose(
        found, reference(cut, taps, strides, inside, lhs, rhs), rtol=3e-6, atol=3e-5
    )


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"),
                                    ("CHWN", "IHWO", "CHWN")])  # fmt: skip
def test_layouts(layout: Any) -> None:
    sizes = {"N": 2, "C": 6, "H": 8, "W": 9}
    taps = {"O": 10, "I": 6, "H": 3, "W": 3}

    def conv(image: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(image, kernel, (1, 2), "SAME", dimension_numbers=layout)

    check(conv, some(*(sizes[d] for d in layout[0])), some(*(taps[d] for d in layout[1])))


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_groups(groups: int) -> None:
    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(image, taps, (1, 1), "SAME", feature_group_count=groups)

    check(conv, some(2, 6, 7, 8), some(12, 6 // groups, 3, 3))


def test_groups_of_batches() -> None:
    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(image, taps, (1, 1), "SAME", batch_group_count=2)

    check(conv, some(4, 3, 7, 8), some(6, 3, 3, 3))


def test_one_and_three_dimensions() -> None:
    def conv(image: Array, taps: Array) -> Array:
        return lax.conv_general_dilated(image, taps, (2,) * (image.ndim - 2), "SAME")

    check(conv, some(3, 4, 19), some(5, 4, 4))
    check(conv, some(1, 2, 5, 6, 7), some(3, 2, 2, 3, 2))


def plain(image: Array, taps: Array) -> Array:
    return lax.conv_general_dilated(image, taps, (2, 1), ((1, 1), (1, 2)))


def test_gradients() -> None:
    image, taps = some(2, 3, 8, 9), some(4, 3, 3, 3)
    out = some(*plain(image, taps).shape)

    def of_image(taps: Array, out: Array) -> Array:
        at = jnp.zeros(image.shape, out.dtype)
        return jax.vjp(lambda x: plain(x, taps), at)[1](out)

    def of_taps(image: Array, out: Array) -> Array:
        at = jnp.zeros(taps.shape, out.dtype)
        return jax.vjp(lambda t: plain(image, t), at)[1](out)

    check(of_image, taps, out)
    check(of_taps, image, out, rough=1e-5)


def test_what_stands_around() -> None:
    image, taps, bias = some(2, 3, 8, 9), some(6, 3, 3, 3), some(6, 1, 1)
    check(lambda x, t, b: jnp.maximum(plain(x * 2 + 1, t) + b, 0), image, taps, bias)
    check(lambda x, t: plain(x, t).transpose(0, 2, 3, 1) * 2, image, taps)
    check(lambda x, t: jnp.pad(plain(x, t), ((0, 0), (0, 0), (1, 1), (1, 0))), image, taps)
    check(lambda x, t: ((y := plain(x, t)), y > 0), image, taps)


def test_patches_and_points() -> None:
    check(lambda x, t: lax.conv_general_dilated(x, t, (4, 4), "VALID"), some(2, 3, 16, 12),
          some(5, 3, 4, 4))  # fmt: skip
    check(lambda x, t: lax.conv_general_dilated(x, t, (1, 1), "VALID"), some(2, 9, 5, 7),
          some(11, 9, 1, 1))  # fmt: skip


def test_halves() -> None:
    image, taps = (some(*s).astype(jnp.bfloat16) for s in ((2, 8, 9, 9), (16, 8, 3, 3)))
    check(plain, image, taps, rough=2.0**-7)
