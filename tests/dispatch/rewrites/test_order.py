"""Which dispatches come before which: as paths of edges say, while edges are added."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from stagejit.dispatch.rewrites import order
from stagejit.graph.ir import Graph, Op
from stagejit.graph.text.parser import parse
from stagejit.graph.verifier import verify
from tests.dispatch.rewrites.texts import expanded, part

NEG = part("f32[4] = map neg %a0", "%0", a0="f32[4]")
ADD = part("f32[4] = map add %a0, %a1", "%0", a0="f32[4]", a1="f32[4]")
PUT = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[4]", d0="f32[4]")


def graph_of(rng: random.Random, size: int) -> tuple[Graph, list[Op], list[Op]]:
    """Readers, and updates of memory of their own, which use each other's results."""
    lines, values = ["graph @f(%x: f32[4]) {"], ["%x"]
    for number in range(0, 2 * size, 2):
        near = values[-8:]
        if rng.random() < 0.5:
            a, b = rng.choice(near), rng.choice(near)
            given, name = (a, "NEG") if a == b else (f"{a}, {b}", "ADD")
            lines += [f"  %{number}: f32[4] = empty",
                      f"  %{number + 1}: f32[4] = dispatch map {given} : {name}"]  # fmt: skip
        else:
            lines += [f"  %{number}: f32[4] = empty",
                      f"  %{number + 1}: f32[4] = dispatch copy {rng.choice(near)} into %{number}"
                      " [0:4] : PUT"]  # fmt: skip
        values.append(f"%{number + 1}")
    text = expanded("\n".join([*lines, f"  return {values[-1]}", "}"]), NEG=NEG, ADD=ADD, PUT=PUT)
    graph = parse(text)
    ops = [op for op in graph.ops() if op.definition.is_dispatch]
    return graph, ops, [op for op in ops if op.attrs["carried"]]


@pytest.mark.parametrize("seed", range(20))
def test_places_say_what_paths_say(seed: int) -> None:
    rng = random.Random(seed)
    graph, ops, updates = graph_of(rng, 20)
    made = order.Order(graph)
    for _ in range(30):
        first, second = rng.sample(ops, 2)
        assert made.comes_before(first, second) == nx.has_path(graph.nx, first, second)
        update = rng.choice(updates)
        readers = [op for op in rng.sample(ops, 2) if op is not update]
        if not any(made.comes_before(update, reader) for reader in readers):
            made.put_first(readers, update.results[0])
            assert all(made.comes_before(reader, update) for reader in readers)
    verify(graph)


@pytest.mark.parametrize("seed", range(20))
def test_ops_that_are_joined_run_at_once(seed: int) -> None:
    rng = random.Random(seed)
    graph, ops, _ = graph_of(rng, 20)
    made, home = order.Order(graph), {op: op for op in ops}
    for _ in range(10):
        first, second = rng.sample(ops, 2)
        one = _contracted(graph, home)
        assert made.comes_before(first, second) == (
            home[first] is not home[second] and nx.has_path(one, home[first], home[second])
        )
        first = home[first]
        if home[second] is not second or second in [home[op] for op in ops if op is not second]:
            continue
        trial = _contracted(graph, home | {second: first})
        if nx.is_directed_acyclic_graph(trial):
            made.join(second, first)
            home[second] = first


def _contracted(graph: Graph, home: dict[Op, Op]) -> nx.DiGraph[Op]:
    edges = {(home.get(a, a), home.get(b, b)) for a, b in graph.nx.edges()}
    made: nx.DiGraph[Op] = nx.DiGraph((a, b) for a, b in edges if a is not b)
    made.add_nodes_from(home.values())
    return made
