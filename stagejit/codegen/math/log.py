"""Logarithms and what is made of them as loop-nest IR: log, log1p, asinh, acosh, atanh, pow, cbrt.

Input and output: one (pow: two) f32 or f64 `Value`. Method: x = m 2^k with m in [2/3, 4/3) or
[0.71, 1.41), read from the bits; a polynomial in m - 1 (f32) or in (m - 1) / (m + 1) (f64).
Invariants: at most 2 units in the last place; IEEE 754's special cases; f32 pow is computed in f64,
f64 pow with a logarithm in two words.
"""

from __future__ import annotations

import math

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import F64, Value
from stagejit.codegen.math.core import (
    INFINITY,
    LN2,
    NAN,
    between,
    bits_of,
    copy_sign,
    fast_two_sum,
    from_bits,
    narrow,
    polynomial,
    rounded,
    sorted_two_sum,
    two_product,
    widen,
)
from stagejit.codegen.math.exp import exp_of_sum

# Bits of the smallest m: 2/3 for f32; sqrt(1/2) for f64, whose polynomial is in (m - 1) / (m + 1).
_LOWEST = {"f32": 0x3F2AAAAB, "f64": 0x3FE6A09E667F3BCD}
_LN2_HIGH = 0.6931471803691238  # 33 bits: k times it is exact
_LN2_LOW = 1.9082149292705877e-10
_TWO_THIRDS_LOW = 3.700743415417188e-17  # 2/3 minus its f64
_PAST_SQUARES = 2.0**500


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """(m, k) with x = m 2^k, for x > 0; denormals are scaled first."""
    tiny, mantissa = x < x.type.tiny, x.type.mantissa
    m, k = _split_normal(b, b.select(tiny, x * 2.0**mantissa, x))
    return m, k + b.select(tiny, b.const(-float(mantissa), x.type), 0.0)


def _split_normal(b: Builder, x: Value) -> tuple[Value, Value]:
    bits, mantissa = bits_of(b, x), x.type.mantissa
    k = b.binary("ashr", bits - _LOWEST[x.type.elem], mantissa)
    return from_bits(b, bits - (k << mantissa)), b.cast("sitofp", k, x.type.elem)


def _log_f32(b: Builder, g: Value, k: Value) -> Value:
    """log(1 + g) + k log(2)"""
    ln2_high, ln2_low = LN2["f32"]
    square = g * g
    tail = polynomial(b, "LOG", g) * g * square
    y = b.fma(k, ln2_low, b.fma(square, -0.5, tail))
    return b.fma(k, ln2_high, g + y)


def _log_f64(b: Builder, g: Value, k: Value, low: Operand | None = None) -> Value:
    """log(1 + g) + low + k log(2); `low` is a correction far below g."""
    ln2_high, ln2_low = LN2["f64"]
    s = g / (g + 2.0)
    z = s * s
    half_square = g * g * 0.5
    rest = s * b.fma(polynomial(b, "LOG", z), z, half_square)
    if low is not None:
        rest = rest + low
    rest = b.fma(k, ln2_low, rest) - half_square
    return b.fma(k, ln2_high, g + rest)


def log(b: Builder, x: Value) -> Value:
    m, k = _split(b, x)
    g = m - 1.0
    y = _log_f32(b, g, k) if x.type.elem == "f32" else _log_f64(b, g, k)
    return _log_special(b, x, y, 0.0)


def _log_special(b: Builder, x: Value, y: Value, pole: float) -> Value:
    """`y` between `pole` and infinity; NaN, which compares false with everything, stays NaN."""
    at_pole = b.compare("eq", x, pole)
    outside = b.select(at_pole, b.const(-INFINITY, x.type), NAN)
    return b.select(x > pole, b.select(x < INFINITY, y, x), outside)


def _log1p_sum(
    b: Builder, x: Value, low: Operand | None = None, doublings: Operand | None = None
) -> Value:
    """log(1 + x + low) + doublings log(2) for finite x > -1."""
    elem, mantissa = x.type.elem, x.type.mantissa
    k_bits = b.binary("ashr", bits_of(b, x + 1.0) - _LOWEST[elem], mantissa)
    # 4 * 2^-k is normal where 2^-k is not.
    scale = from_bits(b, ((x.type.bias + 2) << mantissa) - (k_bits << mantissa))
    g = b.fma(x * 0.25, scale, b.fma(scale, 0.25, -1.0))
    k = b.cast("sitofp", k_bits, elem)
    if doublings is not None:
        k = k + doublings
    if elem == "f32":
        return _log_f32(b, g, k)
    correction = None if low is None else b.binary("mul", low, scale) * 0.25 / (g + 1.0)
    return _log_f64(b, g, k, correction)


def log1p(b: Builder, x: Value) -> Value:
    y = _log1p_sum(b, x)
    tiny = abs(x) < (1e-20 if x.type.elem == "f32" else 1e-40)
    return _log_special(b, x, b.select(tiny, x, y), -1.0)  # keeps -0


# -------------------------------------------------------------------- inverse hyperbolic functions


def asinh(b: Builder, x: Value) -> Value:
    a, short = widen(b, abs(x)), x.type.elem == "f32"
    if short:
        y = log_short(b, a + b.unary("sqrt", b.fma(a, a, 1.0)))
    else:
        y = _asinh(b, a)
    y = b.select(a < (1e-4 if short else 1e-40), a, y)  # the next term is a^3 / 6
    return copy_sign(b, narrow(b, b.select(a < INFINITY, y, a), x), x)


def _asinh(b: Builder, a: Value) -> Value:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))), the sum in two words."""
    big = a > _PAST_SQUARES
    near = b.select(big, 1.0, a)
    square = near * near
    u = square / (b.unary("sqrt", square + 1.0) + 1.0)
    high, low = fast_two_sum(near, u)
    return _log1p_or_past_squares(b, big, a, high, low)


def acosh(b: Builder, x: Value) -> Value:
    wide = widen(b, x)
    if x.type.elem == "f32":
        y = log_short(b, wide + b.unary("sqrt", b.fma(wide, wide, -1.0)))
    else:
        y = _acosh(b, x)
    y = narrow(b, b.select(wide < INFINITY, y, wide), x)
    return b.select(b.compare("ge", x, 1.0), y, NAN)


def _acosh(b: Builder, x: Value) -> Value:
    """log1p(t + sqrt(2t + t^2)) with t = x - 1, the sum in two words."""
    big = x > _PAST_SQUARES
    t = b.select(big, 1.0, x) - 1.0
    radicand = b.fma(t, t, t * 2.0)
    root = b.unary("sqrt", radicand)
    missing = b.fma(-root, root, radicand, exact=True) / (root * 2.0)
    missing = b.select(b.compare("eq", root, 0.0), 0.0, missing)
    high, low = sorted_two_sum(b, t, root)
    return _log1p_or_past_squares(b, big, x, high, low + missing)


def _log1p_or_past_squares(b: Builder, big: Value, x: Value, high: Value, low: Value) -> Value:
    """log(1 + high + low), but where x is `big`, log(2x)."""
    one = b.const(1.0, x.type)
    sum_, rest = b.select(big, x, high), b.select(big, 0.0, low)
    return _log1p_sum(b, sum_, rest, b.select(big, one, 0.0))


def atanh(b: Builder, x: Value) -> Value:
    a, short = widen(b, abs(x)), x.type.elem == "f32"
    y = (log_short(b, (a + 1.0) / (1.0 - a)) if short else _twice_atanh(b, a)) * 0.5
    y = b.select(a < (1e-4 if short else 1e-40), a, y)
    return copy_sign(b, narrow(b, infinite_at_one(b, a, y), x), x)


def _twice_atanh(b: Builder, a: Value) -> Value:
    """log1p(2a / (1 - a)), the quotient in two words."""
    over = 1.0 - a
    lost = (1.0 - over) - a
    double = a * 2.0
    quotient = double / over
    low = (b.fma(-quotient, over, double, exact=True) - quotient * lost) / over
    return _log1p_sum(b, quotient, low)


def infinite_at_one(b: Builder, a: Value, y: Value) -> Value:
    """`y` for 0 <= a < 1, which has a pole at 1 and is no number beyond."""
    y = b.select(b.compare("eq", a, 1.0), INFINITY, y)
    return b.select(b.compare("le", a, 1.0), y, NAN)


def log_short(b: Builder, x: Value) -> Value:
    """f64 log of a finite x > 0 to 2^-36 of itself: good for a result in f32."""
    return _log2_short(b, x) * math.log(2)


def _log2_short(b: Builder, x: Value) -> Value:
    m, k = _split_normal(b, x)
    s = (m - 1.0) / (m + 1.0)
    return b.fma(polynomial(b, "LOG2_SHORT", s * s), s, k)


# -------------------------------------------------------------------- powers


def pow(b: Builder, x: Value, y: Value) -> Value:
    base, power = widen(b, abs(x)), widen(b, y)
    magnitude = (_pow_short if x.type.elem == "f32" else _pow_f64)(b, base, power)
    return _pow_special(b, x, y, narrow(b, magnitude, x))


def _pow_short(b: Builder, base: Value, power: Value) -> Value:
    """In f64 with polynomials of f32's precision."""
    log2 = _log2_short(b, base)
    log2 = b.select(b.compare("eq", base, 0.0), -INFINITY, log2)
    log2 = b.select(b.compare("eq", base, INFINITY), INFINITY, log2)
    e = between(b, -160.0, power * log2, 130.0)
    n, bits = rounded(b, e, 1.0)
    r = e - n
    p = b.fma(polynomial(b, "EXP2_SHORT", r), r, 1.0)
    return from_bits(b, bits_of(b, p) + (bits << F64.mantissa))  # far from over- or underflow


def _log_two_words(b: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) for x > 0, to about 2^-66 of it."""
    m, k = _split(b, x)
    numerator, over = m - 1.0, m + 1.0
    lost = m - (over - 1.0)
    s = numerator / over
    s_low = (b.fma(-s, over, numerator, exact=True) - s * lost) / over
    z, z_low = two_product(b, s, s)
    z_low = b.fma(s * 2.0, s_low, z_low)
    tail = polynomial(b, "LOG_DOUBLE", z) * z
    factor, factor_low = fast_two_sum(b.const(2.0 / 3.0, x.type), tail)
    factor_low = factor_low + _TWO_THIRDS_LOW
    cube, cube_low = two_product(b, z, s)
    cube_low = b.fma(z, s_low, b.fma(z_low, s, cube_low))
    term, term_low = two_product(b, cube, factor)
    term_low = b.fma(cube, factor_low, b.fma(cube_low, factor, term_low))
    high, low = fast_two_sum(s * 2.0, term)
    low = low + b.fma(s_low, 2.0, term_low)
    k_high = k * _LN2_HIGH
    total, error = _two_sum(k_high, high)
    return fast_two_sum(total, error + b.fma(k, _LN2_LOW, low))


def _two_sum(a: Value, d: Value) -> tuple[Value, Value]:
    total = a + d
    shadow = total - a
    return total, (a - (total - shadow)) + (d - shadow)


def _pow_f64(b: Builder, base: Value, power: Value) -> Value:
    log_high, log_low = _log_two_words(b, base)
    e, low = two_product(b, power, log_high)
    low = b.fma(power, log_low, low)
    special = b.compare("eq", base, 0.0)
    huge = b.compare("eq", base, INFINITY)
    # Where e is out of range or not a number, e decides alone, and `low` must not spoil it.
    direct = power * b.select(special, -INFINITY, b.select(huge, INFINITY, log_high))
    e = b.select(special | huge | ~(abs(e) < 800.0), direct, e)
    low = b.select(abs(e) < 800.0, low, 0.0)
    return exp_of_sum(b, between(b, -746.0, e, 711.0), low)


def _pow_special(b: Builder, x: Value, y: Value, magnitude: Value) -> Value:
    """Sign, invalid operands, and the bases and exponents whose power is 1 whatever the other."""
    integral = b.compare("eq", b.unary("trunc", y), y)
    half = y * 0.5
    size = abs(y)
    odd = integral & b.compare("ne", b.unary("trunc", half), half)
    odd = odd & (size < 2.0 ** (x.type.mantissa + 1))
    negative = b.compare("lt", bits_of(b, x), 0)
    result = b.select(negative & odd, -magnitude, magnitude)
    invalid = (x < 0.0) & ~integral & (abs(x) < INFINITY)
    result = b.select(invalid, NAN, result)
    result = b.select(b.compare("uno", x, y), NAN, result)
    one = b.compare("eq", x, 1.0) | b.compare("eq", y, 0.0)
    one = one | (b.compare("eq", x, -1.0) & b.compare("eq", size, INFINITY))
    return b.select(one, 1.0, result)


def cbrt(b: Builder, x: Value) -> Value:
    """x = m 8^q with 1/2 <= m < 4, and cbrt(m) 2^q put together from the bits."""
    wide, short = widen(b, x), x.type.elem == "f32"
    a = abs(wide)
    tiny = a < F64.tiny
    bits = bits_of(b, b.select(tiny, a * 2.0**54, a))
    exponent = (bits >> F64.mantissa) - 1022
    third = b.binary("ashr", (exponent + 1200) * 21846, 16) - 400  # floor(exponent / 3)
    m = from_bits(b, bits - (third * 3 << F64.mantissa))
    shift = third - b.select(tiny, b.const(18, third.type), 0)
    y = bits_of(b, _cbrt_of_mantissa(b, m, short=short)) + (shift << F64.mantissa)
    finite = (a > 0.0) & (a < INFINITY)
    y = b.select(finite, copy_sign(b, from_bits(b, y), wide), wide + wide)
    return narrow(b, y, x)


def _cbrt_of_mantissa(b: Builder, m: Value, *, short: bool) -> Value:
    """A polynomial guess, one Halley step (2^-27) and, unless `short`, one Newton step on the
    exact residual."""
    t = polynomial(b, "CBRT", m)
    cube = t * t * t
    t = t * (b.fma(m, 2.0, cube) / b.fma(cube, 2.0, m))
    if short:
        return t
    square, square_low = two_product(b, t, t)
    residual = b.fma(square, t, -m, exact=True) + t * square_low
    return t - residual / (square * 3.0)
