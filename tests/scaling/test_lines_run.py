"""Each value, body and buffer is looked at once: lines that run are counted, not seconds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import stagejit
from stagejit.pipeline import STEPS, Compilation
from tests.expected.calls import lines_of
from tests.scaling.families import (
    LONG,
    MOST_GROWTH,
    SHORT,
    Program,
    array,
    calls_after,
    calls_to_compile,
    calls_to_run,
    layers,
    requested,
    states_that_are_read,
)


def carries(n: int) -> Program:
    def body(_: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(jnp.sin(x) for x in values)

    return lambda *values: lax.fori_loop(0, 5, body, values), tuple(array(8) for _ in range(n)), ()


def operands_of_branches(n: int) -> Program:
    def f(p: Any, *values: Any) -> Any:
        return lax.cond(p, lambda *xs: tuple(jnp.sin(x) for x in xs), lambda *xs: xs, *values)

    return f, (jax.ShapeDtypeStruct((), jnp.bool_), *(array(8) for _ in range(n))), ()


def updates_that_are_read(n: int) -> Program:
    """Each stored apart, behind all that follows, which had been formed before."""

    def f(x: Any, i: Any) -> Any:
        for _ in range(n):
            x = lax.dynamic_update_slice(x, 2.0 * lax.dynamic_slice(x, (i,), (8,)), (i + 8,))
        return x

    return f, (array(64), jax.ShapeDtypeStruct((), jnp.int32)), ()


def mapped_layers(n: int) -> Program:
    f, (x, *weights), _ = layers(n)
    return lambda x, *w: lax.map(lambda row: f(row, *w), x), (array(9, *x.shape), *weights), ()


def lines_to_run(program: Program, first: str, last: str, *, verify: bool) -> int:
    """In the steps from one to another."""
    names = [step.name for step in STEPS]
    compilation = Compilation(requested(program, verify=verify))
    compilation.run_until(names[names.index(first) - 1])
    return lines_of(lambda: compilation.run_until(last))


def test_what_is_stored_apart_is_ordered_without_telling_all_behind_it() -> None:
    short, long = (
        lines_to_run(updates_that_are_read(n), "form", "form", verify=False) for n in (100, 400)
    )
    assert long / short < 4 * MOST_GROWTH, (long, short)


@pytest.mark.parametrize("family", [carries, operands_of_branches])
def test_what_is_carried_is_looked_at_once_each(family: Callable[[int], Program]) -> None:
    lines_to_run(family(4), "form", "form", verify=False)
    short, long = (lines_to_run(family(n), "form", "form", verify=False) for n in (SHORT, LONG))
    assert long / short < LONG / SHORT * MOST_GROWTH


def test_what_iterations_share_is_looked_at_once_each() -> None:
    lines_to_run(mapped_layers(4), "schedule", "schedule", verify=True)
    short, long = (
        lines_to_run(mapped_layers(n), "schedule", "schedule", verify=True) for n in (50, 200)
    )
    assert long / short < 4 * MOST_GROWTH, (long, short)


def test_versions_of_one_buffer_are_scheduled_once_each() -> None:
    short, long = (calls_after("resolve", states_that_are_read(n), "schedule") for n in (40, 120))
    assert long / short < 3 * MOST_GROWTH, (long, short)


def nest(n: int) -> Program:
    def f(x: Any) -> Any:
        return jnp.sin(x)

    for _ in range(n):
        f = functools.partial(lambda inner, x: lax.fori_loop(0, 3, lambda i, c: inner(c), x), f)
    return f, (array(8, 8),), ()


def test_each_body_of_a_nest_is_scheduled_as_often() -> None:
    calls_to_run(Compilation(requested(nest(2), verify=False)), "schedule")
    short, long = (calls_after("place", nest(n), "schedule") for n in (6, 24))
    assert long / short < 4 * MOST_GROWTH, (long, short)


def nested_branches(n: int) -> Program:
    def f(p: Any, x: Any) -> Any:
        return jnp.sin(x)

    def around(inner: Callable[..., Any], i: int, p: Any, x: Any) -> Any:
        return lax.cond(p[i], functools.partial(inner, p), lambda x: x * 2, x + float(i))

    for i in range(n):
        f = functools.partial(around, f, i)
    return f, (jax.ShapeDtypeStruct((n,), jnp.bool_), array(8, 8)), ()


@pytest.mark.parametrize("family", [nest, nested_branches])
def test_each_body_of_a_nest_is_rewritten_as_often(family: Callable[[int], Program]) -> None:
    short, long = (calls_after("trace", family(n), "rewrite") for n in (6, 24))
    assert long / short < 4 * MOST_GROWTH, (long, short)


@pytest.mark.parametrize("kept_nbytes", [0, 16, 64, None])
def test_weights_are_given_up_one_by_one_without_looking_at_all(kept_nbytes: int | None) -> None:
    """kept_nbytes: of 128 of each weight."""

    def calls(n: int) -> int:
        weights = [jnp.ones((8, 4)) * float(i) for i in range(n)]
        bound = stagejit.bind(
            lambda weights, x: [x @ jnp.exp(w).T for w in weights],
            weights,
            budget_ms=1e9,
            budget_nbytes=None if kept_nbytes is None else kept_nbytes * n,
            options=stagejit.Options(cache_dir=""),
        )
        traced = bound.trace(jnp.ones((2, 4)))
        compilation = Compilation(traced.compilation.request).run_until("rewrite")
        return calls_to_run(compilation, "evaluate")

    short, long = calls(SHORT), calls(LONG)
    assert long / short < LONG / SHORT * MOST_GROWTH, (long, short)


def scan_gradient(n: int) -> Program:
    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    def f(a: Any, b: Any) -> Any:
        return sum(jnp.sum(y**2) for y in lax.associative_scan(combine, (a, b)))

    return jax.grad(f, (0, 1)), (array(n), array(n)), ()


def test_trees_of_halves_grow_with_their_levels() -> None:
    calls_to_compile(scan_gradient(16))
    short, long = (calls_to_compile(scan_gradient(n)) for n in (32, 256))
    assert long / short < (8 / 5) ** 2  # levels, each of which may have to know of all others
