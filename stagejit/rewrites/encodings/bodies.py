"""Encodings of weights and constants that bodies read: outside of them, where each is packed once.

Input: a loop or branch, the bodies of which are encoded. Output: the same, whose operands are
encoded. Invariant: an input of a body has the type of its operand, or of a slice of it; what is
packed in a body is no weight, or read as it lies there, too.

Layers that a loop goes through are slices of one weight: all of them are packed, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.control import bodies_of, given, given_at, given_type, is_sliced
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.encodings.propagate import encoding_of, is_set

NAME = "propagate-encodings"


def is_known_before(graph: Graph, value: Value) -> bool:
    """Whether it is there before any call, in memory."""
    return value.op.definition.is_constant or graph.is_bound(value)


def tell_known(graph: Graph, op: Op) -> None:
    """loop (const), %w bound (body: %a, %b)  -->  the same (body: %a bound, %b bound)"""
    for at, inputs in given(op).items():
        for body, inner in inputs:
            body.bound[inner.op.attrs["index"]] = is_known_before(graph, op.operands[at])


def encode_operands(log: Log) -> None:
    """loop %w bound (body: %v: contract %x, (set %v))  -->  loop (set %w) (body: %v: contract %x,
    %v)"""
    for op in log.graph.ops():
        if op.definition.has_bodies:
            for at, inputs in given(op).items():
                _encode(log, op, at, inputs)


def _encode(log: Log, op: Op, at: int, inputs: Sequence[tuple[Graph, Value]]) -> None:
    """inputs: what bodies are given of the operand."""
    graph, operand = log.graph, op.operands[at]
    users = [(body, user) for body, inner in inputs for user in body.users(inner)]
    if not users or not is_known_before(graph, operand):
        return
    if not all(is_set(user) for _, user in users):
        return
    encodings = {encoding_of(user) for _, user in users}
    if len(encodings) > 1:
        log.decline(NAME, op, "its bodies want a weight in several tiles")
        return
    encoding = encodings.pop()
    encoding = encoding.stacked if is_sliced(op, at) else encoding
    encoded = build(graph, "set_encoding", [operand], users[0][1].loc, encoding=encoding)
    graph.put_at(op, encoded.op)
    log.apply(NAME, op, f"operand {at} is tiled before it, as its bodies want it")
    graph.set_operand(op, at, encoded)
    for body, inner in inputs:
        inner.type = given_type(op, at)
        for user in body.users(inner):
            body.replace_uses(user.result, inner)
            body.erase(user)


def agree(graph: Graph) -> None:
    """Inputs of bodies have the types that operands have now: a weight that is read elsewhere as it
    lies, or in other tiles, has another one."""
    for op in graph.ops():
        if op.definition.has_bodies:
            for at, inputs in given(op).items():
                for _, inner in inputs:
                    inner.type = given_type(op, at)
            for body in bodies_of(op):
                agree(body)


def forget_known(graph: Graph) -> None:
    for op in graph.ops():
        for body in bodies_of(op):
            body.bound[:] = [False] * len(body.inputs)
            forget_known(body)


def read_in_bodies(op: Op, value: Value) -> Iterator[tuple[int, Graph, Value]]:
    """Inputs of the bodies of `op` that `value` is, and how often each body runs, where it is
    known."""
    for at in [at for at, operand in enumerate(op.operands) if operand is value]:
        for body, inner in given_at(op, at):
            yield op.attrs.get("trip") or 1, body, inner
