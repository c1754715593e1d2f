"""Compiling a program twice as long takes about twice the work: function calls are counted, not
seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.scaling.families import (
    LONG,
    MOST_GROWTH,
    SHORT,
    Program,
    array,
    calls_after,
    calls_to_compile,
    layers,
    states_that_are_read,
)


def updates(n: int) -> Program:
    def f(d: Any, x: Any) -> Any:
        total = 0.0
        for i in range(n):
            d = d.at[4 * i : 4 * i + 4].set(jnp.exp(x) * float(i + 1))
            total = total + d[4 * i + 1, 3]
        return d, total

    return f, (array(4 * n, 16), array(4, 16)), (0,)


def concatenation(n: int) -> Program:
    def f(*xs: Any) -> Any:
        return jnp.concatenate([x * 2 for x in xs], 1)

    return f, tuple(array(4, 16) for _ in range(n)), ()


def stacked_sums(n: int) -> Program:
    return (
        lambda x: jnp.stack([jnp.sum(x * float(i + 1)) for i in range(n)]),
        (array(4, 16),),
        (),
    )


def pads(n: int) -> Program:
    def f(x: Any) -> Any:
        for i in range(n):
            x = jnp.pad(x, 1, constant_values=float(i % 3))
        return x

    return f, (array(4, 4),), ()


def products(n: int) -> Program:
    def f(x: Any, *weights: Any) -> Any:
        return [x @ weight for weight in weights]

    return f, (array(16, 16), *(array(16, 16) for _ in range(n))), ()


def gradient_of_tied_layers(n: int) -> Program:
    """The gradient of the weight is a sum of products, one for each layer."""

    def f(x: Any, weight: Any) -> Any:
        for _ in range(n):
            x = jnp.tanh(x @ weight)
        return x.sum()

    return jax.grad(f, 1), (array(16, 16), array(16, 16)), ()


def dense_layers(n: int) -> Program:
    def f(x: Any, *weights: Any) -> Any:
        for weight in weights:
            y = lax.conv_general_dilated(x, weight, (1, 1), "SAME")
            x = jnp.concatenate([x, jnp.maximum(y, 0)], 1)
        return x

    layers = max(1, n // 4)
    weights = (array(4, 4 + 4 * i, 3, 3) for i in range(layers))
    return f, (array(1, 4, 8, 8), *weights), ()


def optimizer_steps(n: int) -> Program:
    def f(*values: Any) -> Any:
        return [jnp.tanh(x) - 0.5 * x for x in values]

    return f, tuple(array(8, 16) for _ in range(n)), tuple(range(n))


def results_beyond_the_operand_limit(n: int) -> Program:
    def f(x: Any) -> Any:
        return [jnp.exp(x) * float(i + 1) + float(i) for i in range(2 * n)]

    return f, (array(256, 16),), ()  # of small programs other kernels are made, with short vectors


def sums_beyond_the_operand_limit(n: int) -> Program:
    def f(d: Any, *values: Any) -> Any:
        total = d[0:4]
        for value in values:
            total = total + jnp.tanh(value)
        return d.at[0:4].set(total), *(d[0:4] * value for value in values)

    return f, (array(8, 16), *(array(4, 16) for _ in range(n))), (0,)


def scatters(n: int) -> Program:
    def f(d: Any, x: Any, at: Any) -> Any:
        for i in range(n):
            d = d.at[at].add(x * float(i + 1))
        return d

    return f, (array(64, 16), array(4, 16), jax.ShapeDtypeStruct((4,), jnp.int32)), (0,)


def loops(n: int) -> Program:
    def f(x: Any) -> Any:
        for _ in range(n):
            x = lax.fori_loop(0, 3, lambda k, c: jnp.sin(c) @ c, x)
        return x

    return f, (array(16, 16),), ()


def values_that_are_placed(n: int) -> Program:
    def f(x: Any) -> Any:
        values = [jnp.exp(x + float(i)) for i in range(n)]
        return jnp.concatenate(values), [lax.cumsum(value, 1)[0] for value in values]

    return f, (array(2, 20),), ()


def rows_that_are_padded(n: int) -> Program:
    def f(x: Any) -> Any:
        b = jnp.zeros((3 * n, 4))
        for i in range(n):
            b = b.at[3 * i : 3 * i + 3].set(float(i)).at[3 * i + 1].set(jnp.exp(x + float(i)))
        return b

    return f, (array(4),), ()


def places_of_one_value(n: int) -> Program:
    def f(x: Any, d: Any) -> Any:
        value = jnp.exp(x)
        return [d.at[i].set(value) for i in range(n)]

    return f, (array(8), array(512, 8)), ()


def borders_around_one_value(n: int) -> Program:
    def f(x: Any) -> Any:
        value = jnp.exp(x)
        return [jnp.pad(value, (i % 5 + 1, 2), constant_values=float(i)) for i in range(n)]

    return f, (array(8),), ()


def sums_of_one_row_space(n: int) -> Program:
    """One group, which becomes many dispatches."""

    def f(x: Any) -> Any:
        values = [jnp.exp(x * float(i)) for i in range(n)]
        return [(y.sum(0), y.max(0)) for y in values]

    return f, (array(8, 16),), ()


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "family",
    [
        updates,
        concatenation,
        stacked_sums,
        pads,
        layers,
        products,
        dense_layers,
        optimizer_steps,
        results_beyond_the_operand_limit,
        sums_beyond_the_operand_limit,
        scatters,
        loops,
    ],
)
def test_work_is_near_linear(family: Callable[[int], Program]) -> None:
    calls_to_compile(family(4))  # what is made once a process
    short, long = (calls_to_compile(family(n)) for n in (SHORT, LONG))
    assert long / short < LONG / SHORT * MOST_GROWTH


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "family",
    [
        states_that_are_read,
        values_that_are_placed,
        rows_that_are_padded,
        places_of_one_value,
        borders_around_one_value,
        sums_of_one_row_space,
    ],
)
def test_each_rewrite_of_dispatches_is_near_linear(family: Callable[[int], Program]) -> None:
    short, long = (calls_after("assemble", family(n), "place") for n in (100, 400))
    assert long / short < 4 * MOST_GROWTH, (long, short)


def test_what_products_give_is_carried_past_each_sum_once() -> None:
    """However many products a sum is made of."""
    short, long = (calls_after("normalize", gradient_of_tied_layers(n), "encode") for n in (24, 96))
    assert long / short < 4 * MOST_GROWTH, (long, short)
