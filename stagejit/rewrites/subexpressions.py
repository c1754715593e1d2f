"""eliminate-common-subexpressions: one op for equal ops on equal operands.

Input: an op. Output: what tells it from others, for the driver, which shares those that nothing
tells apart. Invariant: what a producer may write into (`empty`, or a `fill` that is a destination)
is never shared, because two writers into one destination would need a copy of it; delegated
equations are never merged.
"""

from __future__ import annotations

from collections.abc import Hashable

from stagejit.graph.ir import Graph, Op
from stagejit.graph.isomorphic import attribute_key
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.driver import Sharing

NAME = "eliminate-common-subexpressions"

_NEVER = frozenset({"empty", "delegate", "loop", "branch", "optimization_barrier"})
_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})


def _key(op: Op) -> Hashable:
    if op.kind in _NEVER:
        return None
    attrs = tuple((name, attribute_key(value)) for name, value in sorted(op.attrs.items()))
    operands = tuple((value.op.id, value.index) for value in op.operands)
    if function_of(op) in _COMMUTATIVE:
        operands = tuple(sorted(operands))
    return op.kind, operands, attrs, tuple(result.type for result in op.results)


def _refuse(graph: Graph, op: Op) -> str:
    uses = graph.uses(op.result) if op.kind == "fill" else ()
    if any(use.user.definition.is_insert and use.operand == 1 for use in uses):
        return "it is written into, so sharing it would add a copy"
    return ""


SHARING = Sharing(NAME, _key, _refuse, counted=frozenset({"fill"}))
