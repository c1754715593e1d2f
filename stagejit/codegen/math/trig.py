"""Trigonometric functions as loop-nest IR: sin, cos, tan, asin, acos, atan, atan2.

Input and output: one (atan2: two) f32 or f64 `Value`. Method: sin and cos reduce modulo pi in three
multiply-add steps and use one odd polynomial; above a limit, one uniform branch per vector
multiplies by a window of the bits of 1/(2 pi) (Payne and Hanek), exact for every finite argument.
Invariants: at most 2 units in the last place (2.3 of sin and cos where a CPU has no fused
multiply-add), NaN passes, infinities give NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import F64, I64, Value
from stagejit.codegen.ir.shared_code import called
from stagejit.codegen.math.coefficients import POLYNOMIALS
from stagejit.codegen.math.core import (
    INFINITY,
    NAN,
    PI,
    bits_of,
    copy_sign,
    fast_two_sum,
    flip_sign,
    from_bits,
    horner,
    narrow,
    polynomial,
    reciprocal_corrected,
    rounded,
    two_product,
    where_some,
    widen,
)

_Kind = Literal["sin", "cos", "tan"]
# The fraction bits of 1/(2 pi), computed with mpmath to 1280 bits.
_BITS = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef158"
    "6dc91b8e909374b801924bba827464873f877ac72c4a69cfba208d7d4baed121"
    "3a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0ec7fe25fff7816603"
    "fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b5d49eeb1faf97c5e"
    "cf41ce7de294a4ba9afed7ec47e357421580cc11bf1edaeafc33ef0826bd0d87",
    16,
)
# Up to here n = round(x / pi) times the first word of pi is subtracted exactly.
_FAST_LIMIT = {"f32": 2.0e5, "f64": 1.0e9}
# pi cut, not rounded, into words: all are positive, so that -0 survives n = 0.
_PI_CUT = {
    "f32": (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    "f64": (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}


def _window_words(count: int, step: int) -> list[int]:
    """64-bit words that begin at bits -step, 0, step, ... of the fraction of 1/(2 pi)."""
    padded = _BITS << 64
    words = [(padded >> (1280 + step - step * k)) & (2**64 - 1) for k in range(count)]
    return [word - (1 << 64) if word >> 63 else word for word in words]


_F32_WINDOWS = tuple(_window_words(8, 32))
_F64_WORDS = tuple(_window_words(20, 64))


def sin(b: Builder, x: Value) -> Value:
    return _sin(b, x, "sin")


def cos(b: Builder, x: Value) -> Value:
    return _sin(b, x, "cos")


def _sin(b: Builder, x: Value, kind: _Kind) -> Value:
    """cos(x) = sin(x + pi/2): n is then half-integral."""
    cosine = kind == "cos"
    n, bits = rounded(b, x, 1 / math.pi, 0.5 if cosine else 0.0)
    if cosine:
        n = n - 0.5
    words = _PI_CUT[x.type.elem]
    r = b.fma(n, -words[0], x, exact=True)
    r = b.fma(n, -words[1], r, exact=True)
    r = b.fma(n, -words[2], r)
    y = _sin_polynomial(b, r)
    y = flip_sign(b, y if cosine else copy_sign(b, y, r), bits)  # the sum loses the sign of -0
    return _where_huge(b, x, kind, lambda: y)


def _sin_polynomial(b: Builder, r: Value, low: Operand = 0.0) -> Value:
    """sin(r + low) for |r| <= pi/2."""
    z = r * r
    if r.type.elem == "f32":
        return b.fma(r * z, polynomial(b, "SIN", z), r)
    first, *others = POLYNOMIALS["SIN_F64"]
    rest = z * horner(b, others, z)
    p, p_low = fast_two_sum(b.const(first, r.type), rest)
    slope = r * p
    missing = b.fma(slope, b.fma(r, r, -z, exact=True), low)
    return r + b.fma(slope, z, b.fma(r * z, p_low, missing))


# -------------------------------------------------------------------- huge arguments


def _where_huge(b: Builder, x: Value, kind: _Kind, otherwise: Callable[[], Value]) -> Value:
    big = b.compare("ge", abs(x), _FAST_LIMIT[x.type.elem])
    huge = partial(_huge, kind=kind)
    return where_some(b, big, lambda: called(b, f"{kind}_huge", [x], huge, "rare"), otherwise)


def _huge(b: Builder, x: Value, kind: _Kind) -> Value:
    if x.type.elem == "f64" and x.type.lanes:
        return _lane_by_lane(b, x, lambda lane: _huge(b, lane, kind))
    pieces, shift = 2 if kind == "tan" else 1, 1 << 62 if kind == "cos" else 0
    low: Operand = 0.0
    if x.type.elem == "f64":
        r, low, n = _huge_remainder(b, x, pieces, shift)
    else:
        angle, n = _huge_angle_f32(b, x, pieces, shift)
        r = narrow(b, angle, x)
        if kind == "tan":
            low = narrow(b, angle - widen(b, r), x)
    if kind == "tan":
        y = _tan_reduced(b, r, low, b.cast("trunc", n, x.type.as_int.elem))
    else:
        y = flip_sign(b, _sin_polynomial(b, r, low), b.cast("trunc", n, x.type.as_int.elem))
    if kind != "cos":  # odd: -y where x is negative
        y = from_bits(b, bits_of(b, y) ^ (bits_of(b, x) & x.type.sign))
    return b.select(abs(x) < INFINITY, y, NAN)


def _lane_by_lane(b: Builder, x: Value, function: Callable[[Value], Value]) -> Value:
    """A loop over the lanes, in memory: 64-bit products have no vector form."""
    memory = b.stack("huge", F64, x.type.lanes)
    b.store(x, memory, 0)
    b.loop(0, x.type.lanes, 1, [],
           lambda k: b.store(function(b.load(memory, k)), memory, k))  # fmt: skip
    return b.load(memory, 0, x.type.lanes)


def _huge_angle_f32(b: Builder, x: Value, pieces: int, shift: int) -> tuple[Value, Value]:
    """(r, n): |x| + shift * 2^-64 turns, less the nearest multiple n of a turn / 2^pieces; f64.

    Any finite x: m 2^e times 96 bits of 1/(2 pi), modulo 1, in 64-bit integers.
    """
    bits = bits_of(b, x)
    m = b.cast("zext", (bits & 0x7FFFFF) | 0x800000, "i64")
    # The first bit of the window, in the padded words.
    at = b.binary("smax", ((bits >> 23) & 255) - 118, 0)
    bit = b.cast("zext", at & 31, "i64")
    table = b.table("one_over_two_pi", I64, _F32_WINDOWS)
    words = [(b.gather(table, (at >> 5) + k) << bit) >> 32 for k in range(3)]
    fraction = ((m * words[0]) << 32) + m * words[1] + ((m * words[2]) >> 32)
    if shift:
        fraction = fraction + shift
    n = (fraction + (1 << (63 - pieces))) >> (64 - pieces)
    rest = b.cast("sitofp", fraction - (n << (64 - pieces)), "f64")
    return rest * (math.pi * 2.0**-63), n


def _huge_remainder(b: Builder, x: Value, pieces: int, shift: int) -> tuple[Value, Value, Value]:
    """(r, r_low, n): |x| + shift * 2^-64 turns, minus the nearest multiple n of a turn / 2^pieces.

    m 2^e times 192 bits of 1/(2 pi), modulo 1, in 128 bits; then times 2 pi in two words.
    """
    high, low = _turns(b, x)
    if shift:
        high = high + shift
    n = (high + (1 << (63 - pieces))) >> (64 - pieces)
    high = high - (n << (64 - pieces))
    sign = b.binary("ashr", high, 63)
    high, low = high ^ sign, low ^ sign
    # Upper 53 bits and the 64 after them: both conversions but the last are exact.
    upper = b.cast("uitofp", high & -2048, "f64") * 2.0**64
    lower = b.cast("uitofp", (high << 53) | (low >> 11), "f64") * 2.0**11
    unit, unit_low = (word * 2.0**-127 for word in PI["f64"])
    product, error = two_product(b, upper, b.const(unit, upper.type))
    error = b.fma(lower, unit, b.fma(upper, unit_low, error))
    r, r_low = fast_two_sum(product, error)
    flip = sign & F64.sign
    r, r_low = (from_bits(b, bits_of(b, word) ^ flip) for word in (r, r_low))
    return r, r_low, n


def _turns(b: Builder, x: Value) -> tuple[Value, Value]:
    """The fraction of |x| / (2 pi) in 128 bits, for one finite f64."""
    bits = bits_of(b, x)
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    at = b.binary("smax", ((bits >> 52) & 2047) - 1011, 0)
    shift, index = at & 63, at >> 6
    table = b.table("one_over_two_pi", I64, _F64_WORDS)
    loaded = [b.load(table, b.binary("smin", index + k, len(_F64_WORDS) - 1)) for k in range(4)]
    words = [(loaded[k] << shift) | ((loaded[k + 1] >> 1) >> b.binary("sub", 63, shift))
             for k in range(3)]  # fmt: skip
    middle = m * words[1]
    low = middle + b.binary("umulh", m, words[2])
    carry = b.cast("zext", b.compare("lt", low, middle, signed=False), "i64")
    return m * words[0] + b.binary("umulh", m, words[1]) + carry, low


# -------------------------------------------------------------------- tan


def tan(b: Builder, x: Value) -> Value:
    """sin(r) / cos(r) or its negative reciprocal, each in two words, r reduced modulo pi/2."""
    return _where_huge(b, x, "tan", lambda: _tan_moderate(b, x))


def _tan_moderate(b: Builder, x: Value) -> Value:
    n, bits = rounded(b, x, 2 / math.pi)
    half_pi = [word / 2 for word in _PI_CUT[x.type.elem]]
    r1 = b.fma(n, -half_pi[0], x, exact=True)
    r, lost = _minus_product(b, r1, n, half_pi[1])
    y = _tan_reduced(b, r, b.fma(n, -half_pi[2], lost), bits)
    return b.select(b.compare("eq", x, 0.0), x, y)  # keeps -0


def _tan_reduced(b: Builder, r: Value, r_low: Operand, n: Value) -> Value:
    """tan(r + r_low + n pi/2)"""
    z = r * r
    p = polynomial(b, "SIN_QUARTER", z)
    sine, sine_low = fast_two_sum(r, b.fma(r * z, p, r_low))
    half = z * 0.5
    near = 1.0 - half
    q = polynomial(b, "COS_QUARTER", z)
    rest = ((1.0 - near) - half) + b.fma(z * z, q, -(r * r_low))
    cosine, cosine_low = fast_two_sum(near, rest)
    odd = b.compare("ne", n & 1, 0)
    return reciprocal_corrected(
        b,
        b.select(odd, -cosine, sine),
        b.select(odd, -cosine_low, sine_low),
        b.select(odd, sine, cosine),
        b.select(odd, sine_low, cosine_low),
    )


def _minus_product(b: Builder, r: Value, n: Value, word: float) -> tuple[Value, Value]:
    """r - n * word and its rounding error."""
    product = n * word
    error = b.fma(n, word, -product, exact=True)
    total = r - product
    shadow = total - r
    return total, ((r - (total - shadow)) - (product + shadow)) - error


# -------------------------------------------------------------------- inverse functions


def _asin_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(|x| > 1/2, u, asin(u) - u) for u = |x| or, above 1/2, sqrt((1 - |x|) / 2)."""
    a = abs(x)
    above = a > 0.5
    z = b.select(above, (1.0 - a) * 0.5, a * a)
    u = b.select(above, b.unary("sqrt", z), a)
    return above, u, u * z * polynomial(b, "ASIN", z)


def asin(b: Builder, x: Value) -> Value:
    above, u, rest = _asin_parts(b, x)
    high, low = (word / 2 for word in PI[x.type.elem])
    near, near_low = fast_two_sum(u, rest)
    far = (high - near * 2.0) - (near_low * 2.0 - low)
    return copy_sign(b, b.select(above, far, near), x)


def acos(b: Builder, x: Value) -> Value:
    above, u, rest = _asin_parts(b, x)
    pi, pi_low = PI[x.type.elem]
    negative = x < 0.0
    double = (u + rest) * 2.0
    far = b.select(negative, pi - (double - pi_low), double)
    signed = b.select(negative, -u, u)
    signed_rest = b.select(negative, -rest, rest)
    return b.select(above, far, pi / 2 - (signed - (pi_low / 2 - signed_rest)))


def atan(b: Builder, x: Value) -> Value:
    """Above 1, pi/2 - atan(1/x)."""
    a = abs(x)
    if x.type.elem == "f64":
        return copy_sign(b, _atan_quotient(b, a, b.const(1.0, x.type)), x)
    above = a > 1.0
    q = b.select(above, 1.0 / a, a)
    return copy_sign(b, _from_half_pi(b, _atan_f32(b, q), above), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    a, d = abs(y), abs(x)
    pi, pi_low = PI[x.type.elem]
    if x.type.elem == "f64":
        r = _atan_quotient(b, a, d)
    else:
        above, low, high = _sorted(b, a, d)
        r = _from_half_pi(b, _atan_f32(b, _quotient(b, low, high)), above)
    negative = b.compare("lt", bits_of(b, x), 0)
    r = b.select(negative, pi - (r - pi_low), r)
    return b.select(b.compare("uno", x, y), NAN, copy_sign(b, r, y))


def _sorted(b: Builder, a: Value, d: Value) -> tuple[Value, Value, Value]:
    """(a > d, the smaller one, the larger one)"""
    above = a > d
    return above, b.select(above, d, a), b.select(above, a, d)


def _quotient(b: Builder, low: Value, high: Value) -> Value:
    """low / high for 0 <= low <= high, where 0/0 is 0 and inf/inf is 1."""
    q = b.select(b.compare("eq", high, 0.0), 0.0, low / high)
    return b.select(b.compare("eq", low, INFINITY), 1.0, q)


def _atan_f32(b: Builder, q: Value) -> Value:
    z = q * q
    return b.fma(q * z, polynomial(b, "ATAN", z), q)


def _from_half_pi(b: Builder, r: Value, where: Value) -> Value:
    high, low = (word / 2 for word in PI[r.type.elem])
    return b.select(where, high - (r - low), r)


def _atan_quotient(b: Builder, a: Value, d: Value) -> Value:
    """atan(a / d) for a, d >= 0, with one division: atan(q) = pi/4 + atan((q - 1) / (q + 1))."""
    above, low, high = _sorted(b, a, d)
    # Halving keeps the sum finite, doubling the difference of small numbers normal; both infinite
    # is a quotient of 1.
    equal = b.compare("eq", low, INFINITY)
    low, high = b.select(equal, 1.0, low), b.select(equal, 1.0, high)
    middle = low > high * 0.5
    scale = b.select(high < 1.0, b.const(2.0**64, high.type), 0.5)
    numerator = b.select(middle, low * scale - high * scale, low)
    over = b.select(middle, low * scale + high * scale, high)
    q = b.select(b.compare("eq", over, 0.0), 0.0, numerator / over)
    z = q * q
    rest = q * z * polynomial(b, "ATAN", z)
    quarter, quarter_low = (word / 4 for word in PI["f64"])
    r = b.select(middle, quarter + (q + (rest + quarter_low)), q + rest)
    return _from_half_pi(b, r, above)
