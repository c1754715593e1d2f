"""The residual dense block (RDB) of ESRGAN, in JAX and in NumPy float64.

Input: features `(N, 64, H, W)` and five pairs (weight OIHW, bias). Output: features of the same
shape. Source: Wang et al., "ESRGAN: Enhanced Super-Resolution Generative Adversarial Networks",
2018, figure 4. Invariant: `residual_block` and `reference` compute the same function; the second
shares no code with JAX, so that it can judge both compilers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

FEATURES, GROWTH = 64, 32
SHAPES = ((64, GROWTH), (96, GROWTH), (128, GROWTH), (160, GROWTH), (192, FEATURES))
SLOPE, RESIDUAL_SCALE = 0.2, 0.2

Array = NDArray[Any]
Parameters = list[tuple[Array, Array]]


def parameters(rng: np.random.Generator) -> Parameters:
    """Random weights (scale 0.05) and biases: `(out, in, 3, 3)` and `(out,)` in f32."""

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    return [(normal(o, i, 3, 3) * np.float32(0.05), normal(o)) for i, o in SHAPES]


def leaky_relu(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, SLOPE * x)


def conv3x3(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """SAME 3x3 convolution, NCHW by OIHW, plus a bias for each channel."""
    y = jax.lax.conv_general_dilated(
        x, weight, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return y + bias[None, :, None, None]


def residual_block(x: jax.Array, params: Any) -> jax.Array:
    """Five convolutions, each fed the concatenation of all before; `x5 * 0.2 + x`."""
    x1 = leaky_relu(conv3x3(x, *params[0]))
    x2 = leaky_relu(conv3x3(jnp.concatenate((x, x1), 1), *params[1]))
    x3 = leaky_relu(conv3x3(jnp.concatenate((x, x1, x2), 1), *params[2]))
    x4 = leaky_relu(conv3x3(jnp.concatenate((x, x1, x2, x3), 1), *params[3]))
    x5 = conv3x3(jnp.concatenate((x, x1, x2, x3, x4), 1), *params[4])
    return x5 * RESIDUAL_SCALE + x


def reference_conv3x3(x: Array, weight: Array, bias: Array) -> Array:
    """`conv3x3` in NumPy float64: nine shifted matrix products."""
    height, width = x.shape[2:]
    bordered = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.broadcast_to(
        bias.astype(np.float64)[None, :, None, None], (x.shape[0], len(bias), *x.shape[2:])
    )
    for dy, dx in np.ndindex(3, 3):
        window = bordered[:, :, dy : dy + height, dx : dx + width]
        products = np.tensordot(weight[:, :, dy, dx].astype(np.float64), window, axes=(1, 1))
        y = y + products.swapaxes(0, 1)
    return y


def reference(x: Array, params: Parameters) -> Array:
    """`residual_block` in NumPy float64."""
    stack = x.astype(np.float64)
    for weight, bias in params[:-1]:
        y = reference_conv3x3(stack, weight, bias)
        stack = np.concatenate((stack, np.where(y > 0, y, SLOPE * y)), 1)
    return reference_conv3x3(stack, *params[-1]) * RESIDUAL_SCALE + x.astype(np.float64)
