"""Blocks of layers, each of which reads all before it."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.acceptance.running import f32

CHANNELS = ((64, 32), (96, 32), (128, 32), (160, 32), (192, 64))


def dense_block(a: Any, b: Any, weights: Any) -> Any:
    x = a + b
    parts = [x]
    for w in weights[:-1]:
        y = lax.conv(jnp.concatenate(parts, 1), w, (1, 1), "SAME")
        parts.append(jnp.where(y > 0, y, 0.2 * y))
    return lax.conv(jnp.concatenate(parts, 1), weights[-1], (1, 1), "SAME") * 0.2 + x


def weights_of(divisor: int = 1) -> list[Any]:
    return [
        f32(o // divisor, i // divisor, 3, 3, seed=n) / (3 * i**0.5)
        for n, (i, o) in enumerate(CHANNELS)
    ]


def images(*shape: int) -> tuple[Any, Any]:
    return f32(*shape), f32(*shape, seed=1)


def convolve(x: Any, w: Any) -> Any:
    """SAME, 3x3, in float64."""
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], height, width))
    for i, j in itertools.product(range(3), range(3)):
        part = padded[:, :, i : i + height, j : j + width]
        out += np.einsum("bchw,oc->bohw", part, w[:, :, i, j], optimize=True)
    return out


def expected_block(a: Any, b: Any, weights: Any) -> Any:
    x = a.astype(np.float64) + b
    parts = [x]
    for w in weights[:-1]:
        y = convolve(np.concatenate(parts, 1), w.astype(np.float64))
        parts.append(np.where(y > 0, y, 0.2 * y))
    return convolve(np.concatenate(parts, 1), weights[-1].astype(np.float64)) * 0.2 + x
