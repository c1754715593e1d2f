"""Weights are no constants, whatever JAX folds of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def model(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"]) * p["v"] + p["v"].sum()


def weights(number: int) -> Any:
    return {"w": jnp.full((4, 5), number / 8), "v": jnp.arange(5.0) + number}


@contextlib.contextmanager
def folding_everywhere() -> Iterator[None]:
    jax.config.update("eager_constant_folding", True)
    try:
        yield
    finally:
        jax.config.update("eager_constant_folding", False)


CONTEXTS = {"evaluation": jax.ensure_compile_time_eval, "setting": folding_everywhere}
USES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "call": lambda f: f,
    "jit": jax.jit,
    "gradient": lambda f: jax.grad(lambda x: f(x).sum()),
    "jit of a gradient": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "vmap": lambda f: lambda x: jax.vmap(lambda row: f(row[None])[0])(x),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c)[:, :4], None), x, length=2)[0],
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("context", CONTEXTS)
def test_updates_are_seen(context: str, name: str) -> None:
    kept = [weights(number) for number in range(4)]
    bound = stagejit.bind(model, kept[0])
    use = USES[name]
    mine = use(bound)
    with CONTEXTS[context]():
        for params in kept:
            bound.update(params)
            wanted = use(lambda x, params=params: model(params, x))(X)
            np.testing.assert_allclose(mine(X), wanted, rtol=2e-5, atol=2e-5)
    bound.update(kept[1])
    np.testing.assert_allclose(mine(X), use(lambda x: model(kept[1], x))(X), rtol=2e-5, atol=2e-5)
