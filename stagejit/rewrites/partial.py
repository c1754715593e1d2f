"""Partial results: what sums of parts start from, are kept in, and are put together by.

Input: values of a graph. Output: ops in it. Invariant: what comes before all parts changes no
result, and 16-bit floats are rounded once, when all parts are together.
"""

from __future__ import annotations

import math

import numpy as np

from stagejit.graph.functions import identity
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.types import DType, bool_

_COMPARES = frozenset({"eq", "ne", "lt"})


def neutral(fn: str, dtype: DType) -> int | float | bool:
    """What changes no result; of float sums it is -0, for 0 + -0 is 0."""
    if fn == "logaddexp":
        return -math.inf
    if fn == "add" and dtype.is_float:
        return -0.0
    number: int | float | bool = np.asarray(identity(fn, dtype)).item()
    return float(number) if dtype.is_float else number


def summed_in(op: Op) -> DType:
    """The type in which a product is summed."""
    dtype, own = op.result.type.dtype, op.operands[0].type.dtype
    return max((own, dtype), key=lambda each: each.bits).accumulator if own.is_float else dtype


def mapped(graph: Graph, fn: str, *operands: Value) -> Value:
    """An elementwise function of values of one type."""
    dtype = bool_ if fn in _COMPARES else operands[-1].type.dtype
    return build(graph, "map", operands, fn=fn, dtype=dtype)


def converted(graph: Graph, x: Value, dtype: DType) -> Value:
    """`x` in another type, or itself."""
    return x if x.type.dtype is dtype else build(graph, "convert", (x,), dtype=dtype)
