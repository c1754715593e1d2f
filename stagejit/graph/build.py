"""From a `Program` to a `Graph`: one op for each equation.

Input: a traced program. Output: the graph that rewrites start from. Invariant: op order is equation
order, so the dump of a fresh graph reads like the user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stagejit.graph.ir import Graph, Value
from stagejit.trace.program import Program, Var
from stagejit.trace.translate import trace_jaxpr


def build_graph(program: Program) -> Graph:
    """The graph of a program."""
    graph = Graph(program.name)
    values: dict[Var, Value] = {}
    for var, name, donated in zip(
        program.inputs, program.input_names, program.donated, strict=True
    ):
        values[var] = graph.add_input(name, var.type, donated=donated)
    for equation in program.equations:
        op = graph.add(
            equation.kind,
            [values[operand] for operand in equation.operands],
            [result.type for result in equation.results],
            equation.loc,
            **{name: _built(value) for name, value in equation.attrs.items()},
        )
        values.update(zip(equation.results, op.results, strict=True))
    graph.set_outputs([values[output] for output in program.outputs])
    return graph


def _built(attribute: Any) -> Any:
    """The bodies of loops and branches are programs in a program, and graphs in a graph."""
    if isinstance(attribute, Program):
        return build_graph(attribute)
    if isinstance(attribute, tuple):
        return tuple(_built(item) for item in attribute)
    return attribute


def graph_of(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    donated: Sequence[bool] = (),
    delegate: bool = True,
) -> Graph:
    """The graph of a function of arrays, before any rewrite; for tests and for looking at.

    args: arrays, pytrees of arrays or `jax.ShapeDtypeStruct`s.
    """
    closed_jaxpr = jax.make_jaxpr(fn)(*args)
    name = name or getattr(fn, "__name__", "f").replace("<lambda>", "f")
    return build_graph(trace_jaxpr(closed_jaxpr, name=name, donated=donated, delegate=delegate))
