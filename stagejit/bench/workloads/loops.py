"""Loops of small bodies: those whose iterations do not depend on each other, and those that hand on
a few numbers.

Input: JAX arrays. Output: `lax.map` over rows, `lax.scan` over samples. Invariant: no library is
called.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from stagejit.bench.programs import Arguments, Function
from stagejit.bench.workloads.inputs import Normal

_STEPS = 16


def attention_rows(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each block of queries against all keys, one block after the other."""

    def rows(block: jax.Array) -> jax.Array:
        return jax.nn.softmax(block @ k.T * k.shape[1] ** -0.5, -1) @ v

    made: jax.Array = lax.map(rows, q)
    return made


def solved_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Conjugate gradients, a few steps for each of many systems."""

    def solved(system: tuple[jax.Array, jax.Array]) -> jax.Array:
        factor, right = system
        matrix = factor @ factor.T / len(factor) + jnp.eye(len(factor), dtype=factor.dtype)

        def step(
            _: int, state: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            x, rest, along = state
            image, before = matrix @ along, rest @ rest
            by = before / (along @ image)
            after = rest - by * image
            return x + by * along, after, after + (after @ after) / before * along

        found: jax.Array = lax.fori_loop(0, _STEPS, step, (right * 0, right, right))[0]
        return found

    made: jax.Array = lax.map(solved, (a, b))
    return made


def filtered(x: jax.Array) -> jax.Array:
    """A filter of second order, sample by sample."""

    def step(
        state: tuple[jax.Array, jax.Array], sample: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        last, before = state
        value = sample + 1.2 * last - 0.5 * before
        return (value, last), value

    zero = jnp.zeros((), x.dtype)
    made: jax.Array = lax.scan(step, (zero, zero), x)[1]
    return made


def tracked(positions: jax.Array) -> jax.Array:
    """A Kalman filter of a position and its speed."""
    moves = jnp.array([[1.0, 0.1], [0.0, 1.0]], positions.dtype)
    looks = jnp.array([[1.0, 0.0]], positions.dtype)

    def step(
        state: tuple[jax.Array, jax.Array], seen: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        mean, spread = state
        mean, spread = moves @ mean, moves @ spread @ moves.T + 0.01 * jnp.eye(2, dtype=seen.dtype)
        gain = spread @ looks.T / (looks @ spread @ looks.T + 0.1)
        mean = mean + gain @ (seen - looks @ mean)
        return (mean, spread - gain @ looks @ spread), mean

    first = jnp.zeros(2, positions.dtype), jnp.eye(2, dtype=positions.dtype)
    made: jax.Array = lax.scan(step, first, positions)[1]
    return made


# Name, function, arguments, summary.
ROWS: tuple[tuple[str, Function, Callable[[Normal], Arguments], str], ...] = (
    (
        "map_attention_64x64x2048",
        attention_rows,
        lambda r: (r(64, 64, 64), r(2048, 64), r(2048, 64)),
        "lax.map over 64 blocks of queries",
    ),
    (
        "map_solver_64x128",
        solved_rows,
        lambda r: (r(64, 128, 128), r(64, 128)),
        "lax.map of 16 steps of conjugate gradients",
    ),
    ("filter_48000", filtered, lambda r: (r(48000),), "lax.scan of a filter of second order"),
    ("kalman_2x2000", tracked, lambda r: (r(2000, 1),), "lax.scan of a Kalman filter of 2 numbers"),
)
