"""What rewrites of a user's may do wrong: each is an ExtensionError that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.extending import writing as w
from tests.extending.faults.programs import OTHER, X, f

Rewriting = Callable[[w.Graph, w.Op], Any]
OfGraphs = Callable[..., Any]


# -- rewrites of ops


def negated(graph: w.Graph, value: w.Value) -> w.Value:
    made: w.Value = w.build(graph, "map", [value], fn="neg", dtype=w.f32)
    return made


def of_another_graph(graph: w.Graph, op: w.Op) -> Any:
    return w.parse(OTHER).outputs[0]


def of_itself(graph: w.Graph, op: w.Op) -> Any:
    return negated(graph, op.result)


def of_itself_once_more(graph: w.Graph, op: w.Op) -> Any:
    return w.build(graph, "map", op.operands, fn="exp", dtype=w.f32)


def of_more_and_more(graph: w.Graph, op: w.Op) -> Any:
    """The package takes two negations away again."""
    twice = negated(graph, negated(graph, op.operands[0]))
    return w.build(graph, "map", [twice], fn="exp", dtype=w.f32)


def of_another_type(graph: w.Graph, op: w.Op) -> Any:
    return w.filled(graph, 1.0, w.TensorType(w.f64, (3, 4)))


def of_nothing_returned(graph: w.Graph, op: w.Op) -> Any:
    graph.set_outputs([])


def of_less_returned(graph: w.Graph, op: w.Op) -> Any:
    graph.set_outputs([w.filled(graph, 1.0, w.TensorType(w.f32, (3,)))])


def of_a_missing_op(graph: w.Graph, op: w.Op) -> Any:
    graph.nx.remove_node(op)


@pytest.mark.parametrize(
    ("rewriting", "said"),
    [
        (of_another_graph, "returned a value of another graph"),
        (of_itself, ""),
        (of_itself_once_more, "do not end"),
        (of_more_and_more, "do not end"),
        (of_another_type, "replaced a f32"),
        (of_nothing_returned, "returns nothing instead of f32[3,4]"),
        (of_less_returned, "returns f32[3] instead of f32[3,4]"),
        (of_a_missing_op, ""),
    ],
)
def test_rules(fault: Callable[..., str], rewriting: Rewriting, said: str) -> None:
    def rule(graph: w.Graph, op: w.Op) -> Any:
        """map exp %x  -->  something wrong"""
        return rewriting(graph, op)

    assert said in fault(extending.rewrite("wrong", roots="map", functions="exp")(rule))


def test_a_rule_of_ops_with_several_results(fault: Callable[..., str]) -> None:
    @extending.rewrite("wrong", roots="sort")
    def first(graph: w.Graph, op: w.Op) -> Any:
        """sort %x, %y  -->  %x"""
        return op.operands[0]

    said = fault(first, lambda x: jax.lax.sort((x, 2 * x), num_keys=1))
    assert "which has 2 results" in said


@pytest.mark.parametrize("operand", [1, 9, -3])
def test_an_operand_that_some_ops_have_not_is_none_of_them(operand: int) -> None:
    @extending.rewrite("of-a-sum", roots="map", of="map", operand=operand)
    def of_a_sum(graph: w.Graph, op: w.Op) -> Any:
        """map %x, (map %y)  -->  itself"""
        return extending.declined("seen")

    made = stagejit.jit(f, options=stagejit.Options(extensions=of_a_sum, delegate=False))
    np.testing.assert_allclose(made(X), jax.jit(f)(X), rtol=1e-6)


# -- rewrites of graphs


def replaces_by_another_type(log: w.Log) -> None:
    for op in log.graph.ops():
        if op.kind == "reduce":
            log.replace("wrong", op, op.operands[0], "it is larger")


def replaces_by_what_needs_it(log: w.Log) -> None:
    op = next(op for op in log.graph.ops() if op.attrs.get("fn") == "exp")
    log.replace("wrong", op, negated(log.graph, op.result), "it needs itself")


def returns_nothing(log: w.Log) -> None:
    log.graph.set_outputs([])


def takes_an_op_away(log: w.Log) -> None:
    log.graph.nx.remove_node(log.graph.ops()[0])


def loses_the_graph(log: Any) -> None:
    log.graph = None


def returns_its_argument(log: Any, views: Any) -> None:
    log.graph.set_outputs(log.graph.inputs)


def takes_a_dispatch_away(log: w.Log, views: Any) -> None:
    op = next(op for op in log.graph.ops() if op.definition.is_dispatch)
    log.graph.nx.remove_node(op)


@pytest.mark.parametrize(
    "rewriting",
    [
        replaces_by_another_type,
        replaces_by_what_needs_it,
        returns_nothing,
        takes_an_op_away,
        loses_the_graph,
    ],
)
def test_rewrites_of_graphs(fault: Callable[..., str], rewriting: OfGraphs) -> None:
    fault(extending.graph_rewrite("wrong", after="simplify")(rewriting))


@pytest.mark.parametrize(
    "rewriting",
    [
        lambda log, views: log.graph.set_outputs([]),
        returns_its_argument,
        takes_a_dispatch_away,
    ],
)
@pytest.mark.parametrize("at", [0, -1])
def test_rewrites_of_dispatches(fault: Callable[..., str], rewriting: OfGraphs, at: int) -> None:
    place = extending.steps()["dispatch"][at]
    fault(extending.dispatch_rewrite("wrong", after=place)(rewriting))


# -- what decisions say


def of_a_number(graph: w.Graph, op: w.Op) -> Any:
    """a  -->  b"""
    return extending.declined(3)  # type: ignore[arg-type]


def test_reasons_are_texts(fault: Callable[..., str]) -> None:
    made = extending.rewrite("mine", roots="map")(of_a_number)
    assert "a reason is a text that says why, not 3" in fault(made)
    for reason in (None, "", 7):

        def whole(log: Any, reason: Any = reason) -> None:
            log.decline("mine", next(op for op in log.graph.ops() if op.results), reason)

        said = fault(extending.graph_rewrite("mine", after="simplify")(whole))
        assert f"a reason is a text that says why, not {reason!r}" in said


def test_decisions_have_the_name_of_whose_they_are(fault: Callable[..., str]) -> None:
    def whole(log: Any, views: Any = None) -> None:
        log.decline("fuse-insert", next(op for op in log.graph.ops() if op.results), "so")

    said = fault(extending.graph_rewrite("mine", after="simplify")(whole))
    assert "recorded a decision of 'fuse-insert'; its name is 'mine'" in said
    step = extending.steps()["dispatch"][-1]
    said = fault(extending.dispatch_rewrite("mine", after=step)(whole))
    assert "recorded a decision of 'fuse-insert'" in said
