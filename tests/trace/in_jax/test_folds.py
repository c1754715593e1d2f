"""`lax.reduce` by any function: in parts where it is associative, else element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.trace.translate import graph_of

Body = Callable[[Any, Any], Any]
F, I = np.float32, np.int32  # noqa: E741


def log_sum_exp(a: Any, b: Any) -> Any:
    """Of pairs (m, s), which mean s exp(m)."""
    most = jnp.maximum(a[0], b[0])
    return most, a[1] * jnp.exp(a[0] - most) + b[1] * jnp.exp(b[0] - most)


def moments(a: Any, b: Any) -> Any:
    """Of counts, means and sums of squares around them (Chan, Golub and LeVeque)."""
    count, apart = a[0] + b[0], b[1] - a[1]
    share = b[0] / jnp.where(count > 0, count, 1)
    return count, a[1] + apart * share, a[2] + b[2] + apart * apart * a[0] * share


def affine(a: Any, b: Any) -> Any:
    """x -> s x + t, the first one first: not commutative."""
    return a[0] * b[0], a[1] * b[0] + b[1]


def matrices(a: Any, b: Any) -> Any:
    """Products of 2x2 matrices."""
    return (
        a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3],
    )  # fmt: skip


def arguments(body: Body, shape: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Operands and initial values."""
    r = np.random.default_rng(0)
    x = r.normal(size=shape).astype(F)
    if body is log_sum_exp:
        return [x, np.abs(x) + F(0.1)], [F(-1e30), F(0)]
    if body is moments:
        return [np.ones(shape, F), x, np.zeros(shape, F)], [F(0), F(0), F(0)]
    if body is affine:
        return [r.uniform(-0.9, 0.9, shape).astype(F), x], [F(1), F(0)]
    words = r.integers(-2, 3, (4, *shape)).astype(I)
    return [*words], [I(1), I(0), I(0), I(1)]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((7,), (0,)), ((1031,), (0,)), ((5, 33), (1,)), ((300, 5), (0,)), ((3, 4, 13), (0, 2)),
     ((0, 3), (0,)), ((3, 0), (0,)), ((4, 1), (1,)), ((4, 3), ())],
)  # fmt: skip
@pytest.mark.parametrize("body", [log_sum_exp, moments, affine, matrices])
def test_associative_functions(body: Body, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    xs, inits = arguments(body, shape)

    def program(*xs: Any) -> Any:
        return lax.reduce(tuple(xs), tuple(inits), body, axes)

    assert not stagejit.jit(program).plan(*xs).delegated
    wide = [x.astype(np.float64) if x.dtype == F else x for x in xs]
    starts = [x.astype(np.float64) if x.dtype == F else x for x in inits]
    with jax.enable_x64(True):
        expected = jax.jit(lambda *xs: lax.reduce(xs, tuple(starts), body, axes))(*wide)
    for ours, theirs in zip(stagejit.jit(program)(*xs), expected, strict=True):
        if ours.dtype == I:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def loops(program: Callable[..., Any], *args: Any) -> list[int]:
    return [
        op.attrs["trip"] for op in graph_of(program, *args, delegate=False) if op.kind == "loop"
    ]


@pytest.mark.parametrize("length", [5, 1000])
@pytest.mark.parametrize(
    "body",
    [
        lambda a, b: a + b * b,
        lambda a, b: a - b,
        lambda a, b: a + jnp.where(b > 0, b, 0),
        lambda a, b: jnp.where(jnp.abs(a) > jnp.abs(b), a, b) / 2,
    ],
)
def test_dont_reduce_in_parts_what_is_not_associative(body: Body, length: int) -> None:
    """One element after the other, from the initial value on."""
    x = np.random.default_rng(1).normal(size=length).astype(F)

    def program(x: Any) -> Any:
        return lax.reduce(x, F(3), body, (0,))

    assert loops(program, x) == ([length] if length > 8 else [])
    total: Any = np.float64(3)
    with jax.enable_x64(True):
        for element in x.astype(np.float64):
            total = np.asarray(body(total, element))
    np.testing.assert_allclose(stagejit.jit(program)(x), total, rtol=1e-4)


def test_long_rows_are_reduced_in_parts_side_by_side() -> None:
    x = np.ones(10_000, F)
    program = lambda x: lax.reduce(x, F(0), lambda a, b: a + b + a * b, (0,))  # noqa: E731
    assert loops(program, x) == [99, 9]  # steps of 100 parts, then of 10 parts of those


def test_the_initial_value_counts_once() -> None:
    x = np.full(1000, 0.001, F)
    program = lambda x: lax.reduce(x, F(2), lambda a, b: a + b + a * b, (0,))  # noqa: E731
    np.testing.assert_allclose(stagejit.jit(program)(x), 3 * 1.001**1000 - 1, rtol=1e-4)


def test_dont_translate_functions_that_hold_what_xla_computes() -> None:
    def body(a: Any, b: Any) -> Any:
        return a + lax.rng_uniform(F(0), b, ())

    graph = graph_of(lambda x: lax.reduce(x, F(0), body, (0,)), np.ones(9, F))
    (left,) = [op for op in graph if op.kind == "delegate"]
    assert left.attrs["reason"].startswith("reduce: its body has")
