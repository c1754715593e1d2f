"""simplify-algebra: elementwise ops that change nothing, or that a simpler one replaces.

Input: a `map` or `convert`. Output: one of its operands, or a cheaper op. Invariant: results keep
every bit, for NaN, infinities and signed zeros too, except the payload of a NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.types import DType, bool_

NAME = "simplify-algebra"

# fn -> the constant on the right that leaves the other operand as it is.
_RIGHT_IDENTITY: dict[str, Any] = {
    "add": -0.0, "sub": 0.0, "mul": 1, "div": 1, "pow": 1, "or": 0, "xor": 0, "max": -np.inf,
    "min": np.inf, "shift_left": 0, "shift_right_logical": 0, "shift_right_arithmetic": 0,
}  # fmt: skip
_COMMUTATIVE = frozenset({"add", "mul", "or", "xor", "and", "max", "min"})

# fn -> whether a number on either side decides the result, which is then that number.
_ABSORBERS: dict[str, Callable[[Any], bool]] = {
    "and": lambda number: not number,
    "mul": lambda number: not number,
    "or": lambda number: not np.invert(number),
}

# x -> fn(fn(x)) is x.
_INVOLUTIONS = frozenset({"neg", "not"})


def scalar_of(value: Value) -> Any:
    """The number that every element of `value` is, as a NumPy scalar; None where not constant."""
    op = value.op
    if op.definition.is_splat:
        op = op.operands[0].op
    if not op.definition.is_constant or not isinstance(op.attrs["value"], np.ndarray):
        return None
    array = op.attrs["value"]
    return array.reshape(-1)[0] if array.size == 1 else None


@rewrite(NAME, roots="map")
def operand_and_identity(graph: Graph, op: Op) -> Outcome:
    """map fn %x, (fill identity of fn)  -->  %x"""
    fn = op.attrs["fn"]
    if len(op.operands) != 2:
        return None
    for x, other in _orders(op):
        number = scalar_of(other)
        if number is None or x.type != op.result.type:
            continue
        if _is_identity(fn, number, x.type.dtype):
            return x
        if fn in ("add", "sub") and x.type.dtype.is_float and number == 0:
            return declined("adding this zero turns a zero of the other sign into it")
    return None


def _orders(op: Op) -> list[tuple[Value, Value]]:
    x, y = op.operands
    return [(x, y), (y, x)] if op.attrs["fn"] in _COMMUTATIVE else [(x, y)]


def _is_identity(fn: str, number: Any, dtype: DType) -> bool:
    if fn == "and":
        return bool(np.all(np.invert(number) == 0)) if not dtype.is_float else False
    if fn not in _RIGHT_IDENTITY:
        return False
    identity = _RIGHT_IDENTITY[fn]
    if dtype.is_float:
        wide = np.float64(number)
        return bool(wide == identity and np.signbit(wide) == np.signbit(np.float64(identity)))
    if fn in ("max", "min"):
        return dtype.is_integer and bool(number == _extreme(fn, dtype))
    if dtype is bool_:  # add is or, mul is and
        return bool(number == bool(identity))
    return bool(number == int(identity))


def _extreme(fn: str, dtype: DType) -> int:
    info = np.iinfo(dtype.numpy)
    return int(info.min) if fn == "max" else int(info.max)


@rewrite(NAME, roots="map", functions="neg not abs floor ceil round", of="map")
def repeated_function(graph: Graph, op: Op) -> Outcome:
    """map neg (map neg %x)  -->  %x;  map abs (map abs %x)  -->  map abs %x"""
    fn = op.attrs["fn"]
    inner = op.operands[0].op
    if dict(inner.attrs) != dict(op.attrs):
        return None
    if fn in _INVOLUTIONS:
        return inner.operands[0]
    return inner.result


@rewrite(NAME, roots="map", functions="integer_pow")
def small_power(graph: Graph, op: Op) -> Outcome:
    """map integer_pow %x y=2  -->  map square %x;  y=1  -->  %x"""
    x = op.operands[0]
    match op.attrs["y"]:
        case 1:
            return x
        case 2:
            return build(graph, "map", [x], fn="square", dtype=x.type.dtype)
    return None


@rewrite(NAME, roots="map", functions="div")
def division_by_power_of_two(graph: Graph, op: Op) -> Outcome:
    """map div %x, (fill 2**k)  -->  map mul %x, (fill 2**-k)"""
    if not op.result.type.dtype.is_float:
        return None
    x, divisor = op.operands
    number = scalar_of(divisor)
    if number is None or abs(math.frexp(float(number))[0]) != 0.5 or abs(number) == 1:
        return None
    dtype = x.type.dtype
    reciprocal = _reciprocal(float(number), dtype)
    if reciprocal is None:
        return declined("the reciprocal of the divisor is no normal number")
    factor = filled(graph, reciprocal, x.type, op.loc)
    return build(graph, "map", [x, factor], fn="mul", dtype=dtype)


@functools.lru_cache(maxsize=256)
def _reciprocal(number: float, dtype: DType) -> np.ndarray[Any, Any] | None:
    """1 / number, a power of two, where it is a normal number of that type."""
    with np.errstate(over="ignore"):
        reciprocal = np.asarray(1 / np.float64(number)).astype(dtype.numpy)
    if not float(np.finfo(_finite_like(dtype)).tiny) <= abs(float(reciprocal)) < np.inf:
        return None
    return reciprocal


def _finite_like(dtype: DType) -> Any:
    """A NumPy type with the exponent range of `dtype`: bf16 has that of f32."""
    return np.float32 if dtype.name == "bf16" else dtype.numpy


@rewrite(NAME, roots="map", functions="select")
def select_of_known(graph: Graph, op: Op) -> Outcome:
    """map select %p, %x, %x  -->  %x;  map select (fill true), %x, %y  -->  %x"""
    predicate, on_true, on_false = op.operands
    if on_true is on_false:
        return on_true
    known = scalar_of(predicate)
    if known is None:
        return None
    return on_true if known else on_false


@rewrite(NAME, roots="map", functions="and mul or")
def operand_and_absorber(graph: Graph, op: Op) -> Outcome:
    """map and %x, (fill 0)  -->  fill 0;  so or with all bits, mul of integers with 0"""
    fn = op.attrs["fn"]
    if op.result.type.dtype.is_float:
        return None
    for _, other in _orders(op):
        number = scalar_of(other)
        if number is not None and _ABSORBERS[fn](number):
            return other
    return None


@rewrite(NAME, roots="map", functions="eq ne")
def compared_with_known(graph: Graph, op: Op) -> Outcome:
    """map ne %p, (fill false)  -->  %p, for a bool; so eq with true"""
    for x, other in (op.operands, op.operands[::-1]):
        number = scalar_of(other) if x.type.dtype is bool_ else None
        if number is not None and bool(number) == (op.attrs["fn"] == "eq"):
            return x
    return None


@rewrite(NAME, roots="map convert")
def elementwise_of_fills(graph: Graph, op: Op) -> Outcome:
    """map fn (fill %a), (fill %b)  -->  fill (map fn %a, %b)"""
    if not op.result.shape or not all(x.op.definition.is_splat for x in op.operands):
        return None
    scalars = [x.op.operands[0] for x in op.operands]
    scalar = build(graph, op.kind, scalars, **op.attrs)
    return build(graph, "fill", [scalar], shape=op.result.shape)


@rewrite(NAME, roots="convert")
def needless_convert(graph: Graph, op: Op) -> Outcome:
    """convert %x to its own type  -->  %x;  convert (convert %x to wider) back  -->  %x"""
    x = op.operands[0]
    if x.type == op.result.type:
        return x
    if not x.op.definition.is_conversion:
        return None
    original = x.op.operands[0]
    if original.type != op.result.type:
        return None
    if not holds_all_values(x.type.dtype, original.type.dtype):
        return declined(f"{x.type.dtype} does not hold every {original.type.dtype}")
    return original


def holds_all_values(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow`, NaN and infinities too, comes back from `wide`."""
    if wide is narrow or narrow is bool_:
        return True
    if narrow.is_float:
        return wide.is_float and wide.bits > narrow.bits
    if wide.is_float:
        digits = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}[wide.name]
        return narrow.bits - narrow.is_signed <= digits
    return wide.is_integer and wide.bits >= narrow.bits  # integers wrap, there and back


RULES = (
    operand_and_identity,
    operand_and_absorber,
    compared_with_known,
    repeated_function,
    small_power,
    division_by_power_of_two,
    select_of_known,
    elementwise_of_fills,
    needless_convert,
)
