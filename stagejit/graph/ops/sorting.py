"""`sort`: rows in the order of their keys, whole or their first elements.

The order is JAX's: numbers ascend, the two zeros are equal, all NaN are equal and come last. Rows
of equal keys keep their order. Descending it is the reverse, but for those: so a NaN comes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.ir import Op
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.ops.moving.views import require_axes
from stagejit.types import TensorType, i32

LONGEST_ROW = 2**31  # positions are i32


def _infer(operands: Types, attrs: Attrs) -> Sequence[TensorType]:
    shape, axis, keys, count = operands[0].shape, attrs["axis"], attrs["keys"], attrs["count"]
    require(all(x.shape == shape for x in operands), "operands have one shape")
    require_axes((axis,), len(shape))
    require(1 <= keys <= len(operands), f"there are no {keys} keys")
    require(0 <= count <= shape[axis] < LONGEST_ROW, f"{count} of {shape[axis]} are kept")
    require(isinstance(attrs["descending"], bool), "descending is a bool")
    numbers = attrs["results"]
    require(len(set(numbers)) == len(numbers) > 0, "results are different ones")
    require(all(0 <= n <= len(operands) for n in numbers), f"there are no results {numbers}")
    kept = (*shape[:axis], count, *shape[axis + 1 :])
    dtypes = [*(x.dtype for x in operands), i32]
    return [TensorType(dtypes[number], kept) for number in numbers]


def _interpret(evaluator: Evaluator, op: Op, *operands: Array) -> list[Array]:
    axis = op.attrs["axis"]
    keys: list[Any] = []
    for x in operands[: op.attrs["keys"]]:
        keys = [*_keys(x, op.attrs["descending"]), *keys]  # NumPy wants the first one last
    order = np.lexsort(keys, axis)
    order = np.take(order, range(op.attrs["count"]), axis)
    columns = [*operands, None]
    return [
        order.astype(np.int32) if x is None else np.take_along_axis(x, order, axis)
        for x in (columns[number] for number in op.attrs["results"])
    ]


def _keys(x: Array, descending: bool) -> list[Array]:
    """Arrays without NaN that order as `x` does, the less important first."""
    if x.dtype.kind in "biu":
        return [~x if descending else x]
    numbers = x if x.dtype == np.float64 else x.astype(np.float32)
    nan = np.isnan(numbers)
    numbers = np.where(nan, 0, numbers)
    return [-numbers, ~nan] if descending else [numbers, nan]


def _flops(op: Op) -> int:
    """A comparison a key, for each element and each halving of a row."""
    x = op.operands[0].type
    halvings = math.ceil(math.log2(max(x.shape[op.attrs["axis"]], 2)))
    return int(x.size * op.attrs["keys"] * halvings)


SORT = define(
    OpDef(
        kind="sort",
        infer=_infer,
        interpret=_interpret,
        stands_alone=True,
        flops=_flops,
    )
)
