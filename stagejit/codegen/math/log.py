"""Logarithms and what is made of them as loop-nest IR: log, log1p, asinh, acosh, atanh, pow, cbrt.

Input and output: one (pow: two) f32 or f64 `Value`. Method: x = m 2^k with m in [2/3, 4/3) or
[0.71, 1.41), read from the bits; a polynomial in m - 1 (f32) or in (m - 1) / (m + 1) (f64).
Invariants: at most 2 units in the last place; IEEE 754's special cases; f32 pow is computed in f64,
f64 pow with a logarithm in two words.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math import coefficients as c
from stagejit.codegen.math.core import (
    F64,
    INFINITY,
    NAN,
    Format,
    absolute,
    at_least,
    at_most,
    bits_of,
    copy_sign,
    fast_two_sum,
    format_of,
    from_bits,
    horner,
    invert,
    narrow,
    rounded,
    two_product,
    widen,
)
from stagejit.codegen.math.exp import exp_tail

# Bits of the smallest m: 2/3 for f32, sqrt(1/2) for f64, where the polynomial is in (m - 1) / (m +
# 1).
_LOWEST = {"f32": 0x3F2AAAAB, "f64": 0x3FE6A09E667F3BCD}
_LN2_HIGH = 0.6931471803691238  # 33 bits: k times it is exact
_LN2_LOW = 1.9082149292705877e-10
_TWO_THIRDS_LOW = 3.700743415417188e-17  # 2/3 minus its f64
_PAST_SQUARES = 2.0**500


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """(m, k) with x = m 2^k, for x > 0; denormals are scaled first."""
    f = format_of(x)
    tiny = x < f.tiny
    scaled = b.select(tiny, x * 2.0**f.mantissa, x)
    m, k = _split_normal(b, scaled, f)
    return m, k + b.select(tiny, b.const(-float(f.mantissa), x.type), 0.0)


def _split_normal(b: Builder, x: Value, f: Format) -> tuple[Value, Value]:
    bits = bits_of(b, x)
    k = b.ashr(bits - _LOWEST[f.elem], f.mantissa)
    return from_bits(b, bits - (k << f.mantissa), f.elem), b.cast("sitofp", k, f.elem)


def _log_f32(b: Builder, g: Value, k: Value) -> Value:
    """log(1 + g) + k log(2)"""
    ln2_high, ln2_low = format_of(g).ln2
    square = g * g
    tail = horner(b, c.LOG_F32, g) * g * square
    y = b.fma(k, ln2_low, b.fma(square, -0.5, tail))
    return b.fma(k, ln2_high, g + y)


def _log_f64(b: Builder, g: Value, k: Value, low: Operand | None = None) -> Value:
    """log(1 + g) + low + k log(2); `low` is a correction far below g."""
    s = g / (g + 2.0)
    z = s * s
    half_square = g * g * 0.5
    rest = s * b.fma(horner(b, c.LOG_F64, z), z, half_square)
    if low is not None:
        rest = rest + low
    rest = b.fma(k, F64.ln2[1], rest) - half_square
    return b.fma(k, F64.ln2[0], g + rest)


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
    f = format_of(x)
    k_bits = b.ashr(bits_of(b, x + 1.0) - _LOWEST[f.elem], f.mantissa)
    # 4 * 2^-k is normal where 2^-k is not.
    four = b.arith("sub", (f.bias + 2) << f.mantissa, k_bits << f.mantissa)
    scale = from_bits(b, four, f.elem)
    g = b.fma(x * 0.25, scale, b.fma(scale, 0.25, -1.0))
    k = b.cast("sitofp", k_bits, f.elem)
    if doublings is not None:
        k = k + doublings
    if f.elem == "f32":
        return _log_f32(b, g, k)
    correction = None if low is None else b.arith("mul", low, scale) * 0.25 / (g + 1.0)
    return _log_f64(b, g, k, correction)


def log1p(b: Builder, x: Value) -> Value:
    y = _log1p_sum(b, x)
    tiny = absolute(b, x) < (1e-20 if x.type.elem == "f32" else 1e-40)
    return _log_special(b, x, b.select(tiny, x, y), -1.0)  # keeps -0


# -------------------------------------------------------------------- inverse hyperbolic functions


def _asinh(b: Builder, x: Value) -> Value:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))), the sum in two words."""
    a = absolute(b, x)
    big = a > _PAST_SQUARES
    near = b.select(big, 1.0, a)
    square = near * near
    u = square / (b.unary("sqrt", square + 1.0) + 1.0)
    high, low = fast_two_sum(near, u)
    # Past 2^500, asinh(a) = log(2a).
    y = _log1p_sum(
        b, b.select(big, a, high), b.select(big, 0.0, low), b.select(big, b.const(1.0, a.type), 0.0)
    )
    y = b.select(a < 1e-40, a, y)
    return copy_sign(b, b.select(a < INFINITY, y, a), x)


def _acosh(b: Builder, x: Value) -> Value:
    """log1p(t + sqrt(2t + t^2)) with t = x - 1, the sum in two words."""
    big = x > _PAST_SQUARES
    t = b.select(big, 1.0, x) - 1.0
    radicand = b.fma(t, t, t * 2.0)
    root = b.unary("sqrt", radicand)
    missing = b.fma(-root, root, radicand, exact=True) / (root * 2.0)
    missing = b.select(b.compare("eq", root, 0.0), 0.0, missing)
    swap = t > root
    high, low = fast_two_sum(b.select(swap, t, root), b.select(swap, root, t))
    y = _log1p_sum(
        b,
        b.select(big, x, high),
        b.select(big, 0.0, low + missing),
        b.select(big, b.const(1.0, x.type), 0.0),
    )
    y = b.select(b.compare("eq", x, INFINITY), x, y)
    return b.select(b.compare("ge", x, 1.0), y, NAN)


def _atanh(b: Builder, x: Value) -> Value:
    """log1p(2a / (1 - a)) / 2, the quotient in two words."""
    a = absolute(b, x)
    over = 1.0 - a
    lost = (1.0 - over) - a
    double = a * 2.0
    quotient = double / over
    low = (b.fma(-quotient, over, double, exact=True) - quotient * lost) / over
    y = _log1p_sum(b, quotient, low) * 0.5
    y = b.select(a < 1e-40, a, y)
    y = b.select(b.compare("eq", a, 1.0), INFINITY, y)
    return copy_sign(b, b.select(b.compare("le", a, 1.0), y, NAN), x)


def asinh(b: Builder, x: Value) -> Value:
    if x.type.elem == "f64":
        return _asinh(b, x)
    a = widen(b, absolute(b, x))
    y = log_short(b, a + b.unary("sqrt", b.fma(a, a, 1.0)))
    y = b.select(a < 1e-4, a, y)  # the next term is a^3 / 6
    return copy_sign(b, narrow(b, b.select(a < INFINITY, y, a), "f32"), x)


def acosh(b: Builder, x: Value) -> Value:
    if x.type.elem == "f64":
        return _acosh(b, x)
    wide = widen(b, x)
    y = log_short(b, wide + b.unary("sqrt", b.fma(wide, wide, -1.0)))
    y = narrow(b, b.select(wide < INFINITY, y, wide), "f32")
    return b.select(b.compare("ge", x, 1.0), y, NAN)


def atanh(b: Builder, x: Value) -> Value:
    if x.type.elem == "f64":
        return _atanh(b, x)
    a = widen(b, absolute(b, x))
    y = log_short(b, (a + 1.0) / (1.0 - a)) * 0.5
    y = b.select(a < 1e-4, a, y)
    y = b.select(b.compare("eq", a, 1.0), INFINITY, y)
    return copy_sign(b, narrow(b, b.select(b.compare("le", a, 1.0), y, NAN), "f32"), x)


def log_short(b: Builder, x: Value) -> Value:
    """f64 log of a finite x > 0 to 2^-36 of itself: good for a result in f32."""
    m, k = _split_normal(b, x, F64)
    s = (m - 1.0) / (m + 1.0)
    return b.fma(horner(b, c.LOG2_SHORT_F64, s * s), s, k) * math.log(2)


# -------------------------------------------------------------------- powers


def pow(b: Builder, x: Value, y: Value) -> Value:
    magnitude = _pow_f32(b, x, y) if x.type.elem == "f32" else _pow_f64(b, absolute(b, x), y)
    return _pow_special(b, x, y, magnitude)


def _pow_f32(b: Builder, x: Value, y: Value) -> Value:
    """|x|^y in f64 with polynomials of f32's precision."""
    base, power = widen(b, absolute(b, x)), widen(b, y)
    m, k = _split_normal(b, base, F64)
    s = (m - 1.0) / (m + 1.0)
    log2 = b.fma(horner(b, c.LOG2_SHORT_F64, s * s), s, k)
    log2 = b.select(b.compare("eq", base, 0.0), -INFINITY, log2)
    log2 = b.select(b.compare("eq", base, INFINITY), INFINITY, log2)
    e = at_most(b, at_least(b, power * log2, -160.0), 130.0)
    n, bits = rounded(b, e, 1.0)
    r = e - n
    p = b.fma(horner(b, c.EXP2_SHORT_F64, r), r, 1.0)
    scaled = from_bits(
        b, bits_of(b, p) + (bits << F64.mantissa), "f64"
    )  # far from over- or underflow
    return narrow(b, scaled, "f32")


def _log_two_words(b: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) for x > 0, to about 2^-66 of it."""
    m, k = _split(b, x)
    numerator, over = m - 1.0, m + 1.0
    lost = m - (over - 1.0)
    s = numerator / over
    s_low = (b.fma(-s, over, numerator, exact=True) - s * lost) / over
    z, z_low = two_product(b, s, s)
    z_low = b.fma(s * 2.0, s_low, z_low)
    tail = horner(b, c.LOG_DOUBLE_F64, z) * z
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
    e = b.select(special | huge | invert(b, absolute(b, e) < 800.0), direct, e)
    low = b.select(absolute(b, e) < 800.0, low, 0.0)
    s, n = exp_tail(b, at_most(b, at_least(b, e, -746.0), 711.0), low)
    return b.scalef(s + 1.0, n)


def _pow_special(b: Builder, x: Value, y: Value, magnitude: Value) -> Value:
    """Sign, invalid operands, and the bases and exponents whose power is 1 whatever the other."""
    f = format_of(x)
    integral = b.compare("eq", b.unary("trunc", y), y)
    half = y * 0.5
    size = absolute(b, y)
    odd = (
        integral & b.compare("ne", b.unary("trunc", half), half) & (size < 2.0 ** (f.mantissa + 1))
    )
    negative = b.compare("lt", bits_of(b, x), 0)
    result = b.select(negative & odd, -magnitude, magnitude)
    invalid = (x < 0.0) & invert(b, integral) & (absolute(b, x) < INFINITY)
    result = b.select(invalid, NAN, result)
    result = b.select(b.compare("uno", x, y), NAN, result)
    one = b.compare("eq", x, 1.0) | b.compare("eq", y, 0.0)
    one = one | (b.compare("eq", x, -1.0) & b.compare("eq", size, INFINITY))
    return b.select(one, 1.0, result)


def cbrt(b: Builder, x: Value) -> Value:
    """x = m 8^q with 1/2 <= m < 4, and cbrt(m) 2^q put together from the bits."""
    short = x.type.elem == "f32"
    wide = widen(b, x) if short else x
    a = absolute(b, wide)
    tiny = a < F64.tiny
    bits = bits_of(b, b.select(tiny, a * 2.0**54, a))
    exponent = (bits >> F64.mantissa) - 1022
    third = b.ashr((exponent + 1200) * 21846, 16) - 400  # floor(exponent / 3)
    m = from_bits(b, bits - (third * 3 << F64.mantissa), "f64")
    shift = third - b.select(tiny, b.const(18, third.type), 0)
    y = bits_of(b, _cbrt_of_mantissa(b, m, short=short)) + (shift << F64.mantissa)
    finite = (a > 0.0) & (a < INFINITY)
    y = b.select(finite, copy_sign(b, from_bits(b, y, "f64"), wide), wide + wide)
    return narrow(b, y, "f32") if short else y


def _cbrt_of_mantissa(b: Builder, m: Value, *, short: bool) -> Value:
    """A polynomial guess, one Halley step (2^-27) and, unless `short`, one Newton step on the
    exact residual."""
    t = horner(b, c.CBRT_F64, m)
    cube = t * t * t
    t = t * (b.fma(m, 2.0, cube) / b.fma(cube, 2.0, m))
    if short:
        return t
    square, square_low = two_product(b, t, t)
    residual = b.fma(square, t, -m, exact=True) + t * square_low
    return t - residual / (square * 3.0)


FUNCTIONS: tuple[Callable[..., Value], ...] = (log, log1p, asinh, acosh, atanh, pow, cbrt)
