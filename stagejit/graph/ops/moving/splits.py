"""`split_axis`: the parts of an axis, of which the last may be shorter, side by side.

`%1: f32[77,666,456] = split_axis %0 axis=0 fill=0.0` of f32[51234,456] are 76 parts of 666 rows
and one of 618: element (k, ..., i, ...) is element (..., 666 k + i, ...) of the operand. What is
missing of the last part reads as `fill`, with which whoever sums over i adds nothing. So a sum of
parts is one op of any size, and its results lie one part after the other.

Invariant: missing elements are evaluated by nobody. Access analysis has none of them, and kernels
run two nests: over the whole parts, and over the last one, as far as it goes (`last_part`).
"""

from __future__ import annotations

import numpy as np

from stagejit.graph.definition import Attrs, DynamicStart, OpDef, Types, define, require
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.index.affine import Index
from stagejit.types import TensorType


def tile_of(extent: int, wanted: int) -> int:
    """Elements of a part where an axis of `extent` elements becomes at most `wanted` parts, none of
    them empty."""
    return -(-extent // max(min(wanted, extent), 1))


def split_shape(shape: tuple[int, ...], axis: int, tile: int) -> tuple[int, ...]:
    """The shape of the parts of an array."""
    return (-(-shape[axis] // tile), *shape[:axis], tile, *shape[axis + 1 :])


def last_part(op: Op) -> int:
    """How many elements of the axis the last part has."""
    parts, axis = op.result.shape[0], int(op.attrs["axis"])
    return op.operands[0].shape[axis] - (parts - 1) * op.result.shape[axis + 1]


def is_uneven(op: Op) -> bool:
    """Whether it is a split of which the last part is shorter than the others."""
    return op.definition.splits and last_part(op) < op.result.shape[op.attrs["axis"] + 1]


def sums_parts(op: Op) -> bool:
    """Whether it is the first half of a split sum: of each part, apart."""
    split = op.attrs.get("split") is not None or any(v.op.definition.splits for v in op.operands)
    return op.definition.accumulates and split


def present(value: Value) -> Value:
    """What holds the elements that there are of a value: the operand of a split, or itself."""
    return value.op.operands[0] if value.op.definition.splits else value


def _split_axis(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    axis, shape = attrs["axis"], attrs["shape"]
    require(0 <= axis < x.rank and len(shape) == x.rank + 1, f"no axis {axis} of {x}")
    tile = shape[axis + 1]
    require(tile > 0 and shape == split_shape(x.shape, axis, tile), f"{x} has no parts {shape}")
    require(x.shape[axis] > 0, "an axis without elements has no parts")
    return TensorType(x.dtype, shape)


def _value_of_split_axis(evaluator: Evaluator, op: Op, x: Array) -> Array:
    axis, (parts, *shape) = op.attrs["axis"], op.result.shape
    missing = parts * shape[axis] - x.shape[axis]
    around = [(0, missing if other == axis else 0) for other in range(x.ndim)]
    whole = np.pad(x, around, constant_values=op.attrs["fill"])
    apart = whole.reshape(*shape[:axis], parts, *shape[axis:])
    return np.moveaxis(apart, axis, 0)


def whole_index(op: Op, index: Index) -> Index:
    """Where an element of the parts is in what is split."""
    part, *inner = index
    axis = op.attrs["axis"]
    inner[axis] = part * op.result.shape[axis + 1] + inner[axis]
    return tuple(inner)


def _pull_split_axis(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    return whole_index(op, index)


define(
    OpDef(
        kind="split_axis",
        infer=_split_axis,
        interpret=_value_of_split_axis,
        implied=frozenset({"shape"}),
        pull=_pull_split_axis,
        splits=True,
    )
)
