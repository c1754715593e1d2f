"""Checks every invariant of a `Graph`.

Input: a graph. Output: nothing, or `VerificationError` at the user's line of the op that is wrong.
Invariant: a graph that passes can be printed, parsed, interpreted and lowered; every later stage
relies on exactly what is checked here.
"""

from __future__ import annotations

import itertools
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.base.symbolic import Expr
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op
from stagejit.graph.ops import infer
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.types import DType

_PLAIN = (bool, int, float, str, DType, Layout, Encoding, Graph, Expr)


def verify(graph: Graph, *, changed_only: bool = False) -> None:
    """Raises VerificationError for the first broken invariant.

    changed_only: not of graphs that were verified before, and have not been changed since, by what
        may change graphs; of a program most steps change few bodies, or nothing.
    """
    if changed_only and _is_as_verified(graph):
        return
    _verify_shape_of_graph(graph)
    owners: dict[Graph, Op] = {}
    for op in graph.links.nodes:
        try:
            _verify_owners(op, owners)
            _verify_edges(graph, op)
            _verify_types(op)
            _verify_attributes(op)
            _verify_bodies(op, changed_only)
        except VerificationError as fault:
            raise VerificationError(f"op {op}: {fault.what}", loc=op.loc) from fault
    _verify_effect_order(graph)
    graph.analyses[_Verified] = _Verified.of(graph)


@record(eq=False)
class _Verified:
    """A graph as it was verified, with the bodies in it."""

    changes: int
    inputs: tuple[object, ...]
    bodies: tuple[tuple[Graph, object], ...]

    @classmethod
    def of(cls, graph: Graph) -> _Verified:
        bodies = (body for op in graph.links.nodes for body in op.definition.bodies(op))
        inside = tuple((body, body.analyses.get(_Verified)) for body in bodies)
        return cls(graph.changes, _inputs(graph), inside)


def _is_as_verified(graph: Graph) -> bool:
    seen = graph.analyses.get(_Verified)
    return (
        isinstance(seen, _Verified)
        and seen.changes == graph.changes
        and seen.inputs == _inputs(graph)
        and all(
            body.analyses.get(_Verified) is was and _is_as_verified(body)
            for body, was in seen.bodies
        )
    )


def _inputs(graph: Graph) -> tuple[object, ...]:
    """What may change without a change of ops or operands."""
    types = (value.type for value in graph.inputs)
    return (*types, *graph.input_names, *graph.donated, *graph.bound)


def _verify_shape_of_graph(graph: Graph) -> None:
    try:
        TopologicalSorter(graph.links.before).prepare()
    except CycleError as fault:
        raise VerificationError(f"the graph has a cycle: {fault.args[1]}") from None
    returns = [op for op in graph.links.nodes if op.definition.is_return]
    if returns != [graph.return_op]:
        raise VerificationError(f"there are {len(returns)} returns")
    inputs = [op for op in graph.links.nodes if op.definition.is_input]
    if inputs != [value.op for value in graph.inputs]:
        raise VerificationError("input ops differ from the inputs")
    given = len(graph.inputs)
    if not given == len(graph.input_names) == len(graph.donated) == len(graph.bound):
        raise VerificationError("inputs, names and donation differ in number")


def _verify_edges(graph: Graph, op: Op) -> None:
    edges = sorted(  # this runs for each op after each rewrite
        (data["operand"], data["result"], producer.id)
        for producer, parallel in graph.links.before[op].items()
        for data in parallel.values()
    )
    operands = [(i, value.index, value.op.id) for i, value in enumerate(op.operands)]
    if edges != operands:
        raise VerificationError(f"edges {edges} differ from operands {operands}")
    for value in op.operands:
        if value.op not in graph.links.nodes:
            raise VerificationError(f"{value} belongs to another graph")
        if value.op.results[value.index] is not value:
            raise VerificationError(f"{value} is no result of its op")


def verify_op(op: Op) -> None:
    """One op by itself, as soon as somebody has made it. Raises VerificationError."""
    try:
        _verify_types(op)
        _verify_attributes(op)
    except VerificationError as fault:
        raise VerificationError(f"op {op}: {fault.what}", loc=op.loc) from fault


def _verify_types(op: Op) -> None:
    expected = infer(op.kind, [value.type for value in op.operands], op.attrs)
    actual = tuple(value.type for value in op.results)
    if expected is not None and expected != actual:
        raise VerificationError(f"results are {actual}, but its operands give {expected}")
    op.definition.check(op)


def _verify_attributes(op: Op) -> None:
    for name, value in op.attrs.items():
        if not _is_plain(value) and name not in op.definition.opaque_attributes:
            raise VerificationError(f"attribute {name}={value!r} is not a plain value")
    value = op.attrs.get("value")
    if isinstance(value, np.ndarray) and value.flags.writeable:
        raise VerificationError("its value can be written to")


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, _PLAIN)


def _verify_owners(op: Op, owners: dict[Graph, Op]) -> None:
    """Whoever changes a body changes the operands of the op that has it, and of no other."""
    known = op.definition
    for body in known.bodies(op) if known.has_bodies and not known.is_dispatch else ():
        other = owners.setdefault(body, op)
        if other is not op:
            raise VerificationError(f"{body.name} is a body of {other}, too")


def _verify_bodies(op: Op, changed_only: bool) -> None:
    for body in op.definition.bodies(op):
        verify(body, changed_only=changed_only)
        for inner in body.links.nodes:
            if inner.definition.is_left:
                raise VerificationError(f"{body.name} has a delegated equation")


def _verify_effect_order(graph: Graph) -> None:
    effects = [op for op in graph if op.attrs.get("effects")]
    for before, after in itertools.pairwise(effects):
        if list(after.operands[-1:]) != list(before.results[-1:]):
            raise VerificationError(f"{after} does not take the token of {before}")
