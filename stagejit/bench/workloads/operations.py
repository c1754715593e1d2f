"""Single operations and short chains of them, as the rows of the bench run them."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


def gemm_bias_gelu(a: jax.Array, b: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.gelu(a @ b + bias)


def quantized_matmul(a: jax.Array, b: jax.Array, scales: jax.Array) -> jax.Array:
    """Of bytes, summed as integers; a scale for each column."""
    over = (((1,), (0,)), ((), ()))
    product = jax.lax.dot_general(a, b, over, preferred_element_type=jnp.int32)
    return product.astype(jnp.float32) * scales


def conv3x3_nhwc(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, -1)


def layernorm(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    return normalized(x) * gain + bias


def normalized(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def transcendental_chain(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.tanh(x * y + 1) * jnp.exp(-x * x) + jnp.sin(y)


def scaled_add(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * 2 + y


def weight_gradient(x: jax.Array, ct: jax.Array) -> jax.Array:
    weights = jnp.zeros((3, 3, x.shape[-1], ct.shape[-1]), x.dtype)
    (made,) = jax.linear_transpose(lambda w: conv3x3_nhwc(x, w), weights)(ct)
    return cast(jax.Array, made)


def sum_of_squares(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x)


def column_sum(x: jax.Array) -> jax.Array:
    return jnp.sum(x, 0)


def transpose_add(x: jax.Array) -> jax.Array:
    return x.T + x
