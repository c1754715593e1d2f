"""`Evaluator`: runs graphs in NumPy; what a declaration's `interpret` is given.

Input: a graph, and arrays as this precision stores them. Output: its results, stored alike.
Invariant: with precision "declared", each result is rounded once, to its element type; with "f64"
floats are never rounded at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from stagejit.errors import InternalError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
Precision = Literal["declared", "f64"]


class Evaluator:
    def __init__(self, precision: Precision) -> None:
        self.exact = precision == "f64"

    def graph(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a graph."""
        values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
        for op in graph.ops():
            results = self.op(op, [values[operand] for operand in op.operands])
            for result, array in zip(op.results, results, strict=True):
                _check_result(op, result, array)
                values[result] = array
        return [values[output] for output in graph.outputs]

    def op(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        """The results of one op."""
        made = op.definition.interpret(self, op, *operands)
        results = made if isinstance(made, list) else [made]
        return [self.stored(x, v.type.dtype) for x, v in zip(results, op.results, strict=True)]

    def stored(self, x: Any, dtype: DType) -> Any:
        """`x` as this precision stores elements of `dtype`."""
        if dtype.kind == "opaque":
            return x
        return np.asarray(x).astype(self.storage(dtype), copy=False)

    def storage(self, dtype: DType) -> np.dtype[Any]:
        return np.dtype(np.float64) if self.exact and dtype.is_float else dtype.numpy


def _check_result(op: Op, result: Value, array: Any) -> None:
    if result.type.dtype.kind != "opaque" and np.shape(array) != result.type.shape:
        raise InternalError(
            f"{op} gave shape {np.shape(array)} for {result.type}", step="interpret", loc=op.loc
        )


def accumulated(x: Array) -> Array:
    """`x` in the type that sums are taken in here: floats in float64."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)
