"""The meaning of a graph, in NumPy: the oracle that every other stage is tested against.

Input: a graph and concrete inputs. Output: its results. Invariant: native ops never use JAX. With
precision "declared", each float op is computed in float64 and rounded once to its element type, so
results are those of ideal arithmetic; with "f64" floats are never rounded at all.

An `empty` destination is filled with NaN (or the greatest integer), so that reading what was never
written is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from stagejit.compat import evaluate_equation
from stagejit.crossing import from_user, to_user
from stagejit.errors import InternalError
from stagejit.graph import foreign, products, scalar, windows
from stagejit.graph.control import LoopOperands
from stagejit.graph.ir import Graph, Op, Value
from stagejit.types import DType, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Precision = Literal["declared", "f64"]


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
    evaluate = _Evaluator(precision)
    with np.errstate(all="ignore"):
        arrays = [
            evaluate.stored(_checked_input(value, array), value.type.dtype)
            for value, array in zip(graph.inputs, inputs, strict=True)
        ]
        return evaluate.graph(graph, arrays)


def evaluate_op(
    op: Op, operands: Sequence[Array], precision: Precision = "declared"
) -> list[Array]:
    """The results of one native op, in its declared precision where constants are folded."""
    with np.errstate(all="ignore"):
        return _Evaluator(precision).op(op, operands)


def _checked_input(value: Value, array: Any) -> Any:
    if value.type.dtype.kind == "opaque":
        return array
    array = np.asarray(array, value.type.dtype.numpy)
    if array.shape != value.type.shape:
        raise ValueError(f"input has shape {array.shape}, not {value.type}")
    return array


def _check_result(op: Op, result: Value, array: Any) -> None:
    if result.type.dtype.kind != "opaque" and np.shape(array) != result.type.shape:
        raise InternalError(
            f"{op} gave shape {np.shape(array)} for {result.type}", step="interpret", loc=op.loc
        )


class _Evaluator:
    def __init__(self, precision: Precision) -> None:
        self.exact = precision == "f64"

    def graph(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a graph for inputs as this precision stores them."""
        values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
        for op in graph.ops():
            results = self.op(op, [values[operand] for operand in op.operands])
            for result, array in zip(op.results, results, strict=True):
                _check_result(op, result, array)
                values[result] = array
        return [values[output] for output in graph.outputs]

    def stored(self, x: Any, dtype: DType) -> Any:
        """`x` as this precision stores elements of `dtype`."""
        if dtype.kind == "opaque":
            return x
        target = np.dtype(np.float64) if self.exact and dtype.is_float else dtype.numpy
        return np.asarray(x).astype(target, copy=False)

    def op(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        if op.kind == "delegate":
            return self._delegate(op, operands)
        if op.kind == "call":
            made = foreign.evaluate(op, operands)
            return [self.stored(x, v.type.dtype) for x, v in zip(made, op.results, strict=True)]
        if op.kind == "loop":
            return self._loop(op, operands)
        if op.kind == "optimization_barrier":
            return list(operands)
        if op.kind == "branch":
            branches = op.attrs["branches"]
            chosen = min(max(int(operands[0]), 0), len(branches) - 1)
            return self.graph(branches[chosen], operands[1:])
        if op.kind == "map":
            result: Any = self._map(op, operands)
        elif op.kind == "convert":
            result = scalar.convert(operands[0], self._storage(op.result.type.dtype))
        elif op.kind == "bitcast":
            x = operands[0].astype(op.operands[0].type.dtype.numpy)
            bits = np.ascontiguousarray(x).reshape(-1).view(op.attrs["dtype"].numpy)
            result = bits.reshape(x.shape)
        else:
            result = _RULES[op.kind](op, *operands)
        return [self.stored(result, op.result.type.dtype)]

    def _loop(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        body, condition, trip = op.attrs["body"], op.attrs["condition"], op.attrs["trip"]
        parts, values = LoopOperands.of(op), dict(zip(op.operands, operands, strict=True))
        carries = [values[value] for value in parts.inits]
        xs, constants, of_condition = (
            [values[value] for value in part]
            for part in (parts.xs, parts.constants, parts.condition_constants)
        )
        if condition is not None:
            while self.graph(condition, [*carries, *of_condition])[0]:
                carries = self.graph(body, [*carries, *constants])
            return carries
        ys: list[list[Any]] = [[] for _ in op.results[len(carries) :]]
        for at in range(trip):
            row = trip - 1 - at if op.attrs["reverse"] else at
            results = self.graph(body, [*carries, *(x[row] for x in xs), *constants])
            carries = results[: len(carries)]
            for stack, y in zip(ys, results[len(carries) :], strict=True):
                stack.append(y)
        step = -1 if op.attrs["reverse"] else 1
        return [*carries, *(np.stack(stack[::step]) for stack in ys)]

    def _storage(self, dtype: DType) -> np.dtype[Any]:
        return np.dtype(np.float64) if self.exact and dtype.is_float else dtype.numpy

    def _map(self, op: Op, operands: Sequence[Array]) -> Array:
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

    def _delegate(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        equation = op.attrs["equation"]
        if equation is None:
            raise InternalError(f"{op} was parsed from text and has no equation", step="interpret")
        arguments = [
            to_user(np.asarray(x).astype(v.type.dtype.numpy), atom.aval)
            if v.type.dtype.kind != "opaque"
            else x
            for x, v, atom in zip(operands, op.operands, equation.invars, strict=False)
        ]  # a token, the last operand, only orders
        results = evaluate_equation(equation, arguments)
        made = [
            self.stored(from_user(x, variable.aval), v.type.dtype)
            if v.type.dtype.kind != "opaque"
            else x
            for x, v, variable in zip(results, op.results, equation.outvars, strict=False)
        ]
        return [*made, None] if op.attrs["effects"] else made


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


# ------------------------------------------------------- one function a kind


def _const(op: Op) -> Any:
    return op.attrs["value"]


def _iota(op: Op) -> Array:
    shape, axis = op.attrs["shape"], op.attrs["axis"]
    line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(line, shape)


def _empty(op: Op) -> Array:
    return np.full(op.attrs["shape"], _poison(op.result.type))


def _poison(type: TensorType) -> Any:
    if type.dtype.is_float:
        return np.nan
    if type.dtype.kind == "bool":
        return True
    return np.iinfo(type.dtype.numpy).max


def _fill(op: Op, x: Array) -> Array:
    return np.broadcast_to(x, op.attrs["shape"])


def _broadcast(op: Op, x: Array) -> Array:
    sizes = [1] * len(op.attrs["shape"])
    for axis, size in zip(op.attrs["axes"], x.shape, strict=True):
        sizes[axis] = size
    order = np.argsort(op.attrs["axes"])
    return np.broadcast_to(x.transpose(order).reshape(sizes), op.attrs["shape"])


def _reshape(op: Op, x: Array) -> Array:
    return x.reshape(op.attrs["shape"])


def _transpose(op: Op, x: Array) -> Array:
    return x.transpose(op.attrs["permutation"])


def _reverse(op: Op, x: Array) -> Array:
    return np.flip(x, op.attrs["axes"])


def _extract_slice(op: Op, x: Array, *starts: Array) -> Array:
    return x[_box(op.attrs, x.shape, op.attrs["sizes"], starts)]


def _insert_slice(op: Op, source: Array, destination: Array, *starts: Array) -> Array:
    result = destination.copy()
    result[_box(op.attrs, destination.shape, source.shape, starts)] = source
    return result


def _box(
    attrs: Mapping[str, Any],
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    starts: Sequence[Array],
) -> tuple[slice, ...]:
    dynamic = iter(starts)
    box = []
    for offset, stride, extent, size in zip(
        attrs["offsets"], attrs["strides"], shape, sizes, strict=True
    ):
        span = (size - 1) * stride + 1 if size else 0
        start = min(max(int(next(dynamic)), 0), extent - span) if offset is None else offset
        box.append(slice(start, start + span, stride))
    return tuple(box)


_RULES: dict[str, Callable[..., Any]] = {
    "const": _const, "iota": _iota, "empty": _empty, "fill": _fill,
    "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose, "reverse": _reverse,
    "extract_slice": _extract_slice, "insert_slice": _insert_slice,
    "reduce": products.reduce, "cumulative": products.cumulative,
    "contract": products.contract, "conv": products.conv,
    "gather": windows.gather, "scatter": windows.scatter,
}  # fmt: skip
