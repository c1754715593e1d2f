"""From a graph to its graph of dispatches, in one call; `pipeline.py` goes the same way in steps.

Input: a graph in normal form. Output: its graph of dispatches, and decisions. Invariant: `explain`
says of each elementwise op that has no dispatch of its own where it is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagejit.decisions import Decision
from stagejit.dispatch.assembly import assemble
from stagejit.dispatch.formation import form
from stagejit.dispatch.region import Draft, Region
from stagejit.dispatch.rewrites import rewrite_dispatches
from stagejit.dispatch.state import describe
from stagejit.graph.ir import Graph, Op
from stagejit.options import Options


def dispatches_of(graph: Graph, options: Options | None = None) -> tuple[Graph, list[Decision]]:
    """The graph of dispatches of a graph in normal form."""
    drafts, decisions = form(graph, options)
    dispatches, _ = assemble(graph, drafts)
    return dispatches, [*decisions, *rewrite_dispatches(dispatches, options)]


def explain_producers(
    drafts: Sequence[Draft], launched: Mapping[Draft, Op], regions: Sequence[Region]
) -> Iterator[Decision]:
    """Says where each elementwise op without a dispatch of its own is evaluated.

    launched: the op that each draft, those inside of loops and branches too, became at first. What
    was put in its place since then has its place.
    """
    at: dict[int, list[Region]] = {}
    for region in regions:
        at.setdefault(region.op.place, []).append(region)
    names: dict[Op, list[str]] = {}
    for draft in drafts:
        found = at.get(launched[draft].place, [])
        for op in draft.floating:
            names.setdefault(op, []).extend(f"@{region.name}" for region in found)
    for op, inside in names.items():
        reason = f"evaluated inside {' and '.join(inside)}"
        yield Decision("fuse-producers", describe(op), True, reason, op.loc)
    for draft in drafts:
        if draft.bodies:
            (region,) = at[launched[draft].place]
            for old, body in zip(draft.bodies, region.bodies, strict=True):
                yield from explain_producers(old.drafts, launched, body.regions)
