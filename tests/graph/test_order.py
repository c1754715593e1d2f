"""The order of what waits for something else, by a key otherwise: that of networkx."""

from __future__ import annotations

from graphlib import CycleError

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.graph.order import first_order


@st.composite
def waiting(draw: st.DrawFn) -> tuple[dict[int, set[int]], list[int]]:
    """Items that wait for others, in no order, and the key of each; some keys are equal."""
    count = draw(st.integers(0, 12))
    names = draw(st.permutations(range(count)))
    before = {
        names[at]: {names[other] for other in draw(st.sets(st.integers(0, at - 1), max_size=3))}
        if at
        else set[int]()
        for at in range(count)
    }
    shuffled = {name: before[name] for name in draw(st.permutations(range(count)))}
    return shuffled, [draw(st.integers(0, 5)) for _ in range(count)]


@given(waiting())
def test_the_order_is_that_of_networkx(drawn: tuple[dict[int, set[int]], list[int]]) -> None:
    before, keys = drawn
    graph = nx.DiGraph()
    graph.add_nodes_from(before)
    for item, others in before.items():
        graph.add_edges_from((other, item) for other in others)
    expected = list(nx.lexicographical_topological_sort(graph, key=keys.__getitem__))
    assert first_order(before, keys.__getitem__) == expected


def test_what_waits_for_itself_is_refused() -> None:
    with pytest.raises(CycleError):
        first_order({1: {2}, 2: {1}}, int)
