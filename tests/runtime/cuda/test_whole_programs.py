"""What people write, whole, on the emulated GPU: networks, their gradients, loops and sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.bench.workloads import models, residual_block
from stagejit.runtime.cuda.drivers import using
from tests.randomness import RNG
from tests.runtime.cuda.programs import EMULATED
from tests.runtime.cuda.test_executor import emulated


def normal(*shape: int, scale: float = 1.0) -> Any:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def block(params: Any, x: Any) -> Any:
    return models.transformer_block(x, params, heads=4).sum()


def trained(params: Any, x: Any) -> Any:
    """Steps of gradient descent in a loop."""

    def step(params: Any, _: Any) -> Any:
        loss, slopes = jax.value_and_grad(models.mlp_loss)(params, x)
        return jax.tree.map(lambda p, s: p - 0.01 * s, params, slopes), loss

    return jax.lax.scan(step, params, None, length=5)


def newton(x: Any) -> Any:
    def step(state: Any) -> Any:
        y, _ = state
        new = 0.5 * (y + x / y)
        return new, jnp.max(jnp.abs(new - y))

    return jax.lax.while_loop(lambda state: state[1] > 1e-4, step, (x, jnp.float32(1)))[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "dense block": (
        residual_block.residual_block,
        (normal(1, 64, 6, 5), residual_block.parameters(np.random.default_rng(1))),
    ),
    "transformer block": (
        jax.value_and_grad(block),
        (models.transformer_parameters(normal, 32), normal(1, 8, 32)),
    ),
    "lstm": (models.lstm, (normal(5, 3, 8), normal(8, 16), normal(4, 16), normal(16))),
    "training": (trained, (models.mlp_parameters(normal), normal(16, 8))),
    "newton": (newton, (np.abs(normal(40)) + 1,)),
    "sort": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0)), (normal(40, 70),)),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    function, args = PROGRAMS[name]
    wanted = jax.jit(function)(*args)
    staged = stagejit.jit(function, options=EMULATED)
    for seed in range(3):
        with using(emulated(seed)):
            found = staged(*args)
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(x, y, 2e-4, 2e-4)
