"""Memory of earlier calls is full of NaN."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import stagejit


@pytest.fixture(autouse=True)
def dirty_arenas() -> None:
    """Memory of earlier calls is full of NaN."""
    x = jnp.full((64, 64), jnp.nan)
    stagejit.jit(lambda x: jnp.sort(jnp.sin(x), 0) @ jnp.cos(x))(x).block_until_ready()
