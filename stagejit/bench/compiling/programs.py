"""Programs of about 300 equations, of many kinds.

Input: a variant. Output: `PROGRAMS`. Invariant: nothing in them depends on the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.bench.compiling.program import Made, Program, constant, floats


def _sine_chain(variant: int, links: int = 670) -> Made:
    c = constant(variant)

    def f(x: Any) -> Any:
        for _ in range(links):
            x = jnp.sin(x * c)
        return x

    return f, (floats(1000),)


def _elementwise(variant: int) -> Made:
    """Many scalar functions over one shape."""
    c = constant(variant)
    functions = (jnp.tanh, jnp.exp, jax.nn.sigmoid, jnp.abs, jnp.cos, jax.nn.relu, jnp.square)

    def f(x: Any, y: Any) -> Any:
        for i in range(70):
            x, y = functions[i % len(functions)](x * c) + y, x - y * 0.5
        return x, y

    return f, (floats(64, 33), floats(64, 33))


def _mlp(variant: int) -> Made:
    """A training step of five layers with Adam."""
    c = constant(variant)
    sizes = (20, 48, 40, 32, 24, 10)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w, b in weights[:-1]:
            x = jnp.tanh(x @ w + b) * c
        logits = x @ weights[-1][0] + weights[-1][1]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, -1))

    def f(weights: Any, means: Any, squares: Any, step: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x, y)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradient)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradient)
        step = step + 1

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w - 1e-3 * c * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

        return jax.tree.map(moved, weights, means, squares), means, squares, step, value

    weights = [(floats(a, b), np.zeros(b, np.float32)) for a, b in itertools.pairwise(sizes)]
    zeros = jax.tree.map(np.zeros_like, weights)
    step = np.float32(0)
    return f, (weights, zeros, zeros, step, floats(64, 20), np.ones((64, 10), np.float32) / 10)


def _transformer(variant: int) -> Made:
    """The gradient of two transformer blocks."""
    c, heads, width = constant(variant), 4, 32

    def norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5 * c)

    def block(x: Any, w: Any) -> Any:
        q, k, v = jnp.split((norm(x) @ w["qkv"]).reshape(2, 16, heads, -1), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (c / 8)
        mask = jnp.tril(jnp.ones((16, 16), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"] * c) @ w["down"]

    def f(x: Any, layers: Any) -> Any:
        def loss(layers: Any) -> Any:
            y = x
            for w in layers:
                y = block(y, w)
            return jnp.sum(y**2)

        return jax.value_and_grad(loss)(layers)

    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    layers = [{name: floats(*shape) for name, shape in shapes.items()} for _ in range(2)]
    return f, (floats(2, 16, width), layers)


def _three_bodies(variant: int) -> Made:
    """Four steps of a fourth-order Runge-Kutta method, unrolled: bodies that attract each other."""
    c = constant(variant)

    def slope(state: Any) -> Any:
        places, speeds = state
        apart = places[None] - places[:, None]
        distance = jnp.sqrt((apart**2).sum(-1) + 0.01 * c)
        return speeds, (apart / distance[..., None] ** 3).sum(1) * c

    def moved(state: Any, step: float, slopes: Any) -> Any:
        return jax.tree.map(lambda x, k: x + step * k, state, slopes)

    def f(state: Any) -> Any:
        h = 0.01 * c
        for _ in range(4):
            k1 = slope(state)
            k2 = slope(moved(state, h / 2, k1))
            k3 = slope(moved(state, h / 2, k2))
            k4 = slope(moved(state, h, k3))
            total = jax.tree.map(lambda a, b, c, d: a + 2 * b + 2 * c + d, k1, k2, k3, k4)
            state = moved(state, h / 6, total)
        return state

    return f, ((floats(3, 3), floats(3, 3)),)


def _oscillators(variant: int) -> Made:
    """A right-hand side of 30 coupled equations over a vector of parameters."""
    c = constant(variant)

    def f(state: Any, rates: Any) -> Any:
        x = list(state)
        slopes = []
        for i in range(30):
            left, right = x[i - 1], x[(i + 1) % 30]
            force = jnp.sin(left - x[i]) + jnp.sin(right - x[i]) * rates
            slopes.append(force - 0.1 * c * x[i] * (1 + i) + jnp.cos(x[i]) * x[i - 2])
        return jnp.stack(slopes)

    return f, (floats(30, 100), floats(100))


def _lstm(variant: int) -> Made:
    """Twenty unrolled steps."""
    c = constant(variant)

    def f(xs: Any, w: Any, u: Any, b: Any, h: Any, cell: Any) -> Any:
        hidden = []
        for t in range(20):
            i, g, o, k = jnp.split(xs[t] @ w + h @ u + b, 4, -1)
            cell = jax.nn.sigmoid(k + c) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            hidden.append(h)
        return jnp.stack(hidden), cell

    args = (floats(20, 8, 12), floats(12, 64), floats(16, 64), floats(64))
    return f, (*args, floats(8, 16), floats(8, 16))


def _slices(variant: int) -> Made:
    """The sum of 100 slices."""
    c = constant(variant)

    def f(x: Any) -> Any:
        return sum(x[i : i + 40] * (c + i) for i in range(100))

    return f, (floats(200, 12),)


def _norms(variant: int) -> Made:
    """25 normalizations of rows, each added to what it normalizes."""
    c = constant(variant)

    def f(x: Any) -> Any:
        for _ in range(25):
            mean = x.mean(-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(-1, keepdims=True)
            x = (x - mean) / jnp.sqrt(variance + 1e-5) * c + x
        return x

    return f, (floats(32, 64),)


def _selections(variant: int) -> Made:
    """75 choices between two functions of the last choice."""
    c = constant(variant)

    def f(x: Any) -> Any:
        for k in range(75):
            x = jnp.where(x > k * c, x - 1, jnp.maximum(x * c, 0.1 * k))
        return x

    return f, (floats(64),)


def _hashes(variant: int) -> Made:
    """75 rounds of integer arithmetic."""

    def f(x: Any) -> Any:
        for k in range(75):
            x = (x * (2 * variant + k + 3)) ^ (x >> 3)
            x = x + (x & 7)
        return x

    return f, (np.arange(64, dtype=np.int32),)


def _updates(variant: int) -> Made:
    """A field that is updated row by row, physics with boundaries."""
    c = constant(variant)

    def f(u: Any) -> Any:
        for i in range(1, 17):
            force = u[i - 1] - 2 * u[i] + u[i + 1]
            u = u.at[i].set(u[i] + 0.1 * c * force)
            u = u.at[i, 0].set(0.0).at[i, -1].add(c)
        return u

    return f, (floats(20, 30),)


def _alternating(variant: int) -> Made:
    """Single elements, by turns of two kinds."""
    c = constant(variant)

    def f(x: Any) -> Any:
        for i in range(60):
            x = x.at[i].set(jnp.cumsum(x[i] * c)[-1:][0] if i % 2 else x[i + 1] * 2)
        return x

    return f, (floats(62),)


def _scanned(variant: int) -> Made:
    """A scan whose body has all equations."""
    c = constant(variant)

    def body(carry: Any, x: Any) -> Any:
        a, b = carry
        for i in range(32):
            a, b = jnp.tanh(a * c + x) - b, a * 0.5 + jnp.where(b > 0, b, i * 0.01)
        return (a, b), a.sum()

    def f(xs: Any) -> Any:
        return lax.scan(body, (xs[0], xs[1]), xs)

    return f, (floats(20, 17),)


def _branches(variant: int) -> Made:
    """Branches inside branches inside a loop."""
    c = constant(variant)

    def arm(scale: float) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(12):
                x = jnp.sin(x * scale) + x.mean()
            return x

        return run

    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            x = lax.cond(x.sum() > 0, arm(c), arm(0.5 * c), x)
            return lax.switch(i % 4, [arm(c + k) for k in range(4)], x)

        return lax.fori_loop(0, 10, body, x)

    return f, (floats(40),)


def _associative(variant: int) -> Made:
    c = constant(variant)

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1] * c

    def f(a: Any, b: Any) -> Any:
        return lax.associative_scan(combine, (a, b))

    return f, (floats(300, 8), floats(300, 8))


def _associative_gradient(variant: int) -> Made:
    f, args = _associative(variant)

    def loss(a: Any, b: Any) -> Any:
        return sum(jnp.sum(y**2) for y in f(a, b))

    return jax.value_and_grad(loss, (0, 1)), args


def _nested(variant: int) -> Made:
    """Jitted functions that call each other, mapped over two axes."""
    c = constant(variant)

    @jax.jit
    def inner(x: Any, y: Any) -> Any:
        return jnp.where(x > y, jnp.exp(-x * c), y**2) + x.sum()

    @jax.jit
    def middle(x: Any, y: Any) -> Any:
        for i in range(6):
            x = inner(x, y) + inner(y * (c + i), x)
        return x / (1 + jnp.linalg.norm(x))

    def f(xs: Any, ys: Any) -> Any:
        twice = jax.vmap(jax.vmap(middle, (0, None)), (None, 0))
        return twice(xs, ys), jax.vmap(middle)(xs, ys)

    return f, (floats(7, 12), floats(7, 12))


def _random_keys(variant: int) -> Made:
    """Splits and draws."""
    c = constant(variant)

    def f(seed: Any) -> Any:
        key = jax.random.key(seed)
        total = jnp.zeros(50)
        for _ in range(12):
            key, a, b = jax.random.split(key, 3)
            total = total + jax.random.normal(a, (50,)) * c + jax.random.uniform(b, (50,))
        return total

    return f, (np.uint32(3),)


def _convolutions(variant: int) -> Made:
    """The gradient of a small convolutional network with batch normalization."""
    c = constant(variant)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            y = lax.conv_general_dilated(x, w, (1, 1), "SAME")
            y = y - y.mean((0, 2, 3), keepdims=True)
            y = y * lax.rsqrt((y**2).mean((0, 2, 3), keepdims=True) + 1e-5)
            x = jnp.concatenate([x, jax.nn.relu(y * c)], 1)
        return jnp.mean(x**2)

    weights = [floats(4, 3 + 4 * i, 3, 3) for i in range(4)]
    return jax.value_and_grad(loss), (weights, floats(2, 3, 16, 16))


PROGRAMS = (
    Program("sine chain", _sine_chain),
    Program("elementwise", _elementwise),
    Program("MLP with Adam", _mlp),
    Program("transformer gradient", _transformer),
    Program("convolutions gradient", _convolutions),
    Program("three bodies RK4", _three_bodies),
    Program("coupled equations", _oscillators),
    Program("LSTM unrolled", _lstm),
    Program("sum of slices", _slices),
    Program("norms of rows", _norms),
    Program("selections", _selections),
    Program("integer hashes", _hashes),
    Program("updates of rows", _updates),
    Program("alternating updates", _alternating),
    Program("scan body", _scanned),
    Program("branches in a loop", _branches),
    Program("associative scan", _associative),
    Program("associative scan gradient", _associative_gradient),
    Program("nested, mapped", _nested),
    Program("random keys", _random_keys),
)
