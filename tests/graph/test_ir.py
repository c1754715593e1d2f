"""The graph's own methods keep edges, operands and order in step."""

from __future__ import annotations

import networkx as nx
import pytest

from stagejit.graph.ir import Graph, Use, Value
from stagejit.graph.ops import build
from stagejit.graph.verifier import verify
from stagejit.types import TensorType, f32

TYPE = TensorType(f32, (4,))


def neg(graph: Graph, x: Value) -> Value:
    return build(graph, "map", [x], fn="neg", dtype=f32)


@pytest.fixture
def chain() -> Graph:
    graph = Graph()
    x = graph.add_input("x", TYPE)
    y = neg(graph, x)
    graph.set_outputs([build(graph, "map", [y, y], fn="add", dtype=f32)])
    return graph


def test_uses_are_in_order_and_count_each_operand(chain: Graph) -> None:
    y, total = (op.result for op in chain)
    assert chain.uses(y) == [Use(total.op, 0), Use(total.op, 1)]
    assert chain.users(y) == [total.op]
    assert chain.users(total) == [chain.return_op]


def test_replacing_uses_moves_edges(chain: Graph) -> None:
    y, total = (op.result for op in chain)
    (x,) = chain.inputs
    chain.replace_uses(y, x)
    assert total.op.operands == (x, x)
    assert chain.eliminate_dead() == 1
    assert len(chain) == 1
    verify(chain)


def test_ops_come_after_their_operands_even_when_made_later(chain: Graph) -> None:
    y, total = (op.result for op in chain)
    late = neg(chain, chain.inputs[0])
    chain.replace_uses(y, late)
    chain.eliminate_dead()
    assert [op.id for op in chain] == [late.op.id, total.op.id]


def test_a_used_op_cannot_be_erased(chain: Graph) -> None:
    with pytest.raises(ValueError, match="its results are used"):
        chain.erase(next(iter(chain)))


def test_new_ops_are_known_by_their_ids(chain: Graph) -> None:
    first = chain.next_id
    made = neg(chain, chain.inputs[0]).op
    assert chain.ops_since(first) == [made]
    chain.erase(made)
    assert chain.ops_since(first) == []


def test_networkx_algorithms_apply(chain: Graph) -> None:
    assert nx.is_directed_acyclic_graph(chain.nx)
    assert nx.dag_longest_path_length(chain.nx, default_weight=1) == 3
