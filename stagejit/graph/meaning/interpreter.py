"""The meaning of a graph, in NumPy: the oracle that every other stage is tested against.

Input: a graph and concrete inputs. Output: its results. Invariant: native ops never use JAX. With
precision "declared", each float op is computed in float64 and rounded once to its element type, so
results are those of ideal arithmetic; with "f64" floats are never rounded at all.

An `empty` destination is filled with NaN (or the greatest integer), so that reading what was never
written is seen. What each op means stands in its declaration, see `graph/ops/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator, Precision


def interpret(
    graph: Graph,
    inputs: Sequence[Any],
    *,
    precision: Precision = "declared",
) -> list[Any]:
    """The results of `graph` on `inputs`, as NumPy arrays in the declared element types.

    With precision "f64", float results are float64 arrays, not rounded.
    """
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"{graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    evaluator = Evaluator(precision)
    with np.errstate(all="ignore"):
        arrays = [
            evaluator.stored(_checked_input(value, array), value.type.dtype)
            for value, array in zip(graph.inputs, inputs, strict=True)
        ]
        return evaluator.graph(graph, arrays)


def evaluate_op(
    op: Op, operands: Sequence[Array], precision: Precision = "declared"
) -> list[Array]:
    """The results of one native op, in its declared precision where constants are folded."""
    with np.errstate(all="ignore"):
        return Evaluator(precision).op(op, operands)


def _checked_input(value: Value, array: Any) -> Any:
    if value.type.dtype.kind == "opaque":
        return array
    array = np.asarray(array, value.type.dtype.numpy)
    if array.shape != value.type.shape:
        raise ValueError(f"input has shape {array.shape}, not {value.type}")
    return array
