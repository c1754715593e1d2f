"""Text in, one rewrite, text out: what the tests of single rules are written with."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import jax.numpy as jnp

from stagejit.base.decisions import Decision
from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import LocalStep, Rule, Step, run_steps
from stagejit.trace.weights import Budget, Weight


def rewritten(what: Rule | Step, text: str, **options: Any) -> str:
    """The body of the graph after one rewrite, and its return, without indentation."""
    return _body(run(what, text, **options)[0])


def unchanged(what: Rule | Step, text: str) -> bool:
    """True where the rewrite applied nowhere, silently or with a reason."""
    graph, decisions = run(what, text)
    return not any(decision.applied for decision in decisions) and _body(graph) == _body(
        parse(dedent(text))
    )


def reasons(what: Rule | Step, text: str, **options: Any) -> list[str]:
    """The reasons of what was declined; nothing may have been applied."""
    decisions = run(what, text, **options)[1]
    assert not any(decision.applied for decision in decisions)
    return [decision.reason for decision in decisions]


def run(what: Rule | Step, text: str, **options: Any) -> tuple[Graph, list[Decision]]:
    graph = parse(dedent(text))
    for value, name in zip(graph.inputs, graph.input_names, strict=True):
        if graph.is_bound(value):  # to ones
            ones = jnp.ones(value.shape, value.type.dtype.numpy)
            graph.weights[value] = Weight(name, ones, is_copy=False, budget=Budget(ms=1e3))
    step = LocalStep("test", (what,)) if isinstance(what, Rule) else what
    return graph, run_steps(graph, (step,), Options(verify=True, **options))


def _body(graph: Graph) -> str:
    return "\n".join(line.strip() for line in as_text(graph).splitlines()[1:-1])
