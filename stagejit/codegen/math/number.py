"""Exact scalar functions as loop-nest IR: rounding, remainders, integer division, shifts, extrema.

Input and output: `Value`s, scalar or vector. Invariant: XLA's results wherever C leaves the
behaviour undefined: integers divide by zero to -1, keep the dividend as remainder and never trap; a
shift by the width or more gives 0 or the sign; a NaN operand of max, min and clamp is the result.
"""

from __future__ import annotations

import math

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.ir.shared_code import called
from stagejit.codegen.math.core import INFINITY, NAN, bits_of, copy_sign, from_bits, where_some
from stagejit.types import DType

# Quotient bits that one step of `rem` removes, with room to spare for an exact product.
_REM_BITS = {"f32": 20, "f64": 48}


# -------------------------------------------------------------------- floats


def extremum(b: Builder, dtype: DType, which: str, x: Value, y: Value) -> Value:
    """The "max" or "min" of x and y; of floats NaN if either is, and -0 < +0."""
    if dtype.kind == "bool":
        return b.binary("or" if which == "max" else "and", x, y)
    if not dtype.is_float:
        return b.binary(("s" if dtype.is_signed else "u") + which, x, y)
    # A constant saves the careful way: `fmax a, b` is b where b is NaN or both are zeros, so one
    # in front needs nothing more, unless it is the zero that wins (the +0 of relu).
    number, other = (y, x) if _is_number(y) else (x, y)
    if not _is_number(number):
        return b.binary(f"f{which}imum", x, y)
    chosen = b.binary(f"f{which}", number, other)
    if number.const == 0 and which == "max" and math.copysign(1, number.const) > 0:
        return abs(chosen)
    if number.const == 0 and which == "min" and math.copysign(1, number.const) < 0:
        return -abs(chosen)
    return chosen


def clamp(b: Builder, dtype: DType, low: Value, x: Value, high: Value) -> Value:
    return extremum(b, dtype, "min", extremum(b, dtype, "max", x, low), high)


def _is_number(x: Value) -> bool:
    return x.const is not None and not math.isnan(x.const)


def size(b: Builder, dtype: DType, x: Value) -> Value:
    """|x|"""
    if dtype.is_float:
        return abs(x)
    return b.unary("abs", x) if dtype.is_signed else x


def sign(b: Builder, dtype: DType, x: Value) -> Value:
    """-1, 1, or x itself where it is zero or NaN. Of floats by their bits: a comparison with zero
    takes denormals for zeros where the CPU does, and would pass them through."""
    if dtype.is_float:
        zero = b.compare("eq", bits_of(b, abs(x)), 0)
        return b.select(zero | b.compare("uno", x, x), x, copy_sign(b, b.const(1.0, x.type), x))
    positive = b.cast("zext", b.compare("gt", x, 0, signed=dtype.is_signed), x.type.elem)
    return positive | b.binary("ashr", x, x.type.bits - 1) if dtype.is_signed else positive


def rounded_to(b: Builder, x: Value, rounding: str) -> Value:
    """To the nearest integer; of halves the one "away" from zero, or the "even" one."""
    if rounding == "even":
        return b.unary("roundeven", x)
    a = abs(x)
    whole = b.unary("floor", a)
    up = b.compare("ge", a - whole, 0.5)
    return copy_sign(b, b.select(up, whole + 1.0, whole), x)


def next_after(b: Builder, x: Value, y: Value) -> Value:
    """The neighbour of x towards y, on the bits, so denormals count whatever the CPU's mode."""
    bits, target = bits_of(b, x), bits_of(b, y)
    sign, infinity = x.type.sign, x.type.infinity
    size, other = bits & ~sign, target & ~sign
    opposite = b.compare("lt", bits ^ target, 0)
    inwards = opposite | (size > other)
    moved = bits + b.select(inwards, b.const(-1, bits.type), 1)
    moved = b.select(b.compare("eq", size, 0), (target & sign) | 1, moved)
    both_zero = b.compare("eq", size | other, 0)
    moved = b.select(both_zero | b.compare("eq", bits, target), target, moved)
    nan = infinity | (1 << (x.type.mantissa - 1))
    moved = b.select((size > infinity) | (other > infinity), nan, moved)
    return b.cast("bitcast", moved, x.type.elem)


def is_finite(b: Builder, x: Value) -> Value:
    return abs(x) < INFINITY


def _float_rem(b: Builder, x: Value, y: Value) -> Value:
    """C's fmod, exact for all magnitudes: one division where the quotient has room in a float."""
    smaller = abs(x) < abs(y)
    if x.type.lanes:
        return b.select(smaller, x, _divided(b, x, y))
    return b.if_(smaller, lambda: [x], lambda: [_divided(b, x, y)])[0]


def _divided(b: Builder, x: Value, y: Value) -> Value:
    type, dividend, divisor = x.type, abs(x), abs(y)
    ratio = dividend / divisor
    # Bits of the rest are bits of the divisor, none of which is a denormal number here.
    one = (ratio < 2.0 ** (type.mantissa - 1)) & (divisor >= type.tiny * 2.0**type.mantissa)
    return where_some(
        b,
        ~one,
        lambda: called(b, "rem_long", [x, y], _long_division, "rare"),
        lambda: copy_sign(b, _rest(b, dividend, divisor, ratio), x),
    )


def _rest(b: Builder, dividend: Value, divisor: Value, ratio: Value) -> Value:
    """What a division to a whole number leaves of the dividend. ratio: rounded."""
    # Rounded, it is never below the true integer part: at most one step back.
    over = b.fma(-b.unary("trunc", ratio), divisor, dividend, exact=True)
    return b.select(over < 0.0, over + divisor, over)


def _long_division(b: Builder, x: Value, y: Value) -> Value:
    """fmod, some quotient bits at a time."""
    type = x.type
    dividend, high = _significand(b, abs(x))
    divisor, low = _significand(b, abs(y))
    valid = is_finite(b, x) & is_finite(b, y) & b.compare("ne", y, 0.0)
    left = b.select(valid, b.binary("smax", high - low, 0), 0)
    rest = b.select(b.compare("ge", dividend, divisor), dividend - divisor, dividend)
    longest = b.reduce("smax", left) if left.type.lanes else left
    step = _REM_BITS[type.elem]
    steps = b.binary("div", b.cast("sext", longest, "i64") + (step - 1), step)

    def divide(_: Value, rest: Value, left: Value) -> list[Value]:
        taken = b.binary("smin", left, step)
        scaled = rest * from_bits(b, (taken + type.bias) << type.mantissa)
        return [_rest(b, scaled, divisor, scaled / divisor), left - taken]

    rest, _ = b.loop(0, steps, 1, [rest, left], divide)
    result = copy_sign(b, b.scalef(rest, b.cast("sitofp", low, type.elem)), x)
    return b.select(valid, result, NAN)


def _significand(b: Builder, a: Value) -> tuple[Value, Value]:
    """(m, e) with a = m 2^e and 1 <= m < 2, for a > 0, denormals too."""
    mantissa, bias, tiny = a.type.mantissa, a.type.bias, a < a.type.tiny
    bits = bits_of(b, b.select(tiny, a * 2.0 ** (mantissa + 1), a))
    exponent = (bits >> mantissa) - bias
    exponent = exponent - b.select(tiny, b.const(mantissa + 1, bits.type), 0)
    return from_bits(b, (bits & ((1 << mantissa) - 1)) | (bias << mantissa)), exponent


# -------------------------------------------------------------------- integers


def quotient(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.is_float:
        return x / y
    zero = b.compare("eq", y, 0)
    return b.select(zero, -1, _quotient(b, x, y, zero, signed=dtype.is_signed))


def remainder(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.is_float:
        return _float_rem(b, x, y)
    zero = b.compare("eq", y, 0)
    return b.select(zero, x, x - _quotient(b, x, y, zero, signed=dtype.is_signed) * y)


def _quotient(b: Builder, x: Value, y: Value, zero: Value, *, signed: bool) -> Value:
    """x / y towards zero; anything where y is 0; wraps for the lowest integer by -1."""
    opcode = "sdiv" if signed else "udiv"
    if y.const is not None and y.const not in (0, -1):
        return b.binary(opcode, x, y)
    if x.type.lanes and x.type.bits <= 32:
        quotient = _quotient_in_floats(b, x, y, signed=signed)
    else:
        unsafe = zero | b.compare("eq", y, -1) if signed else zero
        quotient = b.binary(opcode, x, b.select(unsafe, 1, y))
    return b.select(b.compare("eq", y, -1), 0 - x, quotient) if signed else quotient


def _quotient_in_floats(b: Builder, x: Value, y: Value, *, signed: bool) -> Value:
    """CPUs have no vector integer division. A float of more than twice the bits truncates right:
    a true quotient below an integer is further below it than half a unit in the last place."""
    elem = "f32" if x.type.bits <= 8 else "f64"
    to_float, to_int = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    quotient = b.cast(to_float, x, elem) / b.cast(to_float, y, elem)
    return b.cast(to_int, quotient, x.type.elem)


def shift(b: Builder, opcode: str, x: Value, amount: Value) -> Value:
    """shl, lshr or ashr; an amount of the width or more (read unsigned) shifts everything out."""
    width = x.type.bits
    if isinstance(amount.const, int) and 0 <= amount.const < width:
        return b.binary(opcode, x, amount)
    if opcode == "ashr":
        return b.binary("ashr", x, b.binary("umin", amount, width - 1))
    fits = b.compare("lt", amount, width, signed=False)
    return b.select(fits, b.binary(opcode, x, b.select(fits, amount, 0)), 0)


def power(b: Builder, x: Value, exponent: int) -> Value:
    """x^exponent by squaring, as jax's integer_pow; a negative exponent inverts at the end."""
    if exponent == 0:
        return b.const(1, x.type)
    result: Value | None = None
    base, left = x, abs(exponent)
    while left:
        if left & 1:
            result = base if result is None else result * base
        left >>= 1
        if left:
            base = base * base
    assert result is not None
    return result if exponent > 0 else 1 / result
