"""From a graph to its graph of dispatches in one call; `pipeline.py` goes the same way in steps."""

from __future__ import annotations

from stagejit.base.decisions import Decision
from stagejit.dispatch.assembly import assemble
from stagejit.dispatch.forming.formation import form
from stagejit.dispatch.rewrites import rewrite_dispatches
from stagejit.graph.ir import Graph
from stagejit.options import Options


def dispatches_of(graph: Graph, options: Options | None = None) -> tuple[Graph, list[Decision]]:
    """The graph of dispatches of a graph in normal form."""
    grouping, decisions = form(graph, options)
    dispatches, _ = assemble(grouping)
    return dispatches, [*decisions, *rewrite_dispatches(dispatches, options)[0]]
