"""Views of all elements: `broadcast`, `reshape`, `transpose`, `reverse`.

Each says in `pull` where an element of the result lies in the operand: access analysis and every
kernel generator use these maps, so they cannot disagree. They are exact. `alias` is the reshape
that is no work: between dispatches, it is the operand's memory seen in another shape. `after` is
its first operand once the others are there: what may be overwritten when they have been made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagejit.graph.definition import Attrs, DynamicStart, OpDef, Types, define, require
from stagejit.graph.ir import Op, Value
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.index.affine import Affine, Index, divisions, reshape_index
from stagejit.types import TensorType

_SHAPE = frozenset({"shape"})


def _broadcast(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    shape, axes = attrs["shape"], attrs["axes"]
    each = len(set(axes)) == len(axes) == x.rank
    require(each, "axes {} do not name each dimension once", axes)
    require(x.shape == tuple([shape[axis] for axis in axes]), "does not fit {} at {}", shape, axes)
    return TensorType(x.dtype, shape)


def _value_of_broadcast(evaluator: Evaluator, op: Op, x: Array) -> Array:
    sizes = [1] * len(op.attrs["shape"])
    for axis, size in zip(op.attrs["axes"], x.shape, strict=True):
        sizes[axis] = size
    order = np.argsort(op.attrs["axes"])
    return np.broadcast_to(x.transpose(order).reshape(sizes), op.attrs["shape"])


def _pull_broadcast(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    return tuple(
        Affine() if extent == 1 else index[axis]
        for axis, extent in zip(op.attrs["axes"], op.operands[0].shape, strict=True)
    )


def _push_broadcast(op: Op, index: Index) -> Index:
    parts = [Affine()] * op.result.type.rank
    for axis, part in zip(op.attrs["axes"], index, strict=True):
        parts[axis] = part
    return tuple(parts)


def _reshape(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    result = TensorType(x.dtype, attrs["shape"])
    require(result.size == x.size, "{} has another number of elements", result)
    return result


def _value_of_reshape(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return x.reshape(op.attrs["shape"])


def _pull_reshape(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    return reshape_index(index, op.result.shape, op.operands[0].shape, strict=strict)


def _undone_reshape(op: Op) -> tuple[str, dict[str, Any]]:
    return op.kind, {"shape": op.operands[0].shape}


def _divisions_of_reshape(op: Op, index: Index) -> list[tuple[Affine, int]]:
    return divisions(index, op.result.shape, op.operands[0].shape)


def _transpose(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require(
        sorted(attrs["permutation"]) == list(range(x.rank)),
        f"{attrs['permutation']} is no permutation",
    )
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in attrs["permutation"]))


def _value_of_transpose(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return x.transpose(op.attrs["permutation"])


def _pull_transpose(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    pulled = [Affine()] * len(index)
    for position, axis in enumerate(op.attrs["permutation"]):
        pulled[axis] = index[position]
    return tuple(pulled)


def _push_transpose(op: Op, index: Index) -> Index:
    return tuple(index[axis] for axis in op.attrs["permutation"])


def _undone_transpose(op: Op) -> tuple[str, dict[str, Any]]:
    permutation = op.attrs["permutation"]
    return op.kind, {"permutation": tuple(map(permutation.index, range(len(permutation))))}


def _reverse(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require_axes(attrs["axes"], x.rank)
    return TensorType(x.dtype, x.shape)


def _value_of_reverse(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return np.flip(x, op.attrs["axes"])


def _pull_reverse(op: Op, index: Index, strict: bool, start: DynamicStart) -> Index:
    return _reversed(op, index)


def _reversed(op: Op, index: Index) -> Index:
    return tuple(
        Affine((), extent - 1) - part if axis in op.attrs["axes"] else part
        for axis, (part, extent) in enumerate(zip(index, op.operands[0].shape, strict=True))
    )


def _undone_reverse(op: Op) -> tuple[str, dict[str, Any]]:
    return op.kind, dict(op.attrs)


def require_axes(axes: tuple[int, ...], rank: int) -> None:
    require(
        list(axes) == sorted(set(axes)) and all(0 <= axis < rank for axis in axes),
        f"axes {axes} are not ascending axes of rank {rank}",
    )


define(
    OpDef(
        kind="broadcast",
        infer=_broadcast,
        interpret=_value_of_broadcast,
        implied=_SHAPE,
        pull=_pull_broadcast,
        push=_push_broadcast,
        repeats=True,
    )
)
define(
    OpDef(
        kind="reshape",
        infer=_reshape,
        interpret=_value_of_reshape,
        implied=_SHAPE,
        pull=_pull_reshape,
        keeps_order=True,
        undone=_undone_reshape,
        divisions=_divisions_of_reshape,
    )
)


def _after(operands: Types, attrs: Attrs) -> TensorType:
    return operands[0]


def _value_of_after(evaluator: Evaluator, op: Op, x: Array, *others: Array) -> Array:
    return x


def is_alias(op: Op) -> bool:
    """Whether it is an `alias` or an `after`: memory that is there already."""
    return op.definition.forwards and op.definition.keeps_order


def behind_aliases(value: Value) -> Value:
    """The value whose memory an `alias`, or an `after`, is."""
    while is_alias(value.op):
        value = value.op.operands[0]
    return value


define(
    OpDef(
        kind="alias",
        infer=_reshape,
        interpret=_value_of_reshape,
        implied=_SHAPE,
        keeps_order=True,
        forwards=True,
    )
)
define(
    OpDef(
        kind="after",
        infer=_after,
        interpret=_value_of_after,
        keeps_order=True,
        forwards=True,
    )
)
define(
    OpDef(
        kind="transpose",
        infer=_transpose,
        interpret=_value_of_transpose,
        pull=_pull_transpose,
        push=_push_transpose,
        undone=_undone_transpose,
    )
)
define(
    OpDef(
        kind="reverse",
        infer=_reverse,
        interpret=_value_of_reverse,
        pull=_pull_reverse,
        push=_reversed,
        undone=_undone_reverse,
    )
)
