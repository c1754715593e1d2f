"""Rewrites of graphs of dispatches: `STEPS`, in the order in which they run.

Input: a graph of dispatches, options. Output: the same graph, and the decisions taken. Invariant:
its meaning and its ties stay right after each step (`dispatch/ties_verifier.py`); a rewrite that is
switched off changes no result.

Note [Order of rewrites]: dispatches that are too large become several first, while nobody
overwrites what others read; after that none becomes too large. Copies go before producers place
their values, because who places what it is made of overwrites what it reads. Fills become borders
last, when it is known who places what. Steps of users stand beside one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagejit.base.decisions import Decision
from stagejit.base.extension import Extension
from stagejit.base.symbolic import Int
from stagejit.dispatch.bodies import known_inside
from stagejit.dispatch.ranges.scalars import known_arguments
from stagejit.dispatch.regions import regions_of
from stagejit.dispatch.rewrites import copies, inserts, limits, pads, placed
from stagejit.dispatch.rewrites.views import Views
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.dispatch.verifier import verify_kinds
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, carried_inputs
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites.driving.comparison import Meaning, require_the_same
from stagejit.rewrites.driving.driver import Log, Watch, returned_by, verify_returned
from stagejit.rewrites.driving.rules import require_own

Rewrite = Callable[[Log, Views], None]
STEPS: tuple[tuple[str, Rewrite], ...] = (
    (limits.NAME, limits.limit_operands),
    (copies.NAME, copies.elide_copies),
    (inserts.NAME, inserts.fuse_inserts),
    (placed.NAME, placed.read_where_placed),
    (pads.NAME, pads.fuse_pads),
)


@dataclass(frozen=True, eq=False, repr=False)
class OwnDispatchStep(Extension):
    """A step of a user's, before or after the one of that name."""

    function: Rewrite
    anchor: str
    is_after: bool


def _with_own(options: Options) -> Iterator[tuple[str, Rewrite, OwnDispatchStep | None]]:
    """All steps that are enabled, in order, by name."""
    if not options.extensions:
        yield from ((name, step, None) for name, step in STEPS if options.enabled(name))
        return
    own = options.parts_of(OwnDispatchStep)
    for name, step in STEPS:
        near = [each for each in own if each.anchor == name]
        yield from ((each.name, each.function, each) for each in near if not each.is_after)
        if options.enabled(name):
            yield name, step, None
        yield from ((each.name, each.function, each) for each in near if each.is_after)


def rewrite_dispatches(
    graph: Graph,
    options: Options | None = None,
    known: Mapping[Value, Int] | None = None,
    carried: Mapping[int, int] | None = None,
    watch: Watch | None = None,
) -> tuple[list[Decision], dict[Op, Sequence[Op]]]:
    """Runs all steps on `graph`, in place, and on the bodies of its loops and branches. Also
    returns what was put in place of ops.

    known, carried: see `Views`; the defaults are those of a graph that is no body. watch: sees the
    graph after each step, not the bodies.
    """
    options = options or Options()
    views = Views(graph, options, known_arguments(graph) if known is None else known, carried)
    log, inner = Log(graph, options), dict[Op, Sequence[Op]]()
    for op in graph.ops():
        if not op.definition.is_dispatch and op.definition.has_bodies:
            for number, body in enumerate(bodies_of(op)):
                inside = known_inside(op, number, views.scalars)
                pairs = carried_inputs(op, number)
                decisions, replaced = rewrite_dispatches(body, options, inside, pairs)
                log.decisions += decisions
                inner |= replaced
    for name, step, own in _with_own(options):
        first_new, decided = graph.next_id, len(log.decisions)
        before = Meaning(graph, graph.outputs) if own is not None and options.verify else None
        if own is None:
            step(log, views)
        else:
            promised = returned_by(graph)
            with own.running("failed as it rewrote a graph of dispatches"):
                step(log, views)
            require_own(log.decisions[decided:], own)
            verify_returned(graph, promised, own)
        if graph.next_id > first_new:
            graph.eliminate_dead()
        if watch is not None:
            watch(name, graph, log.decisions[decided:])
        if own is not None:
            _verify(graph, options, carried, own)
            if before is not None:
                require_the_same(before, Meaning(graph, graph.outputs), own)
    ones = {op: (made,) for op, made in views.replaced.items()}
    return log.decisions, {**inner, **ones, **views.divided}


def _verify(
    graph: Graph, options: Options, carried: Mapping[int, int] | None, own: OwnDispatchStep
) -> None:
    """Raises ExtensionError for what a user's step left that is no graph of dispatches."""
    try:
        verify(graph)
        regions = regions_of(graph, options)
        verify_kinds(regions)
        verify_ties(graph, regions, carried)
    except VerificationError as fault:
        raise own.fault(f"left dispatches that do not fit: {fault.what}") from fault
