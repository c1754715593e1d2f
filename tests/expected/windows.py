"""Windows drawn at random, and what reductions over them mean: loops over NumPy's float64."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

JAX: dict[str, Any] = {"add": lax.add, "mul": lax.mul, "max": lax.max, "min": lax.min}
NUMPY: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Config:
    """The arguments of `lax.reduce_window` after the function."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    holes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.sizes, self.strides, self.padding, self.holes, self.steps

    def counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        counts = []
        for axis, extent in enumerate(shape):
            padded = max((extent - 1) * self.holes[axis] + 1, 0) if extent else 0
            room = padded + sum(self.padding[axis]) - (self.sizes[axis] - 1) * self.steps[axis] - 1
            counts.append(room // self.strides[axis] + 1 if room >= 0 else 0)
        return tuple(counts)

    def elements(self, shape: tuple[int, ...], window: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The elements of one window, in row-major order."""
        return [at for _, at in self._taps(shape, window)]

    def taps_inside(self, shape: tuple[int, ...], window: tuple[int, ...]) -> list[int]:
        """The numbers of the taps that those are."""
        return [tap for tap, _ in self._taps(shape, window)]

    def _taps(
        self, shape: tuple[int, ...], window: tuple[int, ...]
    ) -> list[tuple[int, tuple[int, ...]]]:
        found = []
        for number, tap in enumerate(itertools.product(*map(range, self.sizes))):
            at = [
                o * stride + k * step - low
                for o, k, stride, step, (low, _) in zip(
                    window, tap, self.strides, self.steps, self.padding, strict=True
                )
            ]
            inside = all(
                position % hole == 0 and 0 <= position // hole < extent
                for position, hole, extent in zip(at, self.holes, shape, strict=True)
            )
            if inside:
                place = tuple(p // hole for p, hole in zip(at, self.holes, strict=True))
                found.append((number, place))
        return found


def reduced(x: Any, init: Any, fn: Callable[..., Any], config: Config) -> Any:
    """`lax.reduce_window` by its definition; floats in float64."""
    wide = x.astype(np.float64) if jnp.issubdtype(x.dtype, np.floating) else x
    counts = config.counts(x.shape)
    result = np.full(counts, init, wide.dtype)
    for window in itertools.product(*map(range, counts)):
        for at in config.elements(x.shape, window):
            result[window] = fn(result[window], wide[at])
    return result


def scattered(x: Any, source: Any, keeps: Callable[[Any, Any], bool], config: Config) -> Any:
    """The gradient of a pooling: each window gives its source to the element that it selects."""
    result = np.zeros(x.shape, np.float64)
    for window in np.ndindex(source.shape):
        best = None
        for at in config.elements(x.shape, window):
            if best is None or not keeps(x[best], x[at]):
                best = at
        if best is not None:
            result[best] += np.float64(source[window])
    return result


def drawn(rng: random.Random, *, large: bool = False) -> tuple[tuple[int, ...], Config]:
    """A shape, and windows over it; there may be none."""
    rank = rng.randint(1, 2 if large else 4)
    most, size = (120 // rank**2, 90 // rank**2) if large else (7, 4)
    shape = [rng.randint(1, most) for _ in range(rank)]
    if rng.random() < 0.05:
        shape[rng.randrange(rank)] = 0
    sizes = tuple(rng.randint(1, size) for _ in range(rank))
    pads = [(rng.randint(-2, 4), rng.randint(-2, 4)) for _ in range(rank)]
    if large:
        pads = [(size // 2, size // 2 + 1) for size in sizes]
    return tuple(shape), Config(
        sizes,
        tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank)),
        tuple(pad if rng.random() < 0.5 else (0, 0) for pad in pads),
        tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)),
        tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)),
    )


def elements(rng: random.Random, shape: tuple[int, ...], dtype: Any, *, special: bool) -> Any:
    """Numbers of a type, some of them special."""
    size = math.prod(shape)
    x = np.array([rng.randint(0, 4) for _ in range(size)], np.float64)
    if jnp.issubdtype(dtype, np.floating):
        x = np.array([rng.gauss(0, 1) for _ in range(size)], np.float64)
        for value in (np.nan, -np.inf, np.inf, -0.0) if special and size else ():
            x[rng.randrange(size)] = value
    return x.reshape(shape).astype(dtype)


def neutral(fn: str, dtype: Any) -> Any:
    """The identity of a function in a type."""
    if fn in ("add", "mul"):
        return np.asarray(int(fn == "mul"), dtype)[()]
    if dtype == np.bool_:
        return np.bool_(fn == "min")
    if jnp.issubdtype(dtype, np.floating):
        return np.asarray(-np.inf if fn == "max" else np.inf, dtype)[()]
    info = np.iinfo(dtype)
    return np.asarray(info.min if fn == "max" else info.max, dtype)[()]
