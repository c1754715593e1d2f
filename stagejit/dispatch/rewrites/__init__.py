"""Rewrites of graphs of dispatches: `STEPS`, in the order in which they run.

Input: a graph of dispatches, options. Output: the same graph, and the decisions taken. Invariant:
its meaning and its ties stay right after each step (`dispatch/ties_verifier.py`); a rewrite that is
switched off changes no result.

Note [Order of rewrites]: dispatches that are too large become several first, while nobody
overwrites what others read; after that none becomes too large. Copies go before producers place
their values, because who places what it is made of overwrites what it reads. Fills become borders
last, when it is known who places what.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.decisions import Decision
from stagejit.dispatch.bodies import known_inside
from stagejit.dispatch.rewrites import copies, inserts, limits, pads, placed
from stagejit.dispatch.rewrites.views import Views
from stagejit.dispatch.scalars import known_arguments
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, carried_inputs
from stagejit.options import Options
from stagejit.rewrites.driver import Log
from stagejit.symbolic import Int

STEPS = (
    (limits.NAME, limits.limit_operands),
    (copies.NAME, copies.elide_copies),
    (inserts.NAME, inserts.fuse_inserts),
    (placed.NAME, placed.read_where_placed),
    (pads.NAME, pads.fuse_pads),
)


def rewrite_dispatches(
    graph: Graph,
    options: Options | None = None,
    known: Mapping[Value, Int] | None = None,
    carried: Mapping[int, int] | None = None,
) -> tuple[list[Decision], dict[Op, Op]]:
    """Runs all steps on `graph`, in place, and on the bodies of its loops and branches. Also
    returns what was put in place of ops.

    known, carried: see `Views`; the defaults are those of a graph that is no body.
    """
    options = options or Options()
    views = Views(graph, options, known_arguments(graph) if known is None else known, carried)
    log = Log(graph, options)
    for op in graph.ops():
        if not op.definition.is_dispatch and op.definition.has_bodies:
            for number, body in enumerate(bodies_of(op)):
                inside = known_inside(op, number, views.scalars)
                pairs = carried_inputs(op, number)
                decisions, replaced = rewrite_dispatches(body, options, inside, pairs)
                log.decisions += decisions
                views.replaced |= replaced
    for name, step in STEPS:
        if options.enabled(name):
            first_new = graph.next_id
            step(log, views)
            if graph.next_id > first_new:
                graph.eliminate_dead()
    return log.decisions, views.replaced
