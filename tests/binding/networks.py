"""A small network with its parameters, and how values are compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.runtime.bound import evaluation_counts


def array(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def layers(seed: int = 0) -> dict[str, Any]:
    made = {"w": array(8, 16, seed=seed), "b": array(16, seed=seed + 1), "k": np.float32(seed + 2)}
    return jax.tree.map(jnp.asarray, {**made, "v": array(4, 16, seed=seed + 3)})


def network(params: dict[str, Any], x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return params["k"] * (hidden @ (2.0 * params["v"]).T)


X = jnp.asarray(array(3, 8, seed=9))


def assert_close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, wanted)


def made() -> int:
    return evaluation_counts()["evaluated"]
