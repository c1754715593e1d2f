"""`Reach` against networkx: groups that are added and ordered in any way."""

from __future__ import annotations

import networkx as nx
import pytest

from stagejit.dispatch.groups.group import Reach
from stagejit.index.bit_sets import bits
from tests.randomness import RNG


def some(numbers: list[int], most: int) -> int:
    """The bit set of some of them."""
    return sum(1 << n for n in numbers if RNG.random() < most / max(len(numbers), 1))


def ancestors(graph: nx.DiGraph[int], groups: int) -> int:
    """Of a bit set, its members included."""
    found = set(bits(groups)).union(*(nx.ancestors(graph, group) for group in bits(groups)))
    return sum(1 << group for group in found)


def changed(reach: Reach, graph: nx.DiGraph[int], how: str) -> None:
    """A group is added, behind the last ones or anywhere, or ordered before others."""
    numbers = list(graph)
    if how == "order":
        after = int(RNG.choice(numbers))
        behind = nx.descendants(graph, after)
        groups = some([n for n in numbers if n not in behind], 2)
        reach.order(groups, after)
        graph.add_edges_from((group, after) for group in bits(groups) if group != after)
    else:
        groups = some(numbers[-3:] if how == "chain" else numbers, 2)
        number = reach.add(groups)
        graph.add_node(number)
        graph.add_edges_from((group, number) for group in bits(groups))


@pytest.mark.parametrize("first", ["chain", "add"])
def test_any_order_is_known_however_late_it_comes(first: str) -> None:
    """Long programs, in which few of those behind a group are told at once."""
    for _ in range(10):
        reach, graph = Reach(), nx.DiGraph()
        for _ in range(50):
            changed(reach, graph, first)
        for how in RNG.choice(["order", "order", "add"], 60):
            changed(reach, graph, how)
            groups = some(list(graph), 3)
            assert reach.closure(groups) == ancestors(graph, groups)
            one, other = map(int, RNG.choice(list(graph), 2))
            assert reach.reaches(one, other) == (one in nx.ancestors(graph, other))
        numbers = list(graph)
        links = nx.DiGraph((n, after) for after in numbers for n in reach.direct[after])
        assert links.edges <= graph.edges
        assert nx.transitive_closure_dag(links).edges == nx.transitive_closure_dag(graph).edges
        assert [reach.before(n) for n in numbers] == [
            ancestors(graph, 1 << n) & ~(1 << n) for n in numbers
        ]


def test_what_others_follow_is_not_linked_again() -> None:
    """Each comes after all before it: the links are those of a chain."""
    reach = Reach()
    for number in range(100):
        assert reach.add((1 << number) - 1) == number
    assert reach.direct == [set(), *({number} for number in range(99))]
