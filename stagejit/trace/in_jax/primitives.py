"""Which function computes which primitive.

Input: a primitive's name. Output: a JAX function of its operands and parameters. Invariant: they
have the results that XLA gives, or more exact ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagejit.trace.in_jax.bessel import bessel_i1e
from stagejit.trace.in_jax.folds import reduce
from stagejit.trace.in_jax.generators import rng_bit_generator
from stagejit.trace.in_jax.zeta import polygamma, zeta
from stagejit.trace.windows.primitives import FUNCTIONS as ON_WINDOWS

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ON_WINDOWS,
    "bessel_i1e": bessel_i1e,
    "polygamma": polygamma,
    "reduce": reduce,
    "rng_bit_generator": rng_bit_generator,
    "zeta": zeta,
}
