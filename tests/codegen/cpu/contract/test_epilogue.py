"""Sums that are stored along another axis than that of their lanes: squares of them, what is left
over, and what else is evaluated and stored with them."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from tests.acceptance.running import f32

ENDS = {
    "alone": lambda y, x: y.T,
    "scaled": lambda y, x: (y * x[0, 0] + y.shape[0]).T,
    "of several": lambda y, x: (y.T, y * 2),
    "long": lambda y, x: jax.nn.gelu(y).T,
    "with rows": lambda y, x: jnp.tanh(y.T + jnp.arange(y.shape[0], dtype=y.dtype)),
    "with columns": lambda y, x: (y + jnp.arange(y.shape[1], dtype=y.dtype)).T,
    "narrow": lambda y, x: y.T.astype(jnp.bfloat16),
    "placed": lambda y, x: jnp.pad(y.T, ((1, 2), (3, 1))),
    "in parts": lambda y, x: y.reshape(y.shape[0], -1, y.shape[1]).transpose(2, 0, 1),
}


@pytest.mark.native
@pytest.mark.some(8)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", ENDS)
def test_sums_that_are_stored_across_their_lanes(name: str, seed: int) -> None:
    random = Random(f"{name} {seed}")
    m, n = (random.choice((1, 7, 15, 16, 17, 33, 64, 100)) for _ in range(2))
    k = random.choice((1, 5, 64, 700))
    lhs = f32(*random.choice(((m, k), (k, m))), seed=1)
    turned = lhs.shape != (m, k)
    rhs = f32(k, n, seed=2)

    def f(a: Any, b: Any) -> Any:
        y = (a.T if turned else a) @ b
        return ENDS[name](y, b)

    found = stagejit.jit(f, options=Options(verify=True))(lhs, rhs)
    wanted = jax.jit(f)(lhs, rhs)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        ours, theirs = (np.asarray(each, np.float64) for each in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=2e-2 if name == "narrow" else 2e-4, atol=2e-3)
