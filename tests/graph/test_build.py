"""From a program to a graph, one op for each equation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.graph.build import build_graph, graph_of
from stagejit.graph.verifier import verify
from stagejit.trace.translate import trace_jaxpr

X = np.ones((2, 3), np.float32)


def test_ops_are_in_the_order_of_the_equations() -> None:
    jaxpr = jax.make_jaxpr(lambda x, y: (jnp.exp(x) + y, jnp.sin(y)))(X, X)
    program = trace_jaxpr(jaxpr, name="f", donated=(False, True), argument_names=("x", "y"))
    graph = build_graph(program)
    verify(graph)
    assert [op.kind for op in graph] == [equation.kind for equation in program.equations]
    assert [op.loc for op in graph] == [equation.loc for equation in program.equations]
    assert graph.input_names == ["x", "y"]
    assert graph.donated == [False, True]
    assert [value.type for value in graph.outputs] == [var.type for var in program.outputs]


def test_graph_of_takes_pytrees_and_abstract_arrays() -> None:
    abstract = jax.ShapeDtypeStruct((2, 3), np.float32)
    graph = graph_of(lambda params, x: params["w"] * x + params["b"], {"w": X, "b": X}, abstract)
    assert len(graph.inputs) == 3
    assert graph.name == "f"
    verify(graph)


def test_a_function_of_nothing() -> None:
    graph = graph_of(lambda: (jnp.zeros(3), 1.0))
    assert graph.inputs == []
    verify(graph)
