"""Short sorts by integers, as comparisons of all pairs.

Input: an equation of JAX's sort primitive. Output: a closed jaxpr with its meaning, without a sort;
None where an element would be compared with too many others, or where a key is no integer.
Invariant: the order is the stable one, which is right whether or not the equation asks for it.

The inverse of a permutation is such a sort: the gradient of a linear solve has one, which would
hold back the loop around it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.compat import ClosedJaxpr, type_of

LONGEST = 64  # n**2 comparisons of 16 lanes against n log n steps of a sort


def implementation(equation: Any) -> ClosedJaxpr | None:
    """What a short sort by integers gives."""
    if equation.primitive is not lax.sort_p:
        return None
    avals, params = [variable.aval for variable in equation.invars], dict(equation.params)
    dimension, keys = params.pop("dimension"), params.pop("num_keys")
    if params.keys() - {"is_stable"} or not all(type_of(aval).dtype.is_native for aval in avals):
        return None
    if any(aval.dtype.kind not in "iu" for aval in avals[:keys]):
        return None
    shape = avals[0].shape
    if not all(isinstance(size, int) and size for size in shape) or shape[dimension] > LONGEST:
        return None
    return jax.make_jaxpr(functools.partial(_sorted, dimension=dimension, keys=keys))(*avals)


def _sorted(*operands: Any, dimension: int, keys: int) -> list[Any]:
    """The operands in the order of the first `keys` of them, along one dimension."""
    moved = [jnp.moveaxis(x, dimension, -1) for x in operands]
    pairs = (*moved[0].shape, moved[0].shape[-1])
    row = lax.broadcasted_iota(np.int32, pairs, len(pairs) - 2)
    column = lax.broadcasted_iota(np.int32, pairs, len(pairs) - 1)
    before, equal = jnp.zeros(pairs, bool), jnp.ones(pairs, bool)
    for key in moved[:keys]:  # element `column` comes before element `row`
        other, own = key[..., None, :], key[..., :, None]
        before |= equal & (other < own)
        equal &= other == own
    before |= equal & (column < row)
    rank = jnp.sum(before, -1, dtype=np.int32)
    order = jnp.sum(jnp.where(rank[..., None, :] == row, column, 0), -1, dtype=np.int32)
    return [
        jnp.moveaxis(jnp.take_along_axis(x, order, -1, mode="promise_in_bounds"), -1, dimension)
        for x in moved
    ]
