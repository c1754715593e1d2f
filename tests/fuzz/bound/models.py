"""Random small models, whose parameters `stagejit.bind` is given.

Input: a generator of random numbers. Output: a `Model`, which computes with JAX or, in float64,
with NumPy. Invariant: values for other parameters are others, by about as much as they are large.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Layer = Callable[[ModuleType, Any, Array], Array]


def _dense(xp: ModuleType, p: Any, x: Array) -> Array:
    return xp.tanh(x @ p["w"] + p["b"])


def _made(xp: ModuleType, p: Any, x: Array) -> Array:
    return x @ (p["w"] * xp.exp(p["b"] / 8))


def _transposed(xp: ModuleType, p: Any, x: Array) -> Array:
    return x @ p["t"].T - p["b"]


def _parts(xp: ModuleType, p: Any, x: Array) -> Array:
    at = p["w"].shape[1] // 3
    return xp.concatenate([x @ p["w"][:, :at], xp.tanh(x @ p["w"][:, at:])], 1)


def _overlapping(xp: ModuleType, p: Any, x: Array) -> Array:
    n = p["w"].shape[1]
    return xp.concatenate([x @ p["w"][:, : 2 * n // 3], x @ p["w"][:, n // 2 :]], 1)[:, :n]


def _tied(xp: ModuleType, p: Any, x: Array) -> Array:
    rows = xp.asarray(np.arange(x.shape[0]) % p["t"].shape[0])
    return (x + p["t"][rows]) @ p["t"].T


def _normalized(xp: ModuleType, p: Any, x: Array) -> Array:
    y = x @ p["w"]
    return (y - y.mean(1, keepdims=True)) / (1 + y.std(1, keepdims=True)) * p["b"]


def _looped(xp: ModuleType, p: Any, x: Array) -> Array:
    def turn(_: Any, y: Array) -> Array:
        return xp.tanh(y @ p["square"]) + y / 2

    return lax.fori_loop(0, 3, turn, x) if xp is jnp else turn(0, turn(1, turn(2, x)))


def _stacked(xp: ModuleType, p: Any, x: Array) -> Array:
    if xp is jnp:
        return lax.scan(lambda y, w: (xp.tanh(y @ w), None), x, p["squares"])[0]
    for w in p["squares"]:
        x = np.tanh(x @ w)
    return x


def _called(xp: ModuleType, p: Any, x: Array) -> Array:
    y = x @ p["w"]
    return (_given_back(y) if xp is jnp else y) * p["b"] + y


@jax.custom_jvp
def _given_back(y: Array) -> Array:
    """By XLA: what is before and behind it reads weights of one moment."""
    return jax.pure_callback(_slowly, y, y, vmap_method="sequential")


def _slowly(y: Array) -> Array:
    """So that others can update the weights meanwhile."""
    time.sleep(3e-3)
    return np.asarray(y)


_given_back.defjvp(lambda primals, tangents: (_given_back(*primals), *tangents))

# With the parameters that each reads.
LAYERS: dict[str, tuple[Layer, str]] = {
    "dense": (_dense, "w b"),
    "made": (_made, "w b"),
    "transposed": (_transposed, "t b"),
    "parts": (_parts, "w"),
    "overlapping": (_overlapping, "w"),
    "tied": (_tied, "t"),
    "normalized": (_normalized, "w b"),
    "looped": (_looped, "square"),
    "stacked": (_stacked, "squares"),
    "called": (_called, "w b"),
}
_SIZES = (16, 33, 64, 96)


@dataclass(frozen=True)
class Model:
    """Layers by name; sizes: of what goes into each, and of what comes out in the end."""

    layers: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def random(cls, rng: Random) -> Model:
        layers = tuple(rng.choices(list(LAYERS), k=rng.randint(1, 3)))
        sizes = [rng.choice(_SIZES)]
        for name in layers:
            sizes.append(sizes[-1] if name in ("looped", "stacked") else rng.choice(_SIZES))
        return cls(layers, tuple(sizes))

    def parameters(self, seed: int) -> list[dict[str, Array]]:
        """In f32, as JAX has them."""
        rng, made = np.random.default_rng(seed), list[dict[str, Array]]()
        for name, n, m in zip(self.layers, self.sizes, self.sizes[1:], strict=False):
            shapes = {"w": (n, m), "b": (m,), "t": (m, n), "square": (n, n), "squares": (2, n, n)}
            wide = {key: rng.normal(size=shapes[key]) for key in LAYERS[name][1].split()}
            scales = {key: 1.0 if key == "b" else n**-0.5 for key in wide}
            made.append({key: jnp.asarray(wide[key] * scales[key], jnp.float32) for key in wide})
        return made

    def __call__(self, params: Any, x: Array) -> Array:
        return self._of(jnp, params, x)

    def in_float64(self, params: Any, x: Array) -> np.ndarray[Any, Any]:
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, x))
        return np.asarray(self._of(np, *wide))

    def _of(self, xp: ModuleType, params: Any, x: Array) -> Array:
        for name, p in zip(self.layers, params, strict=True):
            x = LAYERS[name][0](xp, p, x)
        return x
