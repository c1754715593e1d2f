"""data-tiling: operands and results of products are encoded.

Input: a graph. Output: the same, where each product that may be tiled reads encoded operands, and
its readers what is no longer encoded. Invariant: the values are those of before.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.splits import is_uneven
from stagejit.index.encoding import Encoding
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.encodings.products import encodings_of, refuse, results_along
from stagejit.rewrites.weights.behind import is_determined, is_known

NAME = "data-tiling"
FEWEST_COLUMNS = 16  # for fewer, vectors run along rows of a matrix on the left, as they lie
MAY_BE_TILED = "its operands may be tiled as the target wants them"


def encode_products(log: Log) -> None:
    """contract %x, %w  -->  unset (set (contract (set %x), (set %w)))"""
    for op in log.graph.ops():
        if not op.definition.is_product:
            continue
        if reason := refuse(op, at_bind=is_packed_at_bind(log.graph, op)):
            log.decline(NAME, op, reason)
        else:
            _encode(log, op)


def is_packed_at_bind(graph: Graph, op: Op) -> bool:
    """Whether weights, or constants, are the larger operand."""
    if not all(value.type.has_numbers for value in op.operands):
        return False
    matrix = max(op.operands, key=lambda value: value.type.size)
    return is_known(graph, matrix)


def _encode(log: Log, op: Op) -> None:
    """In place: the product stays where it is in the order."""
    graph, encodings, uses = log.graph, encodings_of(op), log.graph.uses(op.result)
    log.apply(NAME, op, MAY_BE_TILED)
    for number, encoding in enumerate(encodings.operands):
        value = op.operands[number]
        # Of parts of several lengths only whoever sums them knows where the last one ends.
        if encoding is None or is_uneven(value.op):
            continue
        if number == 1 or not _stays(log, op, value):
            encoded = build(graph, "set_encoding", [value], op.loc, encoding=encoding)
            graph.set_operand(op, number, encoded)
            graph.put_at(op, encoded.op)
    after = encoded_and_back(log, op, encodings.result)
    for use in uses:
        graph.set_operand(use.user, use.operand, after)


def _stays(log: Log, op: Op, weight: Value) -> bool:
    """Whether what stands on the left is a weight that few columns are multiplied by."""
    few = results_along(op, encodings_of(op).result.axes, "n") < FEWEST_COLUMNS
    if not few or not is_determined(log.graph, weight):
        return False
    log.decline(NAME, op, f"fewer than {FEWEST_COLUMNS} columns: rows are read as they lie")
    return True


def encoded_and_back(log: Log, op: Op, encoding: Encoding) -> Value:
    """What an op gives, through memory that is encoded."""
    encoded = build(log.graph, "set_encoding", [op.result], op.loc, encoding=encoding)
    after = build(log.graph, "unset_encoding", [encoded], op.loc)
    log.graph.put_at(op, encoded.op, after.op)
    return after
