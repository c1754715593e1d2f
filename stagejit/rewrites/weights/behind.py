"""What a value is computed from: weights and constants alone, or arguments, too.

Input: a graph in which inputs may be bound. Output: an answer about one value. Invariant: a walk
that is long ends; what it does not know counts as an argument.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Value

_MOST_OPS = 256


def weights_behind(graph: Graph, value: Value) -> frozenset[Value] | None:
    """The bound inputs that alone, with constants, determine a value; None where anything else
    does."""
    found, seen, pending = set[Value](), {value}, [value]
    while pending:
        at = pending.pop()
        known = at.op.definition
        if known.is_input:
            if not graph.is_bound(at):
                return None
            found.add(at)
        elif known.is_foreign or known.has_bodies or known.forwards or len(seen) > _MOST_OPS:
            return None
        new = [x for x in at.op.operands if x not in seen]
        seen.update(new)
        pending += new
    return frozenset(found)


def is_widened(value: Value) -> bool:
    """Whether fewer bytes are read than the value has: it is converted where it is read."""
    op = value.op
    while op.definition.is_pointwise and op.operands:
        inner = op.operands[0]
        if op.definition.is_conversion and inner.type.dtype.bits < op.result.type.dtype.bits:
            return True
        op = inner.op
    return False


def is_determined(graph: Graph, value: Value) -> bool:
    """Whether weights, at least one, determine the value."""
    return any(graph.bound) and bool(weights_behind(graph, value))
