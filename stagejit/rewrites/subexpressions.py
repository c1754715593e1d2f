"""eliminate-common-subexpressions: one op for equal ops on equal operands.

Input: an op. Output: what tells it from others, for the driver, which shares those that nothing
tells apart. Invariant: what a producer may write into (`empty`, or a `fill` that is a destination)
is never shared, because two writers into one destination would need a copy of it; delegated
equations, and loops with effects or Python in them, are never merged.
"""

from __future__ import annotations

from collections.abc import Hashable

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op
from stagejit.graph.isomorphic import attribute_key, isomorphic
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.python_functions import TARGET
from stagejit.rewrites.driving.driver import Sharing

NAME = "eliminate-common-subexpressions"

_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})


@record(eq=False)
class _Body:
    """Equal to a graph of the same structure, which is looked at where all else is equal."""

    graph: Graph

    def __hash__(self) -> int:
        types = [value.type for value in (*self.graph.inputs, *self.graph.outputs)]
        return hash((len(self.graph), *types))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Body) and isomorphic(self.graph, other.graph)


def _key(op: Op) -> Hashable:
    known = op.definition
    distinct = known.is_empty or known.is_left or known.orders
    if distinct or not all(map(_is_pure, known.bodies(op))):
        return None
    operands = tuple([(value.op.id, value.index) for value in op.operands])
    if function_of(op) in _COMMUTATIVE:
        operands = tuple(sorted(operands))
    return operands, computed_by(op)


def computed_by(op: Op) -> Hashable:
    """What an op makes of its operands: equal for those that do the same."""
    attrs = tuple([(name, _attribute(value)) for name, value in sorted(op.attrs.items())])
    return op.kind, attrs, tuple([result.type for result in op.results])


def _attribute(value: object) -> Hashable:
    if isinstance(value, Graph):
        return _Body(value)
    if type(value) is tuple and any(isinstance(item, Graph) for item in value):
        return tuple(map(_attribute, value))
    found: Hashable = attribute_key(value)
    return found


class _Purity:
    """Whether evaluating a graph once is as good as twice: remembered, as each body around it asks
    again. No rewrite adds what has effects, so an answer stays right, or at worst careful."""

    def __init__(self, body: Graph) -> None:
        self.holds = not any(
            op.attrs.get("effects")
            or op.definition.is_left
            or (op.definition.is_call and op.attrs["target"] == TARGET)
            or not all(map(_is_pure, op.definition.bodies(op)))
            for op in body.links.nodes
        )


def _is_pure(body: Graph) -> bool:
    found: _Purity | None = body.analyses.get(_Purity)
    if found is None:
        found = body.analyses[_Purity] = _Purity(body)
    return found.holds


def _refuse(graph: Graph, op: Op) -> str:
    uses = graph.uses(op.result) if op.definition.is_splat else ()
    if any(use.user.definition.is_insert and use.operand == 1 for use in uses):
        return "it is written into, so sharing it would add a copy"
    return ""


SHARING = Sharing(NAME, _key, _refuse, counted=frozenset({"fill"}))
