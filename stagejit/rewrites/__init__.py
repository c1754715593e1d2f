"""Rewrites of graphs: `STEPS`, in the order in which they run, and `rewrite_graph`.

Input: a graph and options. Output: the same graph, simpler, and the decisions taken. Invariant: a
rewrite that is switched off changes no result.

Note [Step order]: loops come first, because what is computed before them then has its chance, too.
Simplification makes equal what only looked different, and what is one op is simpler, so both are
one step. Sums of products are contractions where it is known that nobody else reads the products.
What branches may write into is decided when it is known who else reads it. What is put together is
a value where its border is little, and else mapped part by part before parts become several; pads
that are left then may be one. Repetitions are
spread when equal ones are one value; prefixes are shared when all inserts are known, and after that
it is known what windows read. What is still put together of short rows is a value from then on,
which needs no tiles. Attention, and tiles, come when nothing else changes what reads a
product, and before sums are split, for a body is one core's work. Products that are no tiles' work
become sums then. Reductions, and running sums, are
split after all that is easier to see while they are whole. Which contractions have zeros to leave
out is said of those that there are at last. That nothing is left of a fill is said when no step
looks for pads any more. What slices of weights determine leaves a loop when nothing else changes in
its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from stagejit.base.decisions import Decision
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.graph.ir import Graph
from stagejit.graph.ops.control import bodies_of
from stagejit.options import Options
from stagejit.rewrites import (
    algebra,
    branches,
    constants,
    loops,
    products,
    subexpressions,
    sums,
    updates,
    zeros,
)
from stagejit.rewrites.attention import fuse as attention
from stagejit.rewrites.attention.fuse import fuse_attention
from stagejit.rewrites.branches import simplify_branches, update_branches
from stagejit.rewrites.driving.driver import GraphStep, LocalStep, Log, Step, Watch, run_steps
from stagejit.rewrites.integers import indices, joined
from stagejit.rewrites.integers.ranges import assume
from stagejit.rewrites.loops import reads_twice, simplify_loop, simplify_loops
from stagejit.rewrites.moving import (
    bordered,
    insert_chains,
    pads,
    parts,
    prefixes,
    repeats,
    shared_pads,
    views,
    windows,
)
from stagejit.rewrites.moving.bordered import border_buffers
from stagejit.rewrites.moving.insert_chains import elide_covered_fills
from stagejit.rewrites.moving.overlays import parts as cheap_parts
from stagejit.rewrites.moving.overlays import rows as short_rows
from stagejit.rewrites.moving.overlays.parts import overlay_parts
from stagejit.rewrites.moving.overlays.rows import overlay_rows
from stagejit.rewrites.moving.prefixes import share_prefixes
from stagejit.rewrites.moving.shared_pads import share_pads
from stagejit.rewrites.split import reductions as split
from stagejit.rewrites.split import scans as split_scan
from stagejit.rewrites.tiling import fuse
from stagejit.rewrites.tiling.fuse import tile_and_fuse
from stagejit.rewrites.weights import evaluate, forms, scales
from stagejit.rewrites.weights.forms import store_weights, want_axes
from stagejit.rewrites.weights.inside import forget_bound, let_through, tell_bound, turn_inside
from stagejit.rewrites.weights.measures import of_body
from stagejit.rewrites.weights.readers import keep_what_others_read, not_stored
from stagejit.rewrites.weights.stacked import stack_weights
from stagejit.trace.weights import Weight

SIMPLIFY = LocalStep(
    "simplify",
    (
        *views.RULES,
        *pads.RULES,
        *windows.RULES,
        *algebra.RULES,
        *constants.RULES,
        *indices.RULES,
        *joined.RULES,
        *updates.RULES,
        *scales.RULES,
    ),
    subexpressions.SHARING,
)


def _share_inside(log: Log) -> None:
    """loop %a, %a body (%x, %y: f %x, f %y)  -->  loop %a body (%x: f %x)"""
    for op in log.graph.ops():
        if op.definition.is_loop and reads_twice(op):
            for made in simplify_loop(log, op):
                log.decisions += run_steps(made.attrs["body"], (SIMPLIFY,), log.options)


def _store(log: Log) -> None:
    """Weights in fewer bytes; what is made of them is simplified, too, also of all layers: it is
    known by its text, and bodies that read it are simplified."""
    before, first_id = len(log.decisions), log.graph.next_id
    store_weights(log)
    loops = [op for op in log.graph.ops() if op.id >= first_id and op.definition.is_loop]
    for body in (body for op in loops for body in bodies_of(op)):
        log.decisions += run_steps(body, (SIMPLIFY,), log.options, log.machine)
    if loops or any(decision.applied for decision in log.decisions[before:]):
        log.decisions += run_steps(log.graph, (SIMPLIFY,), log.options, log.machine)


def _simplified(change: Callable[[Log], object]) -> Callable[[Log], None]:
    """A rewrite of a graph; where it did something, views of what it gives may be one."""

    def run(log: Log) -> None:
        if change(log):
            log.decisions += run_steps(log.graph, (SIMPLIFY,), log.options, log.machine)

    return run


def _tile(log: Log) -> None:
    """Loops over tiles; a body is the work of one core, and may have tiles of its own."""
    if made := tile_and_fuse(log):
        log.decisions += run_steps(log.graph, (SIMPLIFY,), log.options, log.machine)
        alone = replace(log.machine, cores=1)
        for loop in made:
            body = loop.attrs["body"]
            log.decisions += run_steps(body, _of_tiles(body), log.options, alone)


def _of_tiles(body: Graph) -> Sequence[Step]:
    """From the tiles on: what comes before has been done for what a body is made of, but that
    products read turned what they read whole."""
    names = [step.name for step in STEPS]
    after = STEPS[names.index(fuse.NAME) :]
    return (SIMPLIFY, *after) if any(op.definition.is_product for op in body) else after


STEPS: tuple[Step, ...] = (
    GraphStep(loops.NAME, simplify_loops),
    GraphStep(branches.SIMPLIFY, simplify_branches),
    SIMPLIFY,
    GraphStep(loops.NAME, _share_inside),
    LocalStep("products", (*products.RULES, views.identity_view)),
    GraphStep(forms.NAME, _store),
    GraphStep(branches.UPDATE, update_branches),
    GraphStep(cheap_parts.NAME, overlay_parts),
    LocalStep("parts", (*parts.RULES, *pads.RULES, *views.RULES)),
    LocalStep("repeats", repeats.RULES),
    GraphStep(shared_pads.NAME, _simplified(share_pads)),
    GraphStep(prefixes.NAME, share_prefixes),
    GraphStep(bordered.NAME, border_buffers),
    GraphStep(short_rows.NAME, overlay_rows),
    GraphStep(attention.NAME, _simplified(fuse_attention)),
    GraphStep(fuse.NAME, _tile),
    GraphStep(sums.NAME, _simplified(sums.sum_products)),
    split_scan.STEP,
    split.STEP,
    zeros.STEP,
    GraphStep(insert_chains.NAME, elide_covered_fills),
    GraphStep(evaluate.NAME, stack_weights),
)


def rewrite_program(
    graph: Graph, options: Options, machine: Machine = SMALL_SERVER, watch: Watch | None = None
) -> list[Decision]:
    """The same for a graph that is no body. Bodies know which of their inputs are weights while
    they are rewritten."""
    decisions = _let_through(graph, options) if any(graph.bound) else []
    forget_bound(graph)
    why = dict[Weight, str]()
    if any(weight.form for weight in graph.weights.values()):
        decisions += _loops_first(graph, options)
        why = keep_what_others_read(graph)
        want_axes(graph)
    decisions += rewrite_graph(graph, options, machine, watch)
    if options.enabled(forms.NAME):
        decisions += not_stored(forms.NAME, graph, why)
    forget_bound(graph)
    return decisions


def _let_through(graph: Graph, options: Options) -> list[Decision]:
    """Barriers hide no weights, nor do views of them that are handed on, in bodies either."""
    step = GraphStep(evaluate.NAME, partial(turn_inside, name=evaluate.NAME))
    decisions = run_steps(graph, (step,), options)
    for op in graph.ops():
        if op.definition.has_bodies:
            tell_bound(graph, op)
        for body in bodies_of(op):
            decisions += _let_through(body, options)
    step = GraphStep(evaluate.NAME, partial(let_through, name=evaluate.NAME))
    return [*decisions, *run_steps(graph, (step,), options)]


def _loops_first(graph: Graph, options: Options) -> list[Decision]:
    """Whoever decides how a weight is stored sees who reads it: of what a loop hands on as it is,
    others read what it is."""
    decisions = []
    for op in graph.ops():
        if op.definition.has_bodies:
            tell_bound(graph, op)
        for body in bodies_of(op):
            decisions += _loops_first(body, options)
    return [*decisions, *run_steps(graph, (GraphStep(loops.NAME, simplify_loops),), options)]


def rewrite_graph(
    graph: Graph, options: Options, machine: Machine = SMALL_SERVER, watch: Watch | None = None
) -> list[Decision]:
    """Run all steps on `graph`, in place, after those of the bodies of its loops and branches.
    watch: sees the graph after each step, not the bodies."""
    decisions = []
    for op in graph.ops():
        if op.definition.has_bodies:
            assume(graph, op)
            tell_bound(graph, op)
            for body in bodies_of(op):
                decisions += rewrite_graph(body, options, machine)
                graph.measures |= of_body(op, body)
                graph.factors |= body.factors
    return [*decisions, *run_steps(graph, STEPS, options, machine, watch)]
