"""Kernels that write over what they read: every kind of dispatch that may, with and without
tails, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.trace.translate import graph_of
from tests.randomness import RNG


def normalized(x: Any, axis: int) -> Any:
    mean = x.mean(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(axis, keepdims=True) + 1e-5)


def masked(x: Any) -> Any:
    return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 0) % 2 == 0, x, -x)


# What is done to the product `h` of two matrices, which is a transient; then it is multiplied.
STEPS: dict[str, Callable[[Any], Any]] = {
    "rows softmax": lambda h: jax.nn.softmax(h, 1),
    "columns softmax": lambda h: jax.nn.softmax(h, 0),
    "rows norm": lambda h: normalized(h, 1),
    "columns norm": lambda h: normalized(h, 0),
    "all": lambda h: h / jnp.sqrt((h * h).sum()),
    "less its maximum": lambda h: masked(h) - h.max(1, keepdims=True),
}


def around(step: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda x, w, v: step(x @ w) @ v


def check(f: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> None:
    jitted = stagejit.jit(f, options=Options(verify=True), donate_argnums=donate)
    plan = jitted.plan(*args)
    assert any(b.over or b.result is not None for b in plan.buffers), plan
    wanted = interpret(graph_of(f, *args), jax.tree.leaves(args), precision="f64")
    got = jax.tree.leaves(jitted(*jax.tree.map(jnp.array, args)))
    for ours, exact in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=2e-4, atol=2e-4)


@pytest.mark.some(2)
@pytest.mark.parametrize("shape", [(5, 7), (33, 130), (64, 256), (2, 2049), (300, 17)])
@pytest.mark.parametrize("name", STEPS)
def test_reductions_over_rows(name: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, w, v = (
        (RNG.standard_normal(s) / 8).astype(np.float32)
        for s in ((rows, 24), (24, columns), (columns, 3))
    )
    check(around(STEPS[name]), x, w, v)


@pytest.mark.some(2)
@pytest.mark.parametrize("rows", [1, 6, 33, 150])
@pytest.mark.parametrize("columns", [3, 16, 70, 129])
def test_epilogues_of_products(rows: int, columns: int) -> None:
    """A residual stream: each sum takes the place of the one before."""

    def f(x: Any, w: Any, u: Any) -> Any:
        h = jnp.tanh(x @ w)
        h = h + jnp.exp(h @ u) @ w
        return h * (1 + jnp.tanh(h @ u) @ w)

    x, w, u = (
        (RNG.standard_normal(s) / 8).astype(np.float32)
        for s in ((rows, 40), (40, columns), (columns, 40))
    )
    check(f, x, w, u)


def test_products_in_several_blocks() -> None:
    """The sums of a long product are added up in scratch, not where the operand still lies."""
    x, w, u = (
        (RNG.standard_normal(s) / 60).astype(np.float32)
        for s in ((40, 5000), (5000, 50), (50, 5000))
    )
    check(lambda x, w, u: (h := jnp.tanh(x @ w)) + jnp.tanh(h @ u) @ w, x, w, u)


@pytest.mark.parametrize("size", [4, 9, 21])
def test_epilogues_of_convolutions(size: int) -> None:
    def f(x: Any, w: Any) -> Any:
        h = x
        for _ in range(3):
            h = jax.nn.relu(lax.conv_general_dilated(h, w, (1, 1), "SAME")) + h * 0.5
        return h

    x = RNG.standard_normal((2, 8, size, size)).astype(np.float32)
    w = (RNG.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
    jitted = stagejit.jit(f, options=Options(verify=True))
    wanted = interpret(graph_of(f, x, w), [x, w], precision="f64")
    np.testing.assert_allclose(jitted(x, w), wanted[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int32])
def test_elementwise(dtype: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        h = x @ w
        parts = jnp.split(h * 2, 2, axis=0)
        return jnp.concatenate([parts[1], parts[0]], 0) @ w

    x = RNG.integers(-3, 4, (34, 16)).astype(dtype)
    w = RNG.integers(-1, 2, (16, 16)).astype(dtype)
    jitted = stagejit.jit(f, options=Options(verify=True, disable=("fuse-epilogues",)))
    wanted = interpret(graph_of(f, x, w), [x, w], precision="f64")
    got = np.asarray(jitted(x, w)).astype(np.float64)
    np.testing.assert_allclose(got, np.asarray(wanted[0], np.float64), rtol=0.02)


DONATED: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, w: jax.nn.softmax(x, 1),
    "softmax of columns": lambda x, w: jax.nn.softmax(x, 0),
    "norm": lambda x, w: normalized(x, 1),
    "residual": lambda x, w: x + jnp.tanh(w) @ w,
    "two results": lambda x, w: (x + w @ w, (x + w @ w) * x),
    "sum and rows": lambda x, w: (x - x.sum(1, keepdims=True), x.sum(1)),
}


@pytest.mark.parametrize("size", [8, 50, 257])
@pytest.mark.parametrize("name", DONATED)
def test_donated_arguments(name: str, size: int) -> None:
    x, w = ((RNG.standard_normal((size, size)) / size).astype(np.float32) for _ in range(2))
    check(DONATED[name], x, w, donate=(0,))


def test_where_something_is_placed_is_read_by_every_item() -> None:
    """The dispatch that places a part of `i` at `i[0]` makes the next `i`, too."""

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        buffer, i = carry
        return (lax.dynamic_update_slice(buffer, i + 3, (i[0],)), (i * 5 + 1) % 97), None

    def f(buffer: Any, i: Any) -> Any:
        return lax.scan(step, (buffer, i), None, length=5)[0]

    arrays = np.arange(400, dtype=np.int32), np.arange(5, 75, dtype=np.int32)
    wanted, at = (array.copy() for array in arrays)
    for _ in range(5):
        wanted[at[0] : at[0] + 70] = at + 3
        at = (at * 5 + 1) % 97
    got = stagejit.jit(f, options=Options(verify=True))(*arrays)
    np.testing.assert_array_equal(got[0], wanted)
    np.testing.assert_array_equal(got[1], at)
