"""Partial results: what sums of parts are kept in, and are put together by.

Input: values of a graph. Output: ops in it. Invariant: 16-bit floats are rounded once, when all
parts are together.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.types import DType, bool_

_COMPARES = frozenset({"eq", "ne", "lt"})


def summed_in(op: Op) -> DType:
    """The type in which parts of a product or a reduction are put together."""
    dtype, own = op.result.type.dtype, op.operands[0].type.dtype
    if op.definition.is_reduce:
        return dtype.accumulator
    return max((own, dtype), key=lambda each: each.bits).accumulator if own.is_float else dtype


def mapped(graph: Graph, fn: str, *operands: Value) -> Value:
    """An elementwise function of values of one type."""
    dtype = bool_ if fn in _COMPARES else operands[-1].type.dtype
    return build(graph, "map", operands, fn=fn, dtype=dtype)


def converted(graph: Graph, x: Value, dtype: DType) -> Value:
    """`x` in another type, or itself."""
    return x if x.type.dtype is dtype else build(graph, "convert", (x,), dtype=dtype)
