"""Programs of any length: what a compiler's steps are asked to do thousands of times.

Input: a number of equations, and a variant that no other compile has. Output: a function with its
arguments. Invariant: each program has about as many equations as it was asked for; variants differ
in constants all over the program, so that no code made for one fits another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.compiling.program import Made, Program, constant, floats


@dataclass(frozen=True)
class LargeProgram:
    """make: the function and its arguments, for a number of equations and a variant.
    in_xla: whether jax.jit compiles it within the memory of a usual machine."""

    name: str
    make: Callable[[int, int], Made]
    in_xla: bool = True

    def of(self, equations: int) -> Program:
        """The program with that many equations."""
        return Program(f"{self.name}, {equations:,}", partial(self.make, equations))


def _chain(equations: int, variant: int) -> Made:
    """Each equation reads the last one."""
    c = constant(variant)

    def f(x: Any) -> Any:
        for _ in range(equations // 2):
            x = jnp.sin(x * c)
        return x

    return f, (floats(1000),)


def _wide(equations: int, variant: int) -> Made:
    """Branches that read one value and know nothing of each other."""
    c = constant(variant)

    def f(x: Any) -> Any:
        return jnp.stack([jnp.sum(jnp.exp(x * (c + k))) for k in range(equations // 3)])

    return f, (floats(64),)


def _tree(equations: int, variant: int) -> Made:
    """Branches that read one value, added up in a tree: one result, and one kernel.

    XLA (jax 0.10.2) takes more than 14 GB to compile 2,000 equations of it."""
    c = constant(variant)

    def f(x: Any) -> Any:
        parts = [jnp.exp(x * (c + k)) - k for k in range(equations // 4)]
        while len(parts) > 1:
            odd = parts[len(parts) & ~1 :]
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
        return parts[0]

    return f, (floats(64),)


def _layers(equations: int, variant: int) -> Made:
    """Products whose rows are centred, each with weights of its own."""
    c = constant(variant)

    def f(x: Any, weights: Any) -> Any:
        for w in weights:
            y = x @ w
            x = jnp.tanh(y - y.mean(-1, keepdims=True) * c)
        return x

    return f, (floats(16, 16), [floats(16, 16) for _ in range(equations // 7)])


def _updates(equations: int, variant: int) -> Made:
    """One buffer that is written box by box, and read in between."""
    c = constant(variant)
    count = equations // 7

    def f(d: Any, x: Any) -> Any:
        total = jnp.float32(0)
        for i in range(count):
            d = d.at[4 * i : 4 * i + 4].set(jnp.exp(x) * (c + i))
            total = total + d[4 * i + 1, 3]
        return d, total

    return f, (floats(4 * count, 16), floats(4, 16))


def _decoding(equations: int, variant: int) -> Made:
    """One buffer that is written row by row, from a row on that a call names."""
    c = constant(variant)
    count = equations // 7

    def f(cache: Any, new: Any, start: Any) -> Any:
        for k in range(count):
            cache = jax.lax.dynamic_update_slice(cache, new[k : k + 1] * c, (start + k, 0))
        return cache

    return f, (floats(4 * count, 16), floats(count, 16), np.int32(3))


def _alternating(equations: int, variant: int) -> Made:
    """One buffer that is summed up, and written by what that gives, in turns."""
    c = constant(variant)

    def f(x: Any) -> Any:
        for k in range(equations // 4):
            x = x.at[7 * k % 64].set(jnp.sum(x) * c)
        return x

    return f, (floats(64),)


def _optimizer(equations: int, variant: int) -> Made:
    """A step of Adam: three results a parameter."""
    c = constant(variant)

    def one(w: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return w - 1e-3 * c * m / (jnp.sqrt(v) + 1e-8), m, v

    def f(parameters: Any) -> Any:
        return [one(*each) for each in parameters]

    return f, ([tuple(floats(8, 16) for _ in range(4)) for _ in range(equations // 12)],)


def _solver(equations: int, variant: int) -> Made:
    """Steps of a fourth-order Runge-Kutta method, unrolled, for a pendulum of many parts."""
    c = constant(variant)

    def slope(state: Any) -> Any:
        place, speed = state
        return speed, jnp.sin(place) * -c - 0.1 * speed + (place.sum() - place) * 0.01

    def moved(state: Any, step: float, slopes: Any) -> Any:
        return jax.tree.map(lambda x, k: x + step * k, state, slopes)

    def f(state: Any) -> Any:
        h = 0.01 * c
        for _ in range(equations // 56):
            k1 = slope(state)
            k2 = slope(moved(state, h / 2, k1))
            k3 = slope(moved(state, h / 2, k2))
            k4 = slope(moved(state, h, k3))
            total = jax.tree.map(lambda a, b, c, d: a + 2 * (b + c) + d, k1, k2, k3, k4)
            state = moved(state, h / 6, total)
        return state

    return f, ((floats(32), floats(32)),)


LARGE_PROGRAMS = (
    LargeProgram("sine chain", _chain),
    LargeProgram("wide", _wide),
    LargeProgram("tree of sums", _tree, in_xla=False),
    LargeProgram("layers", _layers),
    LargeProgram("updates of one buffer", _updates),
    LargeProgram("updates at offsets of a call", _decoding),
    LargeProgram("sums and updates", _alternating),
    LargeProgram("optimizer step", _optimizer),
    LargeProgram("solver steps", _solver),
)
