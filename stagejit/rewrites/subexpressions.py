"""eliminate-common-subexpressions: one op for equal ops on equal operands.

Input: the whole graph. Output: later duplicates replaced by the first. Invariant: what a producer
may write into (`empty`, or a `fill` that is a destination) is never shared, because two writers
into one destination would need a copy of it; delegated equations are never merged.
"""

from __future__ import annotations

from typing import Any

from stagejit.graph.ir import Graph, Op
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.driver import Log

NAME = "eliminate-common-subexpressions"

_NEVER = frozenset({"empty", "delegate", "loop", "branch", "optimization_barrier"})
_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})


def eliminate_common_subexpressions(log: Log) -> None:
    """%a = op %x; %b = op %x  -->  %a, with every use of %b reading %a"""
    first: dict[Any, Op] = {}
    for op in log.graph.ops():
        if op.kind in _NEVER:
            continue
        earlier = first.setdefault(_key(op), op)
        if earlier is op:
            continue
        if op.kind == "fill" and _is_destination(log.graph, op):
            log.decline(NAME, op, "it is written into, so sharing it would add a copy")
            continue
        log.replace_results(NAME, op, earlier.results, f"equal to {earlier}")


def _key(op: Op) -> Any:
    attrs = tuple((name, attribute_key(value)) for name, value in sorted(op.attrs.items()))
    operands = tuple((value.op.id, value.index) for value in op.operands)
    if function_of(op) in _COMMUTATIVE:
        operands = tuple(sorted(operands))
    return op.kind, operands, attrs, tuple(result.type for result in op.results)


def _is_destination(graph: Graph, op: Op) -> bool:
    return any(use.user.definition.is_insert and use.operand == 1 for use in graph.uses(op.result))
