"""Pooling, and its gradients, written in plain lax as libraries of layers write it.

Input: images (n, y, x, c), or (n, c, y, x) where `channels_last` is False, in f32. Output: the
pooled images, or the gradient of the sum of their squares.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

Pool = Callable[[jax.Array], jax.Array]


def max_pool(size: int, stride: int, padding: str = "VALID", *, channels_last: bool = True) -> Pool:
    """The largest of size x size pixels, every `stride` pixels."""
    window, strides = _axes(size, channels_last), _axes(stride, channels_last)
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def average_pool(
    size: int, stride: int, padding: str = "VALID", *, channels_last: bool = True
) -> Pool:
    """The mean of size x size pixels, those outside of the image counting as zero."""
    window, strides = _axes(size, channels_last), _axes(stride, channels_last)

    def pool(x: jax.Array) -> jax.Array:
        total: jax.Array = lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
        return total / size**2

    return pool


def gradient(pool: Pool) -> Pool:
    """Of the sum of squares of what is pooled."""
    return jax.grad(lambda x: (pool(x) ** 2).sum())


def _axes(number: int, channels_last: bool) -> tuple[int, ...]:
    return (1, number, number, 1) if channels_last else (1, 1, number, number)


# name, program, whether channels come last, what it is
ROWS: tuple[tuple[str, Pool, bool, str], ...] = (
    ("maxpool_2x2_nhwc", max_pool(2, 2), True, "2x2 pixels"),
    ("maxpool_2x2_nchw", max_pool(2, 2, channels_last=False), False, "2x2 pixels, channels first"),
    ("maxpool_3x3s2_nhwc", max_pool(3, 2, "SAME"), True, "3x3 pixels, every second"),
    (
        "maxpool_3x3s2_nchw",
        max_pool(3, 2, "SAME", channels_last=False),
        False,
        "3x3 pixels, every second, channels first",
    ),
    ("maxpool_3x3s1_nhwc", max_pool(3, 1, "SAME"), True, "3x3 pixels around each"),
    (
        "avgpool_5x5s3_nchw",
        average_pool(5, 3, "SAME", channels_last=False),
        False,
        "mean of 5x5 pixels, every third, channels first",
    ),
    ("avgpool_2x2_nhwc", average_pool(2, 2), True, "mean of 2x2 pixels"),
    ("avgpool_3x3s1_nhwc", average_pool(3, 1, "SAME"), True, "mean of 3x3 pixels around each"),
    ("maxpool_grad_2x2_nhwc", gradient(max_pool(2, 2)), True, "its gradient, no pixel in two"),
    ("maxpool_grad_3x3s2_nhwc", gradient(max_pool(3, 2, "SAME")), True, "the same where some are"),
    ("avgpool_grad_2x2_nhwc", gradient(average_pool(2, 2)), True, "gradient of a mean"),
)
