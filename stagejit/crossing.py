"""Values on their way between XLA and us, where they have different types.

Input: JAX values (arrays, or tracers while JAX lowers a function). Output: the same elements in the
other type. Invariant: `to_jax` undoes `to_physical`; neither computes anything but bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.compat import is_extended, physical_aval, type_of, words_of, wrapped
from stagejit.types import storage_of


def shares_bytes(aval: Any) -> bool:
    """True where XLA's buffer of an abstract value is one of its physical type: only numbers of
    less than a byte, which XLA packs, must be converted."""
    return not jnp.dtype(physical_aval(aval).dtype).name.endswith(("int2", "int4", "e2m1fn"))


def to_physical(value: Any) -> Any:
    """A value of NumPy's dtypes, or ml_dtypes', as `compat.type_of` has it."""
    dtype = value.dtype
    target = storage_of(dtype)
    if not target.dtype.is_native or target.dtype.numpy == dtype:
        return value
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.stack([lax.real(value), lax.imag(value)], axis=-1)
    if jnp.issubdtype(dtype, jnp.integer):
        return _extended(lax.convert_element_type(value, target.dtype.numpy), dtype)
    if dtype == jnp.float4_e2m1fn:
        return lax.convert_element_type(lax.bitcast_convert_type(value, jnp.uint4), np.uint8)
    return lax.bitcast_convert_type(value, target.dtype.numpy)


def _extended(wide: Any, dtype: Any) -> Any:
    """The sign, or zeros, in all bits of a byte that a number of 2 or 4 bits leaves. XLA's
    conversion does not see to that where it is fused with what makes the number (jax 0.10.2: 3 - 15
    of `uint4` is 244 as `uint8`)."""
    info: Any = jnp.iinfo  # without types
    rest = np.asarray(8 - info(dtype).bits, wide.dtype)
    high = lax.shift_left(wide, lax.full_like(wide, rest))
    signed = jnp.issubdtype(dtype, jnp.signedinteger)
    back = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    return back(high, lax.full_like(high, rest))


def to_jax(value: Any, dtype: Any) -> Any:
    """The inverse of `to_physical` for values of `dtype`."""
    if value.dtype == dtype:
        return value
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(value[..., 0], value[..., 1])
    if jnp.issubdtype(dtype, jnp.integer):
        return lax.convert_element_type(value, dtype)
    if dtype == jnp.float4_e2m1fn:
        return lax.bitcast_convert_type(lax.convert_element_type(value, jnp.uint4), dtype)
    return lax.bitcast_convert_type(value, dtype)


def to_user(array: Any, aval: Any) -> Any:
    """A physical array as an operand of one of JAX's equations, keys and float0 included."""
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, jax.dtypes.float0)
    if is_extended(aval):
        return wrapped(jnp.asarray(array), aval)
    return array if storage_of(aval.dtype).dtype.numpy == aval.dtype else to_jax(array, aval.dtype)


def from_user(value: Any, aval: Any) -> Any:
    """The inverse of `to_user`, as a NumPy array."""
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(type_of(aval).shape, np.bool_)
    return np.asarray(words_of(value) if is_extended(aval) else to_physical(value))
