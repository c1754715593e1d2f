"""Programs that are tiled for a small machine, and compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.base.machine import Machine
from tests.randomness import RNG

# Small arrays are large on it.
SMALL = Machine(cores=1, l2_nbytes=1 << 14, l3_nbytes=72 << 10, bandwidth=1e8, core_bandwidth=1e8)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = jnp.einsum("...td,...sd->...ts", q, k) / 3
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("...ts,...sd->...td", jax.nn.softmax(scores, -1), v)
