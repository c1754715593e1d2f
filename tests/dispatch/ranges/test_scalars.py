"""What the host knows of scalars, against the interpreter on all kinds of arguments."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.base.formulas import evaluate
from stagejit.base.symbolic import Int, bounds
from stagejit.dispatch.ranges.scalars import Scalars, known_arguments
from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.trace.translate import graph_of

I32 = np.int32
EDGES = [0, 1, -1, 5, 63, 64, -64, 100, 2**31 - 1, -(2**31)]
UNARY = ["neg", "abs", "i8", "u32", "i32", "square"]
BINARY = ["add", "sub", "mul", "min", "max", "rem", "div", "lt", "ge", "eq", "same"]
_OPS: dict[str, Any] = {
    "neg": lambda x: -x,
    "abs": lax.abs,
    "square": lambda x: x * x,
    "i8": lambda x: x.astype(jnp.int8).astype(jnp.int32),
    "u32": lambda x: x.astype(jnp.uint32).astype(jnp.int32),
    "i32": lambda x: x,
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "min": lax.min,
    "max": lax.max,
    "rem": lax.rem,
    "div": lax.div,
    "lt": lambda a, b: jnp.where(a < b, a + 3, b),
    "ge": lambda a, b: jnp.where((a >= b) & (b > 2), a - b, 7),
    "same": lambda a, b: jnp.where(a > b, lax.max(b, b), b),
    "eq": lambda a, b: lax.select((a == b) | ~(a != 4), a, b * 2),
}


def scalars_of(graph: Graph) -> Scalars:
    return Scalars(graph.ops(), known_arguments(graph))


def value_in(known: Int, args: list[int]) -> Any:
    return evaluate(str(known), {f"x{at}": arg for at, arg in enumerate(args)})


@given(
    st.lists(st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)),
             max_size=7),
    st.lists(st.sampled_from(EDGES), min_size=2, max_size=2),
)  # fmt: skip
def test_formulas_have_the_values_of_the_graph(
    steps: list[tuple[str, int, int]], args: list[int]
) -> None:
    def fn(i: Any, j: Any) -> Any:
        values = [i, j, jnp.int32(4), jnp.int32(64)]
        for name, a, b in steps:
            operands = [values[at % len(values)] for at in (a, b)]
            values.append(_OPS[name](*operands[: 1 if name in UNARY else 2]))
        return values[4:]

    graph = graph_of(fn, I32(0), I32(0))
    scalars, expected = scalars_of(graph), interpret(graph, [I32(arg) for arg in args])
    for value, result in zip(graph.outputs, expected, strict=True):
        known = scalars[value]
        if known is not None:
            low, high = bounds(known)
            assert value_in(known, args) == int(result)
            assert low <= int(result) <= high


def output(fn: Any, *args: Any) -> tuple[Scalars, Value]:
    graph = graph_of(fn, *args)
    return scalars_of(graph), graph.outputs[0]


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda i: jnp.clip(i, 0, 9), "clamp(x0, 0, 9)"),
        (lambda i: i + 1, "i32(x0+1)"),
        (lambda i: jnp.clip(i, 0, 9) * 4 + 1, "4*clamp(x0, 0, 9)+1"),
        (lambda i: jnp.where(i < 0, i + 64, i), "(i32(x0+64) if x0 < 0 else x0)"),
        (lambda i: lax.rem(i, jnp.int32(8)), "rem(x0, 8)"),
        (lambda i: jnp.where(jnp.clip(i, 0, 9) < 0, 5, 6), "6"),
        (lambda i: i.astype(jnp.uint8), "u8(x0)"),
    ],
)
def test_text(fn: Any, text: str) -> None:
    scalars, value = output(fn, I32(0))
    graph_text = str(scalars[value]).replace("max(0, x0)", "x0")
    expected = {"clamp(x0, 0, 9)": "min(9, x0)", "4*clamp(x0, 0, 9)+1": "4*min(9, x0)+1"}
    assert graph_text in (text, expected.get(text))


@pytest.mark.parametrize(
    "fn",
    [
        lambda i: (i + 0.5).astype(jnp.int32),
        lambda i: jnp.arange(9)[i] + jnp.zeros(3, jnp.int32).sum(),
        lambda i: lax.population_count(i),
    ],
)
def test_dont_know_floats_arrays_and_bits(fn: Any) -> None:
    scalars, value = output(fn, I32(0))
    assert scalars[value] is None


def test_dont_write_a_formula_without_end() -> None:
    def fn(i: Any) -> Any:
        for step in range(40):
            i = jnp.where(i < step, i * 3, i - 7)
        return i

    scalars, value = output(fn, I32(0))
    assert scalars[value] is None


def test_a_start_is_clamped_as_in_jax() -> None:
    graph = graph_of(lambda i: i + 1, I32(0))
    scalars = scalars_of(graph)
    for arg in EDGES:
        start = scalars.start(graph.inputs[0], 7)
        assert start is not None
        assert value_in(start, [arg]) == min(max(arg, 0), 6)
        assert bounds(start) == (0, 6)


def test_an_index_that_may_be_dropped_is_not_clamped() -> None:
    graph = graph_of(lambda i: i[None], I32(0))
    index = scalars_of(graph).index(graph.outputs[0], 0, 7, "fill")
    assert index is not None
    assert value_in(index, [100]) == 100
    assert bounds(index) == (0, 6)


@pytest.mark.parametrize("known", [*itertools.product((False, True), repeat=3)], ids=str)
@pytest.mark.parametrize("reads", [False, True])
def test_places_made_of_numbers_and_scalars(known: tuple[bool, ...], reads: bool) -> None:
    """An index of which some components are numbers is exact, whoever fills it in."""

    def f(x: Any, i: Any) -> Any:
        place = tuple(2 if number else i for number in known)
        return x.at[place].set(x[0, 3, 1] if reads else 7.0)

    x = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    staged = stagejit.jit(f, donate_argnums=0, options=Options(verify=True))
    (write,) = staged.plan(x, 1).dispatches[-1].writes
    assert write.exact
    assert write.nbytes == 4
    assert write.offsets[0] == 2 if known[0] else write.box.symbols()
    for at in (0, 3, -1, 9):
        np.testing.assert_array_equal(staged(jnp.array(x), at), f(jnp.array(x), at))
