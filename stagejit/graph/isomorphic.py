"""Whether two graphs have the same structure.

Input: two graphs. Output: None, or a sentence about the first difference. Invariant: names, op
order and locations do not matter; kinds, attributes, types, sharing and order of operands do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.printer import as_text
from stagejit.types import DType


def isomorphic(a: Graph, b: Graph) -> bool:
    """True where `difference` finds none."""
    return difference(a, b) is None


def difference(a: Graph, b: Graph) -> str | None:
    """The first difference, walking from the outputs to the inputs; dead ops count too."""
    flags = (a.donated, a.bound), (b.donated, b.bound)
    if [v.type for v in a.inputs] != [v.type for v in b.inputs] or flags[0] != flags[1]:
        return f"inputs differ: {a.inputs} and {b.inputs}"
    if len(a) != len(b):
        return f"{len(a)} ops and {len(b)} ops"
    pairs: dict[Op, Op] = {}
    partner: dict[Op, Op] = {}
    todo = [(a.return_op, b.return_op), *zip(_effects(a), _effects(b), strict=False)]
    while todo:
        left, right = todo.pop()
        if left in pairs or right in partner:
            if pairs.get(left) is not right:
                return f"{left} and {right} are shared differently"
            continue
        pairs[left], partner[right] = right, left
        fault = _op_difference(left, right)
        if fault is not None:
            return f"{left} and {right}: {fault}"
        todo += [(x.op, y.op) for x, y in zip(left.operands, right.operands, strict=True)]
    return None


def _op_difference(a: Op, b: Op) -> str | None:
    if a.kind != b.kind:
        return f"kinds {a.kind} and {b.kind}"
    if [v.type for v in a.results] != [v.type for v in b.results]:
        return f"results {a.results} and {b.results}"
    if _positions(a.operands) != _positions(b.operands):
        return "operands differ in number or in which results they are"
    if a.attrs.keys() != b.attrs.keys():
        return f"attributes {sorted(a.attrs)} and {sorted(b.attrs)}"
    for name, value in a.attrs.items():
        if name != "equation" and attribute_key(value) != attribute_key(b.attrs[name]):
            return f"{name} is {value} and {b.attrs[name]}"
    return None


_INTEGERS = frozenset({int})  # of which equal ones have the same bits


def attribute_key(value: Any) -> Any:
    """A hashable stand-in for an attribute: equal keys mean the same bits."""
    if type(value) is DType:  # most are
        return value
    if type(value) in (str, int, bool):
        return type(value).__name__, value
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Graph):
        return "graph", as_text(value)
    if isinstance(value, tuple):
        return value if _INTEGERS.issuperset(map(type, value)) else tuple(map(attribute_key, value))
    if isinstance(value, float):  # tells -0.0 from 0.0, and equates NaN with itself
        return "float", np.float64(value).tobytes()
    if isinstance(value, (bool, int, str)) or value is None:
        return type(value).__name__, value
    return value


def _positions(values: Sequence[Value]) -> list[int]:
    return [value.index for value in values]


def _effects(graph: Graph) -> list[Op]:
    return [op for op in graph if op.attrs.get("effects")]
