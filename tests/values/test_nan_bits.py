"""A constant NaN keeps its sign and its payload, wherever it is written from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit

# An element type, its bits as integers, and NaN: usual, negative, with a payload, signalling.
NANS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "float16": (np.uint16, (0x7E00, 0xFE00, 0x7E01, 0xFD23)),
    "bfloat16": (np.uint16, (0x7FC0, 0xFFC0, 0x7FC1, 0xFF81)),
    "float32": (np.uint32, (0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7F800001)),
    "float64": (np.uint64, (0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 9, (0x7FF << 52) + 1)),
}
CASES = [(dtype, bits) for dtype, (_, every) in NANS.items() for bits in every]

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "chosen": lambda p, c: jnp.where(p, c, 0),
    "padded": lambda p, c: jnp.pad(jnp.where(p, c, 0), 1, constant_values=c)[1:-1],
    "updated": lambda p, c: jnp.zeros(p.shape, c.dtype).at[1:].set(c),
    "filled": lambda p, c: jnp.full(p.shape, c),
    "by bits": lambda p, c: lax.bitcast_convert_type(
        lax.bitcast_convert_type(jnp.where(p, c, 0), NANS[c.dtype.name][0]), c.dtype
    ),
    "in a loop": lambda p, c: lax.fori_loop(
        0, p.size, lambda k, s: s.at[k].set(jnp.where(p[k], c, s[k])), jnp.zeros(p.shape, c.dtype)
    ),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("dtype", "bits"), CASES, ids=str)
def test_bits_of_a_constant_nan(dtype: str, bits: int, name: str) -> None:
    word = NANS[dtype][0]
    constant = np.array(bits, word).view(jnp.dtype(dtype))
    p = np.arange(37) % 3 != 0
    with jax.enable_x64(True):
        made = stagejit.jit(lambda p: PROGRAMS[name](p, constant))(p)
    np.testing.assert_array_equal(np.asarray(made).view(word)[p], word(bits))
