"""Results that are probabilities, whatever the rounding of their series.

Input: the functions by which JAX lowers primitives. Output: the same, within [0, 1]; what is no
number stays none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

# Each is 1 less a series, or a product of large and small numbers, somewhere.
PROBABILITIES = frozenset({"igamma", "igammac", "regularized_incomplete_beta"})


def within_bounds(function: Callable[..., Any]) -> Callable[..., Any]:
    """f  -->  clamp(0, f, 1)"""

    def bounded(*args: Any, **params: Any) -> Any:
        made = function(*args, **params)
        return jax.tree.map(lambda y: lax.clamp(y.dtype.type(0), y, y.dtype.type(1)), made)

    return bounded
