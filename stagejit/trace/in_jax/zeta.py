"""The Hurwitz zeta function, and the derivatives of the digamma function.

Input: floats. Output: zeta(x, q), the sum of (q + k)^-x over k >= 0; polygamma(m, x). Invariant:
16-bit floats are computed in f32; what is no number, and poles, are as in XLA.

The sum is taken by Euler and Maclaurin's formula, as in Cephes (zeta.c). It holds for q > 0. Else x
has to be an integer, and a sum over all integers k, which is the same for q + 1, gives

    zeta(x, q) = zeta(x, f) + (-1)^x (zeta(x, g) - zeta(x, 1 - q)), f = q - floor(q), g = 1 - f.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

_TERMS = 10  # summed as they are
# Bernoulli numbers 2, 4, ... over factorials of their order.
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip


def zeta(x: Any, q: Any) -> Any:
    """zeta(x, q); NaN below x = 1 and where a term is no number, infinite at poles."""
    dtype = x.dtype
    if dtype.itemsize < 4:
        x, q = x.astype(np.float32), q.astype(np.float32)
    x, q = jnp.broadcast_arrays(x, q)
    made = lax.cond(jnp.any(q <= 0), _anywhere, _sum, x, q)
    made = jnp.where(x < 1, np.nan, made)
    return jnp.where(x == 1, np.inf, made).astype(dtype)


def polygamma(m: Any, x: Any) -> Any:
    """The derivative number m of digamma; NaN where m is no natural number."""
    dtype = x.dtype
    if dtype.itemsize < 4:
        m, x = m.astype(np.float32), x.astype(np.float32)
    m, x = jnp.broadcast_arrays(m, x)
    size = lax.exp(lax.lgamma(m + 1)) * zeta(m + 1, x)
    made = jnp.where(m == 0, lax.digamma(x), jnp.where(_is_even(m), -size, size))
    wrong = (m < 0) | (m != lax.floor(m))
    return jnp.where(wrong, np.nan, made).astype(dtype)


def _anywhere(x: Any, q: Any) -> Any:
    up, down, is_below = lax.ceil(q), lax.floor(q), q <= 0
    sign = jnp.where(_is_even(x), 1, -1).astype(x.dtype)
    whole = _sum(x, jnp.where(is_below, q - down, q))
    below = whole + sign * (_sum(x, up - q) - _sum(x, 1 - q))
    at_pole = jnp.where(_is_even(x), np.inf, np.nan)
    below = jnp.where(q == down, at_pole, below)
    below = jnp.where(x == lax.floor(x), below, np.nan)
    return jnp.where(is_below, below, whole)


def _is_even(x: Any) -> Any:
    half = x * 0.5
    return half == lax.floor(half)


def _sum(x: Any, q: Any) -> Any:
    """For q > 0."""
    total = term = lax.pow(q, -x)
    for _ in range(_TERMS):
        q = q + 1
        term = lax.pow(q, -x)
        total = total + term
    # The integral from q on, less half a term, and corrections.
    rest = term * (q / (x - 1) - 0.5)
    step, series = 1 / (q * q), lax.full_like(x, 0)
    for number in reversed(range(len(_BERNOULLI))):
        order = 2 * (number + 1)
        series = series + _BERNOULLI[number] / math.factorial(order)
        if number:
            series = series * ((x + (order - 3)) * (x + (order - 2)) * step)
    made = total + (rest + term * x / q * series)
    return jnp.where(lax.abs(term) <= lax.abs(total) * np.finfo(x.dtype).eps, total, made)
