"""Of equal constants that rewrites ask for a graph makes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build, filled
from stagejit.graph.verifier import verify
from stagejit.types import TensorType, dtype_named, f32

TYPE = TensorType(f32, (2, 3))


def nan(bits: int) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [("f32", 0.1), ("f32", nan(0x7FC00001)), ("f64", -0.0), ("bf16", 1.5), ("f16", np.inf),
     ("i8", -128), ("u32", 2**32 - 1), ("i64", -(2**63)), ("bool", True)],
)  # fmt: skip
def test_equal_ones_are_one_value(dtype: str, number: Any, shape: tuple[int, ...]) -> None:
    graph, type = Graph(), TensorType(dtype_named(dtype), shape)
    value = filled(graph, number, type)
    count = len(graph)
    assert filled(graph, np.array(number, type.dtype.numpy), type) is value
    assert len(graph) == count
    graph.set_outputs([value])
    verify(graph)
    (made,) = interpret(graph, [])
    expected = np.full(shape, number, type.dtype.numpy)
    assert (made.dtype, made.shape) == (expected.dtype, shape)
    assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.0, TYPE), (-0.0, TYPE)),
        ((nan(0x7FC00000), TYPE), (nan(0x7FC00001), TYPE)),
        ((nan(0x7FC00000), TYPE), (nan(0xFFC00000), TYPE)),
        ((1, TYPE), (1, TensorType(f32, (3, 2)))),
        ((1, TYPE), (1, TensorType(f32, ()))),
        ((0, TYPE), (0, TensorType(dtype_named("i32"), (2, 3)))),
        ((1, TensorType(dtype_named("u8"), ())), (1, TensorType(dtype_named("bool"), ()))),
    ],
)
def test_dont_take_one_for_another(first: tuple[Any, TensorType], second: Any) -> None:
    graph = Graph()
    values = [filled(graph, *first), filled(graph, *second)]
    graph.set_outputs(values)
    for (number, type), made in zip((first, second), interpret(graph, []), strict=True):
        assert made.tobytes() == np.full(type.shape, number, type.dtype.numpy).tobytes()


def test_other_shapes_have_the_number_in_common() -> None:
    graph = Graph()
    values = [filled(graph, 0.5, TensorType(f32, shape)) for shape in ((3,), (), (2, 3))]
    assert [op.kind for op in graph].count("const") == 1
    assert values[0].op.operands[0] is values[1] is values[2].op.operands[0]


def test_what_was_erased_is_made_again() -> None:
    """All of it, or the fill alone."""
    graph = Graph()
    first = filled(graph, 0.5, TYPE)
    graph.eliminate_dead()
    second = filled(graph, 0.5, TYPE)
    assert second is not first
    graph.erase(second.op)
    third = filled(graph, 0.5, TYPE)
    assert third.op in graph
    assert third.op.operands[0] is second.op.operands[0]
    graph.set_outputs([third])
    verify(graph)


def test_each_graph_has_its_own() -> None:
    graph, other = Graph(), Graph()
    assert filled(graph, 0.5, TYPE).op not in other
    assert filled(other, 0.5, TYPE).op in other


def test_who_builds_with_a_number_is_told_of_it() -> None:
    graph = Graph()
    x = graph.add_input("x", TYPE)
    for attrs in ({}, {"value": 2.0}):
        with pytest.raises(TypeError, match=r"a number is filled\(graph, number, type\)"):
            build(graph, "const", **attrs)
    operands: Any = [x, 2.0]
    with pytest.raises(TypeError, match=r"operand 1 of map is 2.0, .* a number is filled"):
        build(graph, "map", operands, fn="mul", dtype=f32)
    operands = [x.op]
    with pytest.raises(TypeError, match=r"operand 0 of map is input.1, .* take its result"):
        build(graph, "map", operands, fn="neg", dtype=f32)
