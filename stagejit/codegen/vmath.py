"""Every scalar function of the op set as loop-nest IR, by JAX primitive name.

Input: a primitive's name, its operands' `DType` (signedness is not in the values), values of any
lane count, the primitive's parameters. Output: the result's value: bools are `i1`. Invariants:
XLA's semantics (see `vmath_number`), at most 2 units in the last place in f32, 16-bit floats
computed in f32 and rounded once per op unless the caller asks to keep f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stagejit.codegen import (
    vmath_erf,
    vmath_exp,
    vmath_log,
    vmath_number,
    vmath_threefry,
    vmath_trig,
)
from stagejit.codegen.builder import Builder
from stagejit.codegen.ir import Type, Value, element_type
from stagejit.codegen.shared_code import shared
from stagejit.codegen.vmath_core import F32, F64
from stagejit.codegen.vmath_cost import cost
from stagejit.errors import InternalError
from stagejit.types import DType

Attrs = Mapping[str, Any]
Args = Sequence[Value]
ScalarFunction = Callable[[Builder, DType, Args, Attrs], Value]

# Flop equivalents from which on a function has enough code to be worth a call.
_LONG = 10.0
# On 16-bit floats these work on the bits themselves; all other functions compute in f32.
_ON_BITS = frozenset(("select", "select_n", "nextafter"))
# What the CPU's instructions take denormals for, a constant among the operands of a function is
# before any code is made from it: comparisons and extrema of constants are decided while compiling.
_KEEPING_DENORMALS = _ON_BITS | {"sign", "neg", "abs"}


def emit(
    b: Builder,
    fn_name: str,
    dtype: DType,
    args: Args,
    attrs: Attrs | None = None,
    *,
    keep_f32: bool = False,
) -> Value:
    """The result of primitive `fn_name` on operands of `dtype`.

    For a 16-bit float dtype an operand may already be f32; with `keep_f32` the result stays f32,
    so that a chain of ops rounds only once.
    """
    function = SCALAR_FUNCTIONS.get(fn_name)
    if function is None:
        raise InternalError(f"no scalar function for primitive `{fn_name}`", step="codegen")
    attrs = attrs or {}
    if dtype.is_float and fn_name not in _KEEPING_DENORMALS:
        args = [_flushed(b, arg) for arg in args]
    if is_long(fn_name, dtype):
        function = _with_calls(function, fn_name)
    if not (dtype.is_float and dtype.bits == 16):
        return function(b, dtype, args, attrs)
    if fn_name in _ON_BITS:
        result = function(b, dtype, _same_width(b, args, dtype), attrs)
        return _widened(b, result) if keep_f32 else result
    result = function(b, dtype, [_widened(b, arg) for arg in args], attrs)
    if keep_f32 or result.type.elem != "f32":
        return result
    return b.cast("fptrunc", result, dtype.name)


def is_long(fn_name: str, dtype: DType) -> bool:
    """Whether the primitive has so much code that it is called where a kernel repeats it."""
    return dtype.is_float and cost(fn_name, dtype) >= _LONG


def _with_calls(function: ScalarFunction, name: str) -> ScalarFunction:
    """The function, called where a kernel has its code many times already."""

    def emitted(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
        if any(arg.const is not None for arg in args) or set(attrs) - {"fn", "dtype"}:
            return function(b, dtype, args, attrs)
        return shared(b, name, args, lambda b, *args: function(b, dtype, args, attrs), dtype)

    return emitted


def _flushed(b: Builder, value: Value) -> Value:
    """A constant that is a denormal where it is computed with, as the zero that CPUs take it for;
    those of f16 are normal numbers in f32."""
    if value.const is None or not value.type.is_float or value.type.elem == "f16":
        return value
    tiny = F64.tiny if value.type.elem == "f64" else F32.tiny
    if not 0 < abs(value.const) < tiny:
        return value
    return b.const(math.copysign(0.0, value.const), value.type)


def _widened(b: Builder, value: Value) -> Value:
    return b.cast("fpext", value, "f32") if value.type.elem in ("f16", "bf16") else value


def _same_width(b: Builder, args: Args, dtype: DType) -> list[Value]:
    """Narrows operands that were kept in f32, should some be and some not."""
    return [b.cast("fptrunc", arg, dtype.name) if arg.type.elem == "f32" else arg for arg in args]


# -------------------------------------------------------------------- conversions


def convert(b: Builder, value: Value, from_dtype: DType, to_dtype: DType) -> Value:
    """XLA's convert: to integers saturating with NaN to 0, to bool `!= 0`, floats rounded once."""
    to = element_type(to_dtype).elem
    if value.type.elem == to and from_dtype.kind == to_dtype.kind:
        return value
    if to_dtype.kind == "bool":
        return _to_bool(b, value)
    if from_dtype.is_float:
        if to_dtype.is_float:
            return _between_floats(b, value, to)
        return b.cast("fptosi" if to_dtype.is_signed else "fptoui", value, to)
    if to_dtype.is_float:
        return b.cast("sitofp" if from_dtype.is_signed else "uitofp", value, to)
    if value.type.bits == element_type(to_dtype).bits:
        return value  # signless
    if value.type.bits > element_type(to_dtype).bits:
        return b.cast("trunc", value, to)
    return b.cast("sext" if from_dtype.is_signed else "zext", value, to)


def _to_bool(b: Builder, value: Value) -> Value:
    if value.type.elem == "i1":
        return value
    return b.compare("ne", _widened(b, value), 0)


def _between_floats(b: Builder, value: Value, to: str) -> Value:
    bits = Type(to).bits
    if value.type.bits == bits == 16:
        value = _widened(b, value)
    return b.cast("fpext" if value.type.bits < bits else "fptrunc", value, to)


def bitcast(b: Builder, value: Value, to_dtype: DType) -> Value:
    """The same bits read as another dtype of equal width."""
    return b.cast("bitcast", value, element_type(to_dtype).elem)


# -------------------------------------------------------------------- the functions


def _float(function: Callable[..., Value]) -> ScalarFunction:
    return lambda b, dtype, args, attrs: function(b, *args)


def _arith(name: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: b.arith(name, *args)


def _add(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return b.arith("or" if dtype.kind == "bool" else "add", *args)


def _mul(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return b.arith("and" if dtype.kind == "bool" else "mul", *args)


def _div(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    if dtype.is_float:
        return args[0] / args[1]
    return vmath_number.int_div(b, *args, signed=dtype.is_signed)


def _rem(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    if dtype.is_float:
        return vmath_number.float_rem(b, *args)
    return vmath_number.int_rem(b, *args, signed=dtype.is_signed)


def _extremum(b: Builder, dtype: DType, x: Value, y: Value, which: str) -> Value:
    if dtype.is_float:
        return (vmath_number.float_max if which == "max" else vmath_number.float_min)(b, x, y)
    if dtype.kind == "bool":
        return b.arith("or" if which == "max" else "and", x, y)
    return b.binary(("s" if dtype.is_signed else "u") + which, x, y)


def _max(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return _extremum(b, dtype, args[0], args[1], "max")


def _min(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return _extremum(b, dtype, args[0], args[1], "min")


def _clamp(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    low, x, high = args
    return _extremum(b, dtype, _extremum(b, dtype, x, low, "max"), high, "min")


def _pow(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    """`attrs["exponent_dtype"]` tells the signedness of an integer exponent; signed otherwise."""
    x, y = args
    if not y.type.is_float:
        exponent = attrs.get("exponent_dtype")
        signed = exponent is None or exponent.is_signed
        y = b.cast("sitofp" if signed else "uitofp", y, x.type.elem)
    return vmath_log.pow(b, x, y)


def _neg(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return b.neg(args[0])


def _abs(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    if dtype.is_float:
        return b.unary("fabs", args[0])
    return b.unary("abs", args[0]) if dtype.is_signed else args[0]


def _sign(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    if dtype.is_float:
        return vmath_number.float_sign(b, args[0])
    return vmath_number.int_sign(b, args[0], signed=dtype.is_signed)


def _unary(opcode: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: b.unary(opcode, args[0])


def _round(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    """`rounding`: "away" takes halves away from zero, "even" to the even neighbour."""
    if attrs.get("rounding", "away") == "away":
        return vmath_number.round_away(b, args[0])
    return b.unary("roundeven", args[0])


def _threefry(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return vmath_threefry.threefry(b, args, attrs["word"])


def _rsqrt(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return 1.0 / b.unary("sqrt", args[0])


def _integer_pow(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return vmath_number.power(b, args[0], attrs["y"])


def _square(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return args[0] * args[0]


def _reduce_precision(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return vmath_number.reduce_precision(b, args[0], attrs["exponent_bits"], attrs["mantissa_bits"])


def _shift(opcode: str) -> ScalarFunction:
    return lambda b, dtype, args, attrs: vmath_number.shift(b, opcode, args[0], args[1])


def _mulhi(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    return vmath_number.upper_product(b, *args, signed=dtype.is_signed)


def _compare(predicate: str) -> ScalarFunction:
    def compare(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
        return b.compare(predicate, *args, signed=dtype.is_signed)

    return compare


def _total_order(predicate: str) -> ScalarFunction:
    """Floats ordered by their bits: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""

    def compare(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
        if not dtype.is_float:
            return b.compare(predicate, *args, signed=dtype.is_signed)
        keys = [_order_key(b, arg) for arg in args]
        return b.compare(predicate, *keys)

    return compare


def _order_key(b: Builder, x: Value) -> Value:
    """A signed integer that sorts as the float does, negative floats mirrored."""
    bits = b.cast("bitcast", x, x.type.as_int.elem)
    mirrored = bits ^ ((1 << (x.type.bits - 1)) - 1)
    return b.select(b.compare("lt", bits, 0), mirrored, bits)


def _select(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    """select(condition, on_true, on_false)"""
    return b.select(*args)


def _select_n(b: Builder, dtype: DType, args: Args, attrs: Attrs) -> Value:
    """jax's order: case `which`, a bool or an integer (out of range: the last)."""
    which, *cases = args
    if which.type.elem == "i1":
        return b.select(which, cases[1], cases[0]) if len(cases) > 1 else cases[0]
    result = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        result = b.select(b.compare("eq", which, number), cases[number], result)
    return result


SCALAR_FUNCTIONS: dict[str, ScalarFunction] = {
    "add": _add, "sub": _arith("sub"), "mul": _mul, "div": _div, "rem": _rem, "max": _max,
    "min": _min, "pow": _pow, "neg": _neg, "abs": _abs, "sign": _sign, "square": _square,
    "integer_pow": _integer_pow, "mulhi": _mulhi, "clamp": _clamp,
    "atan2": _float(vmath_trig.atan2), "nextafter": _float(vmath_number.next_after),
    "floor": _unary("floor"), "ceil": _unary("ceil"), "round": _round,
    "threefry2x32": _threefry,
    "exp": _float(vmath_exp.exp), "exp2": _float(vmath_exp.exp2),
    "expm1": _float(vmath_exp.expm1), "log": _float(vmath_log.log),
    "log1p": _float(vmath_log.log1p), "tanh": _float(vmath_exp.tanh),
    "logistic": _float(vmath_exp.logistic), "sinh": _float(vmath_exp.sinh),
    "cosh": _float(vmath_exp.cosh), "asinh": _float(vmath_log.asinh),
    "acosh": _float(vmath_log.acosh), "atanh": _float(vmath_log.atanh),
    "sin": _float(vmath_trig.sin), "cos": _float(vmath_trig.cos), "tan": _float(vmath_trig.tan),
    "asin": _float(vmath_trig.asin), "acos": _float(vmath_trig.acos),
    "atan": _float(vmath_trig.atan), "sqrt": _unary("sqrt"), "rsqrt": _rsqrt,
    "cbrt": _float(vmath_log.cbrt), "erf": _float(vmath_erf.erf),
    "erfc": _float(vmath_erf.erfc), "erf_inv": _float(vmath_erf.erf_inv),
    "is_finite": _float(vmath_number.is_finite), "reduce_precision": _reduce_precision,
    "not": _float(vmath_number.boolean_not), "and": _arith("and"), "or": _arith("or"),
    "xor": _arith("xor"), "population_count": _unary("ctpop"), "clz": _unary("ctlz"),
    "shift_left": _shift("shl"), "shift_right_logical": _shift("lshr"),
    "shift_right_arithmetic": _shift("ashr"),
    "eq": _compare("eq"), "ne": _compare("ne"), "lt": _compare("lt"), "le": _compare("le"),
    "gt": _compare("gt"), "ge": _compare("ge"), "eq_to": _total_order("eq"),
    "lt_to": _total_order("lt"), "le_to": _total_order("le"),
    "select": _select, "select_n": _select_n,
}  # fmt: skip

__all__ = ["SCALAR_FUNCTIONS", "Attrs", "ScalarFunction", "bitcast", "convert", "cost", "emit"]
