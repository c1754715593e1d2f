"""Places of ops while sets of them become one, and what is made up of numbers."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.tiling.surroundings import Surroundings
from stagejit.types import TensorType, f32

SCALAR = TensorType(f32, ())


def added(graph: Graph, a: Value, b: Value) -> Value:
    return build(graph, "map", (a, b), fn="add", dtype=f32)


def random_graph(rng: np.random.Generator, ops: int) -> Graph:
    """Each op reads what may be far back; outputs are all of them, so that nobody is dead."""
    graph = Graph()
    values = [graph.add_input("x", SCALAR)]
    for _ in range(ops):
        near = rng.integers(max(0, len(values) - int(rng.integers(1, ops))), len(values), 2)
        values.append(added(graph, values[near[0]], values[near[1]]))
    graph.set_outputs(values)
    return graph


def set_without_paths_outside(graph: Graph, rng: np.random.Generator) -> list[Op]:
    """Some ops and all between them."""
    picked = set(rng.choice(np.array(graph.ops(), object), 3))
    behind = set.union(*({op, *nx.ancestors(graph.nx, op)} for op in picked))
    ahead = set.union(*({op, *nx.descendants(graph.nx, op)} for op in picked))
    return [op for op in graph.ops() if op in behind and op in ahead and op.definition.is_step]


def contract(graph: Graph, cluster: list[Op], rng: np.random.Generator) -> list[Op]:
    """In place of a set some ops, all of which need all that the set reads."""
    inside = set(cluster)
    read = list(dict.fromkeys(x for op in cluster for x in op.operands if x.op not in inside))
    total = read[0]
    first = graph.next_id
    for value in read:
        total = added(graph, total, value)
    for op in cluster:
        graph.replace_uses(op.result, added(graph, total, total))
    graph.eliminate_dead()
    return graph.ops_since(first)


@pytest.mark.parametrize("seed", range(60))
def test_operands_stand_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(8, 40)))
    surroundings = Surroundings(graph)
    for _ in range(6):
        cluster = set_without_paths_outside(graph, rng)
        cluster.sort(key=surroundings.place)
        surroundings.contracted(cluster, contract(graph, cluster, rng))
        places = [surroundings.place(op) for op in graph.ops()]
        assert len(set(places)) == len(places)
        for op in graph.ops():
            for value in op.operands:
                assert surroundings.place(value.op) < surroundings.place(op)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_made_of_numbers_only(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph()
    values = [
        graph.add_input("x", SCALAR),
        build(graph, "iota", (), shape=(3,), dtype=f32, axis=0),
        build(graph, "iota", (), shape=(3,), dtype=f32, axis=0),
    ]
    values[0] = build(graph, "broadcast", (values[0],), shape=(3,), axes=())
    wanted = [False, True, True]
    for _ in range(30):
        a, b = rng.integers(0, len(values), 2)
        values.append(added(graph, values[a], values[b]))
        wanted.append(wanted[a] and wanted[b])
    surroundings = Surroundings(graph)
    for at in rng.permutation(len(values)):
        assert surroundings.is_made_up(values[at]) == wanted[at]
