"""Programs whose loops and branches only the device knows, with arguments for each way they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

X = np.random.default_rng(5).standard_normal((12, 12)).astype(np.float32) / 4


def halved(x: Any) -> Any:
    return lax.while_loop(lambda c: (c[0] ** 2).sum() > 1, lambda c: (c[0] * 0.7, c[1] + 1), (x, 0))


def turned(x: Any) -> Any:
    """Carries that change places."""

    def body(c: Any) -> Any:
        return c[1] * 0.5, c[0] @ c[1] + 1, c[2] + 1

    return lax.while_loop(lambda c: c[2] < 5, body, (x, x.T, jnp.int32(x[0, 0] > 0)))


def chosen(x: Any) -> Any:
    number = jnp.int32(x[0, 0])
    return lax.switch(number, [lambda v: v * 2, jnp.sin, lambda v: v @ v, lambda v: v], x)


def inside_of_each_other(x: Any) -> Any:
    """A branch in a loop in a loop, beside a chain on another stream."""
    side = x
    for _ in range(3):
        side = jnp.tanh(side @ x)

    def step(c: Any) -> Any:
        return lax.cond(c.sum() > 3, lambda v: v * 0.5, lambda v: v * 0.8, c) * 0.9

    def outer(c: Any) -> Any:
        value, turn = c
        value = lax.while_loop(lambda v: (v**2).sum() > 0.5 * turn, step, value)
        value = lax.fori_loop(0, 3, lambda i, v: v + jnp.sin(v) * i, value)
        return value, turn + 1

    found, turns = lax.while_loop(lambda c: c[1] < 4, outer, (x, 1))
    return found, turns, side


def two_chains(x: Any) -> Any:
    """A turn has two streams of its own."""

    def body(c: Any) -> Any:
        a, b, turn = c
        for _ in range(2):
            a, b = jnp.tanh(a @ x / 4), jnp.sin(b @ x.T / 4)
        return a + b.T, b - a.T, turn + 1

    return lax.while_loop(lambda c: c[2] < jnp.int32(x[0, 0]), body, (x, x.T, 0))


def looped_beside(x: Any) -> Any:
    """Two loops that do not wait for each other, each with a branch."""

    def one(c: Any) -> Any:
        return lax.cond(c[0, 1] > 0, lambda v: v * 0.5, lambda v: v * 0.25, c)

    def until(c: Any) -> Any:
        return (c**2).sum() > 0.1

    return lax.while_loop(until, one, x), lax.while_loop(until, lambda c: one(c) * 0.9, x.T)


def _at(value: float) -> np.ndarray:
    made = X.copy()
    made[0, 0] = value
    return made


DECIDED: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "halved": (halved, [X * 3, X * 0]),
    "turned": (turned, [_at(1), _at(-1)]),
    "chosen": (chosen, [_at(value) for value in (-7, 0, 1, 2, 3, 9)]),
    "inside of each other": (inside_of_each_other, [X, X * 5, X * 0]),
    "two chains": (two_chains, [_at(0), _at(1), _at(4)]),
    "looped beside": (looped_beside, [X, X * 4, X * 0]),
}


def exact(function: Callable[..., Any], x: np.ndarray) -> list[np.ndarray]:
    """In float64."""
    with jax.enable_x64(True):
        wide = jnp.asarray(x, np.float64)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(function(wide))]


def is_close(found: Any, wanted: list[np.ndarray]) -> bool:
    pairs = zip(jax.tree.leaves(found), wanted, strict=True)
    return all(np.allclose(np.asarray(a, b.dtype), b, 1e-4, 1e-4) for a, b in pairs)
