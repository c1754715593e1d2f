"""A plan as a graph of networkx.

Input: dispatches, barriers. Output: the dispatches by name, with the barriers between them.
Invariant: see Note [networkx is loaded late] of `graph/links.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from stagejit.base.threads.importing import importing
from stagejit.schedule.conflicts.access import Barrier
from stagejit.schedule.conflicts.hazards import Touching

if TYPE_CHECKING:
    import networkx as nx

Network: TypeAlias = "nx.DiGraph[str]"


def network_of(dispatches: Iterable[Touching], barriers: Iterable[Barrier]) -> Network:
    """An attribute `dispatch` of each name, a list `barriers` of each edge."""
    with importing:
        import networkx as nx
    graph: Network = nx.DiGraph()
    for dispatch in dispatches:
        graph.add_node(dispatch.name, dispatch=dispatch)
    for barrier in barriers:
        if not graph.has_edge(barrier.src, barrier.dst):
            graph.add_edge(barrier.src, barrier.dst, barriers=[])
        graph.edges[barrier.src, barrier.dst]["barriers"].append(barrier)
    return graph
