"""BlackJAX: NUTS and HMC on a correlated normal.

Input: nothing. Output: `PROGRAMS`. Invariant: chains are short enough that the rounding of two
compilers does not send them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _logdensity(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2 / jnp.array([1.0, 2.0, 0.5, 3.0])) - 0.1 * x[0] * x[1]


def _chain(algorithm: Any, steps: int) -> Made:
    def run(key: Any, start: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            state, _ = algorithm.step(key, state)
            return state, state.position

        return jax.lax.scan(one, algorithm.init(start), jax.random.split(key, steps))[1]

    return run, (jax.random.key(3), jnp.ones(4))


def nuts() -> Made:
    import blackjax

    return _chain(blackjax.nuts(_logdensity, 0.3, jnp.ones(4)), 50)


def hmc() -> Made:
    import blackjax

    return _chain(blackjax.hmc(_logdensity, 0.2, jnp.ones(4), num_integration_steps=8), 200)


PROGRAMS = (
    LibraryProgram("blackjax NUTS", ("blackjax",), nuts, 1e-2),
    LibraryProgram("blackjax HMC", ("blackjax",), hmc, 1e-2),
)
