"""The graph's own methods keep edges, operands and order in step."""

from __future__ import annotations

from random import Random
from typing import Any

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
    assert list(total.op.operands) == [x, x]
    assert chain.eliminate_dead() == 1
    assert len(chain) == 1
    verify(chain)


def test_ops_come_after_their_operands_even_when_made_later(chain: Graph) -> None:
    y, total = (op.result for op in chain)
    late = neg(chain, chain.inputs[0])
    chain.replace_uses(y, late)
    chain.eliminate_dead()
    assert [op.id for op in chain] == [late.op.id, total.op.id]


def test_the_order_is_found_anew_after_each_change() -> None:
    """Against a graph that is asked once, in the end."""
    random = Random(0)
    for _ in range(50):
        asked, unasked = Graph(), Graph()
        for graph in (asked, unasked):
            graph.add_input("x", TYPE)
        for _ in range(30):
            step = random.choice(["add", "add", "replace", "erase", "drop", "dead"])
            seed = random.random()
            for graph in (asked, unasked):
                change(graph, step, Random(seed))
            asked.ops()
        assert [op.id for op in asked] == [op.id for op in unasked]


def change(graph: Graph, step: str, random: Random) -> None:
    values = [value for op in graph.nx for value in op.results]
    if step == "add":
        graph.set_outputs([*graph.outputs, neg(graph, random.choice(values))])
    elif step == "replace":
        old, new = sorted(random.choices(values, k=2), key=lambda value: value.op.id)
        graph.replace_uses(new, old)
    elif step == "erase":
        unused = [op for op in graph.nx if op.kind == "map" and not graph.is_used(op)]
        for op in unused[:1]:
            graph.erase(op)
    elif step == "drop":
        graph.set_outputs(graph.outputs[1:])
    else:
        graph.eliminate_dead()


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


def edges_of(graph: Graph) -> set[tuple[Any, ...]]:
    """Producer, reader and key, by the operands."""
    ops = [*graph.ops(), graph.return_op]
    return {(x.op, op, at) for op in ops for at, x in enumerate(op.operands)}


def test_networkx_sees_what_changes(chain: Graph) -> None:
    """It has the dictionaries of the graph itself, whatever of it was asked before."""
    seen = chain.nx
    assert seen.number_of_edges() == len(edges_of(chain)) > 2
    first, last = chain.ops()[0], chain.ops()[-1]
    made = neg(chain, chain.inputs[0])
    assert seen.number_of_edges() == len(edges_of(chain))
    chain.replace_uses(last.result, made)
    chain.erase(last)
    assert chain.nx is seen
    assert set(seen.edges(keys=True)) == edges_of(chain)
    assert set(seen.successors(made.op)) == {chain.return_op}
    assert set(seen.predecessors(made.op)) == {chain.inputs[0].op}
    assert last not in seen
    assert seen.nodes[first] == {}
    assert {data["result"] for *_, data in seen.edges(data=True)} == {0}
    chain.eliminate_dead()
    assert set(seen) == {made.op, chain.inputs[0].op, chain.return_op}
    assert set(seen.edges(keys=True)) == edges_of(chain)


def test_what_networkx_changes_is_changed(chain: Graph) -> None:
    op = chain.ops()[-1]
    chain.nx.remove_node(op)
    assert op not in chain
    assert not chain.is_used(op.operands[0].op)


def test_an_edge_stays_as_long_as_an_operand_has_it() -> None:
    graph = Graph()
    x, y = (graph.add_input(name, TensorType(f32, (2,))) for name in "xy")
    both = build(graph, "map", [x, x], fn="add", dtype=f32).op
    assert graph.links.reads(x.op) == graph.nx.out_degree(x.op) == 2
    graph.set_operand(both, 0, y)
    assert graph.users(x) == graph.users(y) == [both]
    assert graph.nx.in_degree(both) == 2
    graph.set_operand(both, 1, y)
    assert graph.users(x) == []
    assert both not in graph.nx.succ[x.op]
    assert graph.links.reads(y.op) == 2
