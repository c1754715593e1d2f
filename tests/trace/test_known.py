"""Index arithmetic on constants is known while tracing; nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.graph.ir import Graph
from stagejit.trace.emitter import Emitter
from stagejit.trace.known import MAX_ELEMENTS
from stagejit.types import TensorType, bool_, f32, i32, i64


@pytest.fixture
def emit() -> Emitter:
    return Emitter(Graph("f"))


def test_arithmetic_on_small_integers_is_known(emit: Emitter) -> None:
    line = emit.iota(TensorType(i32, (4,)), 0)
    wrapped = emit.map("select", emit.map("lt", line, emit.const(2, i32)),
                       emit.map("add", line, emit.const(10, i32)), line)  # fmt: skip
    np.testing.assert_array_equal(emit.known(wrapped), [10, 11, 2, 3])
    wide = emit.convert(emit.reverse(wrapped, [0]), i64)
    known = emit.known(emit.broadcast(emit.reshape(wide, (2, 2)), (2, 3, 2), (0, 2)))
    assert known is not None
    assert known.shape == (2, 3, 2)
    assert known.dtype == np.int64


def test_assembled_vectors_are_known(emit: Emitter) -> None:
    pair = emit.empty(TensorType(i32, (2,)))
    pair = emit.insert(emit.fill(emit.const(7, i32), (1,)), pair, [0])
    pair = emit.insert(emit.fill(emit.const(8, i32), (1,)), pair, [1])
    np.testing.assert_array_equal(emit.known(pair), [7, 8])
    assert emit.known(emit.element(pair, (1,))) == 8


def test_arguments_floats_and_large_arrays_are_not_known(emit: Emitter) -> None:
    argument = emit.graph.add_input("x", TensorType(i32, ()))
    assert emit.known(argument) is None
    assert emit.known(emit.map("add", argument, emit.const(1, i32))) is None
    assert emit.known(emit.const(1.0, f32)) is None
    assert emit.known(emit.iota(TensorType(i32, (MAX_ELEMENTS + 1,)), 0)) is None


def test_division_by_zero_is_known_as_jax_has_it(emit: Emitter) -> None:
    one, zero = emit.const(1, i32), emit.const(0, i32)
    assert emit.known(emit.map("div", one, zero)) == -1
    assert emit.known(emit.map("rem", one, zero)) == 1


def test_a_long_chain_needs_no_deep_stack(emit: Emitter) -> None:
    value = emit.const(0, i32)
    for _ in range(5000):
        value = emit.map("add", value, emit.const(1, i32))
    assert emit.known(value) == 5000


def test_predicates_are_known(emit: Emitter) -> None:
    assert emit.known(emit.const(True, bool_)) is not None


def test_an_element_is_looked_for_where_it_came_from(emit: Emitter) -> None:
    i, j = (emit.graph.add_input(name, TensorType(i32, ())) for name in "ij")
    pair = emit.empty(TensorType(i32, (2,)))
    pair = emit.insert(emit.fill(i, (1,)), pair, [0])
    pair = emit.insert(emit.fill(j, (1,)), pair, [1])
    grid = emit.broadcast(pair, (3, 2), (1,))
    assert emit.element(grid, (2, 0)) is i
    assert emit.element(grid, (0, 1)) is j
    assert emit.element(emit.reverse(pair, [0]), (0,)) is j
    assert emit.element(emit.extract(grid, (1, 1), (2, 1)), (1, 0)) is j


def test_an_element_of_an_argument_is_extracted(emit: Emitter) -> None:
    x = emit.graph.add_input("x", TensorType(i32, (3,)))
    emit.element(x, (1,))
    assert [op.kind for op in emit.graph] == ["extract_slice", "reshape"]
