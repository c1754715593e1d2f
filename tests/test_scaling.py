"""Compiling a program twice as long takes about twice the work: function calls are counted, not
seconds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import stagejit
from stagejit.pipeline import STEPS, Compilation
from stagejit.runtime.lowering.staged import Request
from tests.calls import calls_of

Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]  # f, arguments, donated

SHORT, LONG = 24, 96
# Work for each equation may grow like the logarithm of their number, and by a little more where
# work is bounded by something else than the program (a kernel that is shared, a limit).
MOST_GROWTH = 1.3


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


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


def layers(n: int) -> Program:
    def f(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight) + x
        return x

    return f, (array(16, 16), *(array(16, 16) for _ in range(n))), ()


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

    return f, (array(4, 16),), ()


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


def carries(n: int) -> Program:
    def body(_: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(jnp.sin(x) for x in values)

    return lambda *values: lax.fori_loop(0, 5, body, values), tuple(array(8) for _ in range(n)), ()


def operands_of_branches(n: int) -> Program:
    def f(p: Any, *values: Any) -> Any:
        return lax.cond(p, lambda *xs: tuple(jnp.sin(x) for x in xs), lambda *xs: xs, *values)

    return f, (jax.ShapeDtypeStruct((), jnp.bool_), *(array(8) for _ in range(n))), ()


def states_that_are_read(n: int) -> Program:
    def f(d: Any, x: Any) -> Any:
        read = []
        for i in range(n):
            before, d = d, d.at[i].set(x)
            read.append(lax.cumsum(before, 1)[0])
        return d, read

    return f, (array(512, 4), array(4)), (0,)


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


def updates_that_are_read(n: int) -> Program:
    """Each stored apart, behind all that follows, which had been formed before."""

    def f(x: Any, i: Any) -> Any:
        for _ in range(n):
            x = lax.dynamic_update_slice(x, 2.0 * lax.dynamic_slice(x, (i,), (8,)), (i + 8,))
        return x

    return f, (array(64), jax.ShapeDtypeStruct((), jnp.int32)), ()


def sums_of_one_row_space(n: int) -> Program:
    """One group, which becomes many dispatches."""

    def f(x: Any) -> Any:
        values = [jnp.exp(x * float(i)) for i in range(n)]
        return [(y.sum(0), y.max(0)) for y in values]

    return f, (array(8, 16),), ()


def requested(program: Program, *, verify: bool) -> Request:
    f, args, donated = program
    options = stagejit.Options(cache_dir="", verify=verify)
    jitted = stagejit.jit(f, donate_argnums=donated, options=options)
    return jitted.trace(*args).compilation.request


def calls_to_compile(program: Program) -> int:
    """Calls of Python and C functions from the trace to the host program, verifiers included."""
    return calls_to_run(Compilation(requested(program, verify=True)), "host")


def calls_to_run(compilation: Compilation, last: str) -> int:
    return calls_of(lambda: compilation.run_until(last))


def calls_after(first: str, program: Program, last: str) -> int:
    """The same for what comes after the step `first` of a program."""
    return calls_to_run(Compilation(requested(program, verify=False)).run_until(first), last)


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


def mapped_layers(n: int) -> Program:
    f, (x, *weights), _ = layers(n)
    return lambda x, *w: lax.map(lambda row: f(row, *w), x), (array(9, *x.shape), *weights), ()


def lines_to_run(program: Program, first: str, last: str, *, verify: bool) -> int:
    """Lines that run in the steps from one to another, as often as a loop comes to them: a
    comprehension over all that is carried is one call."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    names = [step.name for step in STEPS]
    compilation = Compilation(requested(program, verify=verify))
    compilation.run_until(names[names.index(first) - 1])
    before = sys.gettrace()
    sys.settrace(count)
    try:
        compilation.run_until(last)
    finally:
        sys.settrace(before)
    return lines


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
