"""Each broken invariant is found, and named at the user's line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stagejit.base.loc import Loc
from stagejit.errors import VerificationError
from stagejit.graph import verifier
from stagejit.graph.ir import Graph
from stagejit.graph.ops import build
from stagejit.graph.text.parser import parse
from stagejit.graph.verifier import verify
from stagejit.types import DType, TensorType, f32, i32

TYPE = TensorType(f32, (4,))
TOKEN = TensorType(DType("token", "opaque", 0, 0), ())


def small() -> Graph:
    graph = Graph()
    x = graph.add_input("x", TYPE)
    y = build(graph, "map", [x], Loc("model.py", 7), fn="exp", dtype=f32)
    graph.set_outputs([y])
    return graph


def test_a_sound_graph_passes() -> None:
    verify(small())


def wrong_type(graph: Graph) -> None:
    graph.add("map", [graph.inputs[0]], TensorType(i32, (4,)), Loc("model.py", 9), fn="exp",
              dtype=f32)  # fmt: skip


def edge_without_operand(graph: Graph) -> None:
    graph.nx.add_edge(graph.inputs[0].op, graph.return_op, operand=1, result=0)


def operand_without_edge(graph: Graph) -> None:
    op = next(iter(graph))
    op.operands = (*op.operands, graph.inputs[0])


def foreign_value(graph: Graph) -> None:
    other = small()
    next(iter(graph)).operands = (other.inputs[0],)


def second_return(graph: Graph) -> None:
    graph.add("return", [graph.inputs[0]], [])


def cycle(graph: Graph) -> None:
    op = next(iter(graph))
    graph.set_operand(op, 0, op.result)


def mutable_attribute(graph: Graph) -> None:
    graph.add("reverse", [graph.inputs[0]], TYPE, axes=[0])


def writable_constant(graph: Graph) -> None:
    graph.add("const", (), TYPE, value=np.zeros(4, np.float32))


def forgotten_name(graph: Graph) -> None:
    graph.input_names.pop()


def unknown_input(graph: Graph) -> None:
    graph.add("input", (), TYPE, index=1)


def unordered_effects(graph: Graph) -> None:
    for _ in range(2):
        graph.add("delegate", (), [TOKEN], equation=None, reason="print", effects=("io",))


def body_of_two(graph: Graph) -> None:
    body = Graph("body")
    body.set_outputs([body.add_input("carry0", TYPE, donated=True)])
    attrs = {"body": body, "condition": None, "trip": 2, "carries": 1, "xs": 0, "reverse": False}
    for _ in range(2):
        graph.add("loop", graph.inputs, TYPE, **attrs)


def test_a_foreign_value_is_found_where_nobody_has_asked_for_edges() -> None:
    graph = small()
    foreign_value(graph)
    with pytest.raises(VerificationError, match="input ops differ"):
        verify(graph)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_type, "results are"),
        (edge_without_operand, "differ from operands"),
        (operand_without_edge, "differ from operands"),
        (foreign_value, "belongs to another graph"),
        (second_return, "there are 2 returns"),
        (cycle, "the graph has a cycle"),
        (mutable_attribute, "is not a plain value"),
        (writable_constant, "can be written to"),
        (forgotten_name, "differ in number"),
        (unknown_input, "input ops differ"),
        (unordered_effects, "does not take the token"),
        (body_of_two, "body is a body of"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_fault_is_found(damage: Callable[[Graph], None], message: str) -> None:
    graph = small()
    assert len(graph.nx)  # edges are made when they are first asked for
    damage(graph)
    with pytest.raises(VerificationError, match=message):
        verify(graph)


def test_the_error_has_the_users_line() -> None:
    graph = small()
    wrong_type(graph)
    with pytest.raises(VerificationError, match=r"--> model.py:9"):
        verify(graph)


NESTED = """graph @f(%x: f32[4]) {
  %0: f32[4] = map exp %x
  %1: f32[4] = loop %0 carries=1 reverse=false trip=3 xs=0
    graph @body(%c: f32[4] donated) {
      %0: f32[4] = map exp %c
      return %0
    }
  return %1
}"""


def nested() -> tuple[Graph, Graph]:
    """A graph, and the body of its loop."""
    graph = parse(NESTED)
    (body,) = (body for op in graph for body in op.definition.bodies(op))
    return graph, body


def retyped_input(graph: Graph) -> None:
    graph.inputs[0].type = TensorType(f32, (5,))


def erased(graph: Graph) -> None:
    """Whatever reads it has an operand that is not there."""
    op = next(iter(graph))
    user = next(iter(graph.nx.successors(op)))
    graph.set_operand(user, 0, graph.inputs[0])
    graph.erase(op)
    user.operands = [op.result]


@pytest.mark.parametrize("damage", [wrong_type, second_return, cycle, forgotten_name, unknown_input,
                                    retyped_input, erased])  # fmt: skip
@pytest.mark.parametrize("inside", [True, False])
def test_what_has_changed_is_verified_again(
    damage: Callable[[Graph], None], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, body = nested()
    verify(graph, changed_only=True)
    with monkeypatch.context() as patch:
        patch.setattr(verifier, "_verify_types", None)  # nothing is looked at again
        verify(graph, changed_only=True)
    damage(body if inside else graph)
    with pytest.raises(VerificationError):
        verify(graph, changed_only=True)


def test_whole_graphs_are_verified_whoever_changed_them() -> None:
    graph, body = nested()
    verify(graph)
    operand_without_edge(body)  # by no method of a graph
    with pytest.raises(VerificationError, match="differ from operands"):
        verify(graph)
