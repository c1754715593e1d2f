"""What weights alone determine is known however much is computed of them, and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.weights.behind import ReadFrom, is_determined, is_known, weights_behind
from stagejit.types import TensorType, f32, i8

OPS = 2000  # more than Python's stack has room for
FORMS = (None, "bf16", "int8")


def graph_of(*bound: bool) -> Graph:
    graph = Graph("f")
    for at, each in enumerate(bound):
        graph.add_input(f"w{at}", TensorType(f32, (4,)), bound=each)
    return graph


def chain(graph: Graph, value: Value, ops: int = OPS) -> Value:
    for _ in range(ops):
        value = mapped(graph, "sin", value)
    return value


def diamonds(graph: Graph, value: Value, ops: int = OPS) -> Value:
    for _ in range(ops // 3):
        value = mapped(graph, "add", mapped(graph, "sin", value), mapped(graph, "cos", value))
    return value


@pytest.mark.parametrize("grown", [chain, diamonds])
def test_weights_far_behind(grown: Callable[[Graph, Value], Value]) -> None:
    graph = graph_of(True, True, False)
    first, second, argument = graph.inputs
    value = mapped(graph, "add", grown(graph, first), second)
    assert is_determined(graph, value)
    assert weights_behind(graph, value) == (first, second)
    mixed = mapped(graph, "add", grown(graph, value), argument)
    assert not is_known(graph, mixed)
    assert weights_behind(graph, mixed) == ()


def test_a_constant_is_known_and_no_weight() -> None:
    graph = graph_of(True)
    zero = build(graph, "iota", (), shape=(4,), dtype=f32, axis=0)
    assert is_known(graph, zero)
    assert not is_determined(graph, zero)
    assert weights_behind(graph, zero) == ()


def test_what_is_bound_later_counts_from_then_on() -> None:
    graph = graph_of(False)
    value = chain(graph, graph.inputs[0], 3)
    assert not is_known(graph, value)
    graph.bound[0] = True
    assert is_determined(graph, value)
    graph.bound[0] = False
    assert not is_known(graph, value)


@pytest.mark.parametrize("kind", ["loop", "optimization_barrier"])
def test_what_is_not_looked_into(kind: str) -> None:
    graph, attrs = graph_of(True), dict[str, Any]()
    type = graph.inputs[0].type
    if kind == "loop":
        body = graph_of(False)
        body.set_outputs([chain(body, body.inputs[0], 1)])
        attrs = {"body": body, "condition": None, "trip": 3, "carries": 1, "xs": 0}
        attrs["reverse"] = False
    value = graph.add(kind, graph.inputs, [type], **attrs).result
    assert not is_known(graph, value)
    assert not is_known(graph, chain(graph, value, 2))


# -- whole programs -------------------------------------------------------------------------------


def _grown(seed: int, ops: int) -> Callable[[Any, Any], Any]:
    """Of a weight, elementwise, each of one or two of the last three values."""

    def grow(np_: Any, w: Any) -> Any:
        random, last = np.random.default_rng(seed), [w]
        for _ in range(ops):
            a, b = (last[int(at)] for at in random.integers(0, len(last), 2))
            last = [*last[-2:], np_.sin(a) if random.random() < 0.5 else np_.tanh(a + b)]
        return last[-1]

    return grow


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("seed", "ops"), [(0, 40), (1, 450)])
def test_programs_that_compute_much_of_weights(seed: int, ops: int, form: Any) -> None:
    grow = _grown(seed, ops)
    w = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    x = np.ones((3, 64), np.float32)
    f = stagejit.bind(lambda w, x: x @ grow(jnp, w), w, weights=form)
    wanted = x @ grow(np, w)
    room = {None: 1e-4, "bf16": 1e-2, "int8": 3e-2}[form]
    np.testing.assert_allclose(np.asarray(f(x)), wanted, atol=room * max(np.abs(wanted).max(), 1))
    assert 0 < f.memory_analysis()["made_nbytes"] <= w.nbytes


def narrow(*shape: int) -> tuple[Graph, Value, Value]:
    """A weight of 8 bits, and what is converted of it."""
    graph = Graph("f")
    weight = graph.add_input("w", TensorType(i8, shape), bound=True)
    return graph, weight, converted(graph, weight, f32)


def test_what_is_needed_twice_is_read_once() -> None:
    graph, weight, wide = narrow(64, 16)
    value = mapped(graph, "mul", wide, mapped(graph, "sin", wide))
    assert ReadFrom()[value] == {weight: 1024}
    assert ReadFrom().nbytes([value, wide, weight]) == 1024


def test_what_has_fewer_bytes_than_it_is_made_of_is_read_itself() -> None:
    graph = Graph("f")
    weight = graph.add_input("w", TensorType(f32, (64, 16)), bound=True)
    small = converted(graph, weight, i8)
    assert ReadFrom()[converted(graph, small, f32)] == {small: 1024}


def test_of_a_part_is_read_as_much_as_it_is_a_part() -> None:
    graph, _, wide = narrow(64, 16)
    parts = [
        build(graph, "extract_slice", [wide], offsets=(at, 0), sizes=(32, 16), strides=(1, 1))
        for at in (0, 32)
    ]
    assert ReadFrom()[mapped(graph, "sin", parts[0])] == {parts[0]: 512}
    assert ReadFrom().nbytes(parts) == 1024
    assert ReadFrom().nbytes([parts[0], mapped(graph, "sin", parts[0])]) == 512


def test_dont_count_what_is_no_memory() -> None:
    graph = graph_of()
    assert ReadFrom().nbytes([build(graph, "iota", (), shape=(4,), dtype=f32, axis=0)]) == 0
