"""Data tiling, late: operands of products are encoded, and what each becomes is decided by a target
that does not exist yet. To read in this order: `products.py` (what is encoded how), `choose.py`,
`propagate.py`, `bodies.py`, `elide.py`.

Input: a graph in normal form. Output: the same graph, with encodings where they pay whatever the
target is, and decisions. Invariant: nothing here knows a target, and no encoding changes a value.

Note [Materialize, then elide]: every operand of a product that may be tiled is encoded first, then
encodings move to where they cost least, and those that whoever multiplies makes as well himself go
again: a kernel packs what it reads, while it is warm. What stays is the work of others: constants,
which are packed once for all calls, and what one product stores for the next one.
"""

from __future__ import annotations

from stagejit.base.decisions import Decision
from stagejit.graph.ir import Graph
from stagejit.graph.ops.control import bodies_of
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.encodings import bodies, choose, elide, propagate

STEPS = (
    GraphStep(choose.NAME, choose.encode_products),
    GraphStep(propagate.NAME, propagate.propagate_encodings),
    GraphStep(bodies.NAME, bodies.encode_operands),
    GraphStep(elide.NAME, elide.elide_packs),
)


def encode_graph(graph: Graph, options: Options) -> list[Decision]:
    """Runs all steps on `graph`, in place, and before on the bodies of its loops and branches."""
    decisions = _encode(graph, options)
    bodies.forget_known(graph)
    return decisions


def _encode(graph: Graph, options: Options) -> list[Decision]:
    decisions, controls = [], [op for op in graph.ops() if op.definition.has_bodies]
    for op in controls:
        bodies.tell_known(graph, op)
        for body in bodies_of(op):
            decisions += _encode(body, options)
    if controls or any(op.definition.is_product for op in graph.ops()):
        decisions += run_steps(graph, STEPS, options)
    return decisions
