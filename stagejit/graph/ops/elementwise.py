"""Element by element: `map`, whose functions are those of `functions.py`, `convert`, `bitcast`."""

from __future__ import annotations

import difflib

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.functions import MAP_FUNCTIONS, element_flops
from stagejit.graph.ir import Op
from stagejit.graph.meaning import scalar
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.graph.text.syntax import read_function, write_function
from stagejit.types import TensorType, bool_

_DTYPE = frozenset({"dtype"})


def function_of(op: Op) -> str:
    """The name of the function that a `map` applies; empty for any other op."""
    return str(op.attrs["fn"]) if op.kind == "map" else ""


def _map(operands: Types, attrs: Attrs) -> TensorType:
    function = MAP_FUNCTIONS.get(attrs["fn"])
    if function is None:
        close = difflib.get_close_matches(str(attrs["fn"]), MAP_FUNCTIONS, n=3, cutoff=0.4)
        hint = f": did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"unknown function {attrs['fn']!r}{hint}")
    if isinstance(given := attrs["dtype"], str):
        raise ValueError(f"dtype is the string {given!r}: give a type, as writing.{given}")
    dtype = function.result_dtype(attrs["fn"], [type.dtype for type in operands])
    require(len({type.shape for type in operands}) == 1, "operands differ in shape")
    require(dtype is attrs["dtype"], "the result is {}, not {}", dtype, attrs["dtype"])
    for name in function.params:
        require(name in attrs, f"{attrs['fn']} needs {name}")
    return TensorType(dtype, operands[0].shape)


def _value_of_map(evaluator: Evaluator, op: Op, *operands: Array) -> Array:
    fn, params = op.attrs["fn"], dict(op.attrs)
    dtype = op.operands[-1].type.dtype
    if fn == "nextafter":  # its result depends on the element type by definition
        return _next_after(*(x.astype(dtype.numpy) for x in operands))
    if dtype.is_float:
        wide = [_wide(x) for x in operands]
        return scalar.float_function(fn, params)(*wide)
    if dtype.kind == "bool":
        fn = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(fn, fn)
    return scalar.integer_function(fn, params)(*operands)


def _wide(x: Array) -> Array:
    """Floats as float64; predicates and integers as they are."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64, copy=False)


def _next_after(x: Array, y: Array) -> Array:
    """As in C: between equal operands, which zeros of two signs are, it is the second. NumPy's is
    the first in float16."""
    if x.dtype.kind == "f":
        return np.where(x == y, y, np.nextafter(x, y))
    # bfloat16 has no nextafter in NumPy: step its bits, which are ordered like its values.
    bits = x.view(np.uint16)
    up = (x < y) == (x > 0)
    stepped = np.where(up, bits + np.uint16(1), bits - np.uint16(1)).astype(np.uint16)
    from_zero = np.where(y > 0, np.uint16(1), np.uint16(0x8001))
    result = np.where(x == 0, from_zero, stepped).astype(np.uint16).view(x.dtype)
    result = np.where(x == y, y, result)
    return np.where(np.isnan(x) | np.isnan(y), np.asarray(np.nan, x.dtype), result)


def _convert(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    return TensorType(attrs["dtype"], x.shape)


def _value_of_convert(evaluator: Evaluator, op: Op, x: Array) -> Array:
    return scalar.convert(x, evaluator.storage(op.result.type.dtype))


def _bitcast(operands: Types, attrs: Attrs) -> TensorType:
    (x,) = operands
    require(x.dtype.itemsize == attrs["dtype"].itemsize, "element sizes differ")
    require(bool_ not in (x.dtype, attrs["dtype"]), "a bool has no bits of its own")
    return TensorType(attrs["dtype"], x.shape)


def _value_of_bitcast(evaluator: Evaluator, op: Op, x: Array) -> Array:
    x = x.astype(op.operands[0].type.dtype.numpy)
    bits = np.ascontiguousarray(x).reshape(-1).view(op.attrs["dtype"].numpy)
    result: Array = bits.reshape(x.shape)
    return result


def _map_flops(op: Op) -> int:
    return op.result.type.size


def _map_element_flops(op: Op) -> float:
    return element_flops(op.attrs["fn"])


define(
    OpDef(
        kind="map",
        infer=_map,
        interpret=_value_of_map,
        implied=_DTYPE,
        write=write_function,
        read=read_function,
        is_elementwise=True,
        flops=_map_flops,
        element_flops=_map_element_flops,
    )
)
define(
    OpDef(
        kind="convert",
        infer=_convert,
        interpret=_value_of_convert,
        implied=_DTYPE,
        is_conversion=True,
        is_elementwise=True,
    )
)
define(
    OpDef(
        kind="bitcast",
        infer=_bitcast,
        interpret=_value_of_bitcast,
        implied=_DTYPE,
        is_elementwise=True,
    )
)
