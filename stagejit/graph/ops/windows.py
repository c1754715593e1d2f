"""`window`: each element is made of the elements of the operand in a window.

In the interpreter a tap, which is one position in all windows, is an index array for each axis; the
taps are combined in row-major order, as the definition has it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.dims import WindowDims
from stagejit.graph.functions import WINDOW_FUNCTIONS, neutral
from stagejit.graph.ir import Op
from stagejit.graph.meaning import scalar
from stagejit.graph.meaning.evaluator import Array, Evaluator, accumulated
from stagejit.graph.text.syntax import read_function, write_function
from stagejit.types import TensorType, i32

# Of two elements, whether the former stays chosen.
_KEEPS: dict[str, Any] = {"first_max": np.greater_equal, "first_min": np.less_equal}


def chooses(op: Op) -> bool:
    """Whether a window tells which of its elements it has chosen, and not a value."""
    return op.attrs["fn"] in _KEEPS


def _window(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    fn = attrs["fn"]
    require(x.dtype.kind in WINDOW_FUNCTIONS.get(fn, ()), f"{fn} is not defined for {x.dtype}")
    return TensorType(i32 if fn in _KEEPS else x.dtype, WindowDims.of(attrs).result_shape(x.shape))


def _value_of_window(evaluator: Evaluator, op: Op, x: Array) -> Array:
    dims, dtype = WindowDims.of(op.attrs), op.operands[0].type.dtype
    shape, fn = op.result.shape, op.attrs["fn"]
    x = accumulated(x)
    if chooses(op):
        return _chosen(x, shape, dims, _KEEPS[fn])
    result = np.full(shape, neutral(fn, dtype), x.dtype)
    find = scalar.float_function if dtype.is_float else scalar.integer_function
    for tap in dims.taps:
        element, inside = _tap(x, shape, dims, tap)
        result = np.where(inside, find(fn, {})(result, element), result)
    return result


def _chosen(x: Array, shape: tuple[int, ...], dims: WindowDims, keeps: Any) -> Array:
    best, number = np.zeros(shape, x.dtype), np.full(shape, -1, np.int32)
    for at, tap in enumerate(dims.taps):
        element, inside = _tap(x, shape, dims, tap)
        takes = inside & ((number < 0) | ~keeps(best, element))
        best, number = np.where(takes, element, best), np.where(takes, np.int32(at), number)
    return number


def _tap(
    x: Array, shape: tuple[int, ...], dims: WindowDims, tap: tuple[int, ...]
) -> tuple[Array, Array]:
    """The element of each window at one position, and whether there is one."""
    if not x.size:
        return np.zeros(shape, x.dtype), np.zeros(shape, bool)
    where, inside = [], np.ones((), bool)
    for axis, (count, stride, first) in enumerate(
        zip(shape, dims.strides, dims.offsets(tap), strict=True)
    ):
        at = np.arange(count) * stride + first
        along = [-1 if other == axis else 1 for other in range(len(shape))]
        inside = inside & ((at >= 0) & (at < x.shape[axis])).reshape(along)
        where.append(np.clip(at, 0, x.shape[axis] - 1).reshape(along))
    return x[tuple(where)].reshape(shape), np.broadcast_to(inside, shape)


def _element_flops(op: Op) -> float:
    return float(math.prod(op.attrs["sizes"]))


def _flops(op: Op) -> int:
    taps: int = math.prod(op.attrs["sizes"])
    return op.result.type.size * taps


define(
    OpDef(
        kind="window",
        infer=_window,
        interpret=_value_of_window,
        write=write_function,
        read=read_function,
        is_window=True,
        flops=_flops,
        element_flops=_element_flops,
    )
)
