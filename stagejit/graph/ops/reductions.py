"""Sums, extrema and the like: `reduce` over axes, `cumulative` along one.

The interpreter's part is written for clarity and from the definitions, not from any kernel that it
is meant to check: floats accumulate in float64.
"""

from __future__ import annotations

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.functions import CUMULATIVE_FUNCTIONS, REDUCE_FUNCTIONS, identity
from stagejit.graph.ir import Op
from stagejit.graph.meaning.evaluator import Array, Evaluator, accumulated
from stagejit.graph.ops.moving.splits import present
from stagejit.graph.ops.moving.views import require_axes
from stagejit.graph.text.syntax import Parts, read_function, write_function
from stagejit.graph.text.tokens import Line, Values
from stagejit.types import TensorType

_ARG = ("argmax", "argmin")

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "logaddexp": np.logaddexp,
}  # fmt: skip
# Whether a zero is -0, from which of the elements are: NumPy's sums start at +0, and its extrema
# leave open which of two zeros is the larger one.
_MINUS: dict[str, np.ufunc] = {
    "add": np.logical_and, "max": np.logical_and, "min": np.logical_or,
}  # fmt: skip


def _reduce(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    fn, axes = attrs["fn"], attrs["axes"]
    require(x.dtype.kind in REDUCE_FUNCTIONS.get(fn, ()), "{} is not defined for {}", fn, x.dtype)
    require_axes(axes, x.rank)
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    if fn not in _ARG:
        return TensorType(x.dtype, shape)
    require(len(axes) == 1 and x.shape[axes[0]] > 0, "takes one axis that is not empty")
    require(attrs["dtype"].is_integer, "the index type is an integer type")
    return TensorType(attrs["dtype"], shape)


def _separate(op: Op, axis: int) -> tuple[int | None, ...]:
    kept = [each for each in range(op.operands[0].type.rank) if each not in op.attrs["axes"]]
    return (kept[axis],)


def _summed(op: Op, operand: int, axis: int) -> tuple[int | None, ...] | None:
    return (axis,) if axis in op.attrs["axes"] and op.attrs["fn"] not in _ARG else None


def _cumulative(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require(
        x.dtype.kind in CUMULATIVE_FUNCTIONS.get(attrs["fn"], ()),
        f"{attrs['fn']} is not defined for {x.dtype}",
    )
    require_axes((attrs["axis"],), x.rank)
    require(isinstance(attrs["reverse"], bool), "reverse is a bool")
    return TensorType(x.dtype, x.shape)


def _value_of_reduce(evaluator: Evaluator, op: Op, x: Array) -> Array:
    fn, axes = op.attrs["fn"], op.attrs["axes"]
    x = np.asarray(accumulated(x), order="C")  # NumPy adds up in the order in which they lie
    if fn in _ARG:
        search = np.argmax if fn == "argmax" else np.argmin
        return np.asarray(search(x, axis=axes[0]))
    initial = identity(fn, op.operands[0].type.dtype)
    result = np.asarray(_UFUNCS[fn].reduce(x, axis=axes, initial=initial, dtype=x.dtype))
    if fn not in _MINUS or x.dtype.kind != "f" or not x.size:
        return result
    return signed(result, _MINUS[fn].reduce(_minus(fn, x), axis=axes))


def _minus(fn: str, x: Array) -> Array:
    """Where an element counts as -0: a sum that is zero is so if all terms are -0, a maximum if no
    element is +0, a minimum if one is -0."""
    return np.signbit(x) if fn == "max" else np.signbit(x) & (x == 0)


def signed(result: Array, minus: Array) -> Array:
    """`result` with -0 for 0 where `minus` says so."""
    return np.where(result == 0, np.where(minus, -0.0, 0.0), result)


def _value_of_cumulative(evaluator: Evaluator, op: Op, x: Array) -> Array:
    axis = op.attrs["axis"]
    x = accumulated(x)
    if op.attrs["reverse"]:
        x = np.flip(x, axis)
    fn = op.attrs["fn"]
    result = _UFUNCS[fn].accumulate(x, axis=axis, dtype=x.dtype) if x.size else x
    if fn in _MINUS and x.dtype.kind == "f" and x.size:
        result = signed(result, _MINUS[fn].accumulate(_minus(fn, x), axis=axis))
    return np.flip(result, axis) if op.attrs["reverse"] else result


def _read_reduce(tokens: Line, definition: OpDef, values: Values, types: list[TensorType]) -> Parts:
    operands, attrs = read_function(tokens, definition, values, types)
    if attrs["fn"] not in _ARG:
        del attrs["dtype"]
    return operands, attrs


def _flops(op: Op) -> int:
    return present(op.operands[0]).type.size


define(
    OpDef(
        kind="reduce",
        infer=_reduce,
        interpret=_value_of_reduce,
        separate=_separate,
        summed=_summed,
        implied=frozenset({"dtype"}),
        write=write_function,
        read=_read_reduce,
        accumulates=True,
        is_reduce=True,
        flops=_flops,
    )
)
define(
    OpDef(
        kind="cumulative",
        infer=_cumulative,
        interpret=_value_of_cumulative,
        write=write_function,
        read=read_function,
        accumulates=True,
        is_cumulative=True,
        flops=_flops,
    )
)
