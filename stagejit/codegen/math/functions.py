"""Every scalar function of the op set as loop-nest IR, by JAX primitive name.

Input: a primitive's name, its operands' `DType` (signedness is not in the values), values of any
lane count, the primitive's parameters. Output: the result's value: bools are `i1`. Invariants:
XLA's semantics (see `number.py`), at most 2 units in the last place in f32, 16-bit floats
computed in f32 and rounded once per op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value, element_type
from stagejit.codegen.ir.shared_code import shared
from stagejit.codegen.math import erf, exp, log, number, threefry, trig
from stagejit.codegen.math.cost import cost
from stagejit.errors import InternalError
from stagejit.types import DType

Attrs = Mapping[str, Any]
Args = Sequence[Value]
ScalarFunction = Callable[[Builder, DType, Args, Attrs], Value]

# Flop equivalents from which on a function has enough code to be worth a call.
_LONG = 10.0
# On 16-bit floats these work on the bits themselves; all other functions compute in f32.
_ON_BITS = frozenset(("select", "nextafter"))
# What the CPU's instructions take denormals for, a constant among the operands of a function is
# before any code is made from it: comparisons and extrema of constants are decided while compiling.
_KEEPING_DENORMALS = _ON_BITS | {"sign", "neg", "abs"}


def emit(b: Builder, fn_name: str, dtype: DType, args: Args, attrs: Attrs | None = None) -> Value:
    """The result of primitive `fn_name` on operands of `dtype`."""
    attrs = attrs or {}
    if dtype.is_float and fn_name not in _KEEPING_DENORMALS:
        args = [_flushed(b, arg) for arg in args]
    if fn_name in _ON_BITS or not (dtype.is_float and dtype.bits == 16):
        return _written(b, fn_name, dtype, args, attrs)
    result = _written(b, fn_name, dtype, [_widened(b, arg) for arg in args], attrs)
    return b.cast("fptrunc", result, dtype.name) if result.type.elem == "f32" else result


def _written(b: Builder, fn_name: str, dtype: DType, args: Args, attrs: Attrs) -> Value:
    """The function, called where it is long and a kernel has its code many times already."""
    function = SCALAR_FUNCTIONS.get(fn_name)
    if function is None:
        raise InternalError(f"no scalar function for primitive `{fn_name}`", step="codegen")
    special = any(arg.const is not None for arg in args) or bool(set(attrs) - {"fn", "dtype"})
    if special or not is_long(fn_name, dtype):
        return function(b, dtype, args, attrs)
    return shared(b, fn_name, args, lambda b, *args: function(b, dtype, args, attrs), dtype)


def is_long(fn_name: str, dtype: DType) -> bool:
    """Whether the primitive has so much code that it is called where a kernel repeats it."""
    return dtype.is_float and cost(fn_name, dtype) >= _LONG


def _flushed(b: Builder, value: Value) -> Value:
    """A constant that is a denormal where it is computed with, as the zero that CPUs take it for;
    those of f16 are normal numbers in f32."""
    if value.const is None or not value.type.is_float or value.type.elem == "f16":
        return value
    if not 0 < abs(value.const) < value.type.tiny:
        return value
    return b.const(math.copysign(0.0, value.const), value.type)


def _widened(b: Builder, value: Value) -> Value:
    return b.cast("fpext", value, "f32") if value.type.elem in ("f16", "bf16") else value


# -------------------------------------------------------------------- conversions


def convert(b: Builder, value: Value, from_dtype: DType, to_dtype: DType) -> Value:
    """XLA's convert: to integers saturating with NaN to 0, to bool `!= 0`, floats rounded once."""
    to = element_type(to_dtype)
    if value.type.elem == to.elem:
        return value
    if to_dtype.kind == "bool":
        return b.compare("ne", _widened(b, value), 0)
    if from_dtype.is_float and to_dtype.is_float:
        if value.type.bits == to.bits:  # one 16-bit format to the other
            value = _widened(b, value)
        opcode = "fpext" if value.type.bits < to.bits else "fptrunc"
    elif from_dtype.is_float:
        opcode = "fptosi" if to_dtype.is_signed else "fptoui"
    elif to_dtype.is_float:
        opcode = "sitofp" if from_dtype.is_signed else "uitofp"
    elif value.type.bits > to.bits:
        opcode = "trunc"
    else:
        opcode = "sext" if from_dtype.is_signed else "zext"
    return b.cast(opcode, value, to.elem)


def bitcast(b: Builder, value: Value, to_dtype: DType) -> Value:
    """The same bits read as another dtype of equal width."""
    return b.cast("bitcast", value, element_type(to_dtype).elem)


# -------------------------------------------------------------------- the functions


def _of_values(function: Callable[..., Value], *first: str, attr: str = "") -> ScalarFunction:
    """A function of the values alone, or of them and an attribute."""

    def emitted(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
        return function(b, *first, *args, *([attrs[attr]] if attr else ()))

    return emitted


def _of_dtype(function: Callable[..., Value], *first: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: function(b, dtype, *first, *args)


def _arith(name: str, of_bools: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: b.binary(of_bools if dtype.kind == "bool" else name, *args)


def _compare(predicate: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: b.compare(predicate, *args, signed=dtype.is_signed)


_REAL = (
    exp.exp, exp.exp2, exp.expm1, exp.logistic, exp.tanh, exp.sinh, exp.cosh, log.log, log.log1p,
    log.asinh, log.acosh, log.atanh, log.pow, log.cbrt, trig.sin, trig.cos, trig.tan, trig.asin,
    trig.acos, trig.atan, trig.atan2, erf.erf, erf.erfc, erf.erf_inv,
)  # fmt: skip
_OPCODES = {"floor": "floor", "ceil": "ceil", "sqrt": "sqrt", "population_count": "ctpop",
            "clz": "ctlz"}  # fmt: skip
_SHIFTS = {"shift_left": "shl", "shift_right_logical": "lshr", "shift_right_arithmetic": "ashr"}
SCALAR_FUNCTIONS: dict[str, ScalarFunction] = {
    "add": _arith("add", "or"), "mul": _arith("mul", "and"),
    "div": _of_dtype(number.quotient), "rem": _of_dtype(number.remainder),
    "clamp": _of_dtype(number.clamp), "neg": _of_values(lambda b, x: -x),
    "abs": _of_dtype(number.size), "sign": _of_dtype(number.sign),
    "square": _of_values(lambda b, x: x * x), "integer_pow": _of_values(number.power, attr="y"),
    "nextafter": _of_values(number.next_after),
    "round": _of_values(number.rounded_to, attr="rounding"),
    "rsqrt": _of_values(lambda b, x: 1.0 / b.unary("sqrt", x)),
    "is_finite": _of_values(number.is_finite), "not": _of_values(lambda b, x: ~x),
    "threefry2x32": _of_values(threefry.threefry, attr="word"),
    "select": _of_values(Builder.select),
    **{name: _of_values(Builder.binary, name) for name in ("sub", "and", "or", "xor")},
    **{name: _of_values(Builder.unary, opcode) for name, opcode in _OPCODES.items()},
    **{name: _of_values(number.shift, opcode) for name, opcode in _SHIFTS.items()},
    **{name: _of_dtype(number.extremum, name) for name in ("max", "min")},
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{function.__name__: _of_values(function) for function in _REAL},
}  # fmt: skip

__all__ = ["SCALAR_FUNCTIONS", "Attrs", "ScalarFunction", "bitcast", "convert", "cost", "emit"]
