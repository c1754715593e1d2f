"""From a function to its schedule, with every verifier on the way, and to results by the
executor."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagejit.base.decisions import Decision
from stagejit.dispatch.assembly import assemble
from stagejit.dispatch.forming.formation import form
from stagejit.dispatch.operands import verify_operands
from stagejit.dispatch.origins.producers import explain_producers
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.regions import Region, regions_of
from stagejit.dispatch.rewrites import rewrite_dispatches
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.dispatch.verifier import verify_kinds
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text as graph_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.normal_form import normalize, verify_normal_form
from stagejit.schedule.build import schedule
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.schedule import Schedule
from stagejit.schedule.verifier.plans import verify_plan
from stagejit.schedule.verifier.waves import verify_waves
from stagejit.trace.translate import graph_of
from tests.schedule.execution.settling import Settling


def schedule_graph(graph: Graph, options: Options | None = None) -> Schedule:
    options = options or Options()
    normalize(graph)
    verify(graph)
    verify_normal_form(graph)
    before = graph_text(graph)
    dispatches, decisions = checked_dispatches(graph, options)
    made = schedule(dispatches, regions_of(dispatches, options), options, decisions)
    assert graph_text(graph) == before
    verify_plan(made.plan)
    verify_waves(made)
    text = made.plan.as_text()
    assert parse_plan(text).as_text() == text
    verify_plan(parse_plan(text))
    return made


def checked_dispatches(graph: Graph, options: Options) -> tuple[Graph, list[Decision]]:
    """The graph of dispatches, whose text parses back."""
    grouping, decisions = form(graph, options)
    dispatches, launched = assemble(grouping)
    _verify_dispatches(dispatches, options)
    more, replaced = rewrite_dispatches(dispatches, options)
    decisions += more
    where = Whereabouts(grouping, launched, replaced, regions_of(dispatches, options))
    decisions += explain_producers(where)
    _verify_dispatches(dispatches, options)
    verify_operands(dispatches, options.operand_limit)
    text = graph_text(dispatches)
    if "opaque" not in text:
        assert graph_text(parse(text)) == text
    return dispatches, decisions


def _verify_dispatches(dispatches: Graph, options: Options) -> None:
    verify(dispatches)
    regions = regions_of(dispatches, options)
    verify_kinds(regions)
    verify_ties(dispatches, regions)


def prepared(
    fn: Callable[..., Any],
    args: Sequence[Any],
    donated: Sequence[bool] = (),
    options: Options | None = None,
) -> Graph:
    graph = graph_of(fn, *args, donated=donated)
    rewrite_graph(graph, options or Options())
    normalize(graph)
    graph.eliminate_dead()
    return graph


def plan_of(
    fn: Callable[..., Any], *args: Any, donated: Sequence[bool] = (), options: Options | None = None
) -> Plan:
    return schedule_graph(prepared(fn, args, donated, options), options).plan


def regions_in(fn: Callable[..., Any], *args: Any, options: Options | None = None) -> list[Region]:
    """The regions of a function."""
    dispatches, _ = checked_dispatches(prepared(fn, args, (), options), options or Options())
    return regions_of(dispatches, options)


def check(
    fn: Callable[..., Any],
    *args: Any,
    donated: Sequence[bool] = (),
    options: Options | None = None,
    orders: int = 2,
) -> Plan:
    """Schedules and runs `fn`; its results must be those of the interpreter, bit by bit."""
    graph = prepared(fn, args, donated, options)
    return check_graph(graph, _leaves(args), options, orders)


def check_graph(
    graph: Graph, arrays: Sequence[Any], options: Options | None = None, orders: int = 2
) -> Plan:
    expected = interpret(graph, arrays)
    made = schedule_graph(graph, options)
    for a, b in zip(interpret(made.graph, arrays), expected, strict=True):
        np.testing.assert_array_equal(without_void(a), without_void(b))
    for seed in range(orders):
        got = Settling(made, random.Random(seed) if seed else None)(arrays)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(without_void(a), without_void(b))
    return made.plan


def without_void(x: Any) -> Any:
    """NumPy knows no NaN of bfloat16."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _leaves(args: Sequence[Any]) -> list[Any]:
    leaves: list[Any] = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            leaves += _leaves(arg)
        elif isinstance(arg, dict):
            leaves += _leaves([arg[key] for key in sorted(arg)])
        else:
            leaves.append(np.asarray(arg))
    return leaves
