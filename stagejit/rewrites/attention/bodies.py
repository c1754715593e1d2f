"""What becomes of scores before their softmax, and of weights after it, as graphs.

Input: a value, and the source that it is made of. Output: which values its graph reads beside the
source, and the graph. Invariant: a graph evaluates an element from elements; what is evaluated
there is made up of numbers and positions, only another view, or read by nobody else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.rewrites.cloning import cloned
from stagejit.rewrites.tiling.surroundings import Surroundings
from stagejit.types import TensorType


def is_of_element(op: Op) -> bool:
    """Whether a body may have it."""
    known = op.definition
    if len(op.results) != 1 or known.splits or not op.result.type.has_numbers:
        return False
    if known.is_view:
        return len(op.operands) == 1
    if known.is_constant:
        return op.result.type.size == 1 and op.result.type.dtype.is_native
    return known.is_elementwise or known.is_free


def made_of(values: Iterable[Value], sources: Collection[Value]) -> dict[Op, bool]:
    """The ops behind values, up to the sources, and whether they are made of a source."""
    found: dict[Op, bool] = {}
    pending = [value.op for value in values if value not in sources]
    while pending:
        op = pending[-1]
        if op in found:
            pending.pop()
            continue
        operands = [x for x in op.operands if x not in sources] if is_of_element(op) else []
        if missing := [x.op for x in operands if x.op not in found]:
            pending += missing
            continue
        known = is_of_element(op) and any(x in sources or found[x.op] for x in op.operands)
        found[pending.pop()] = known
    return found


def leaves_of(
    graph: Graph,
    values: Sequence[Value],
    source: Value,
    cluster: Collection[Op],
    surroundings: Surroundings,
) -> list[Value]:
    """What a graph of `values` reads beside the source. cluster: ops that will be no more."""
    found = made_of(values, (source,))
    size, inside = source.type.size, {*cluster}
    leaves: dict[Value, None] = {}
    ordered = sorted(found, key=surroundings.place, reverse=True)
    wanted = {value.op for value in values if value is not source}
    for op in ordered:
        if op not in wanted:
            continue
        if not found[op] and not _evaluated(graph, op, size, inside, surroundings):
            leaves |= dict.fromkeys(op.results)
            continue
        inside.add(op)
        wanted |= {x.op for x in op.operands if x is not source}
    return sorted(leaves, key=lambda value: (surroundings.place(value.op), value.op.id))


def _evaluated(
    graph: Graph, op: Op, size: int, inside: Collection[Op], surroundings: Surroundings
) -> bool:
    """Whether a graph evaluates what is made of no source itself."""
    known = op.definition
    if not is_of_element(op):
        return False
    if known.is_view or known.is_free or _is_made_up(op.result, surroundings):
        return True
    alone = all(user in inside for user in graph.users(op.result))
    return alone and op.result.type.size >= size


def counts(value: Value) -> bool:
    """Whether it is a constant whose elements are their own index, as jnp.arange gives outside of a
    program."""
    op, dtype = value.op, value.type.dtype
    if not op.definition.is_constant or not dtype.is_integer or value.type.rank != 1:
        return False
    return np.array_equal(op.attrs["value"], np.arange(value.shape[0]))


def _is_made_up(value: Value, surroundings: Surroundings) -> bool:
    """Of numbers and positions, some of which may be constants that count."""
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen or counts(value) or surroundings.is_made_up(value):
            continue
        if not is_of_element(value.op) or not value.op.operands:
            return False
        seen.add(value)
        pending += value.op.operands
    return True


def body_of(
    name: str, source: Value, type: TensorType, leaves: Sequence[Value], outputs: Sequence[Value],
    order: Sequence[int] = (),
) -> Graph:  # fmt: skip
    """The graph that computes outputs of the source, which it takes as this type, of which a
    transpose in this order gives its own. leaves: its other inputs; those that count are made."""
    body = Graph(name)
    given = body.add_input("x", type)
    if tuple(order) != tuple(range(len(order))):
        given = build(body, "transpose", (given,), permutation=tuple(order))
    known = {source: given}
    for leaf in leaves:
        if counts(leaf):
            attrs = {"shape": leaf.shape, "dtype": leaf.type.dtype, "axis": 0}
            known[leaf] = build(body, "iota", (), leaf.op.loc, **attrs)
        else:
            known[leaf] = body.add_input(f"a{len(body.inputs) - 1}", leaf.type)
    known |= cloned(body, list(dict.fromkeys(outputs)), known)
    body.set_outputs([known[value] for value in outputs])
    return body
