"""The exponential family as loop-nest IR: exp, exp2, expm1, logistic, tanh, sinh, cosh.

Input and output: one f32 or f64 `Value`. Method: x = n log(2) + r with |r| <= log(2)/2, a
polynomial in r, and a scaling by 2^n (Cody and Waite). Invariants: at most 2 units in the last
place, NaN passes, results that overflow are infinite and results that underflow are zero or
denormal.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math import coefficients as c
from stagejit.codegen.math.core import (
    LOG2_E,
    absolute,
    at_least,
    at_most,
    copy_sign,
    fast_two_sum,
    format_of,
    horner,
    power_of_two,
    rounded,
)


def exp(b: Builder, x: Value) -> Value:
    low, high = (-104.0, 89.0) if x.type.elem == "f32" else (-746.0, 710.0)
    x = at_most(b, at_least(b, x, low), high)
    if x.type.elem == "f64":
        s, n = exp_tail(b, x)
        return b.scalef(s + 1.0, n)
    f = format_of(x)
    n, _ = rounded(b, x, LOG2_E)
    r = b.fma(n, -f.ln2[1], b.fma(n, -f.ln2[0], x, exact=True))
    return b.scalef(b.fma(r * r, horner(b, c.EXP_F32, r), r) + 1.0, n)


def exp_tail(b: Builder, x: Value, low: Operand | None = None) -> tuple[Value, Value]:
    """(s, n) with e^(x + low) = (1 + s) 2^n; s is within 0.6 units of its last place.

    The first step of the reduction is exact, so s = exact + small rounds once.
    """
    f = format_of(x)
    n, _ = rounded(b, x, LOG2_E)
    exact = b.fma(n, -f.ln2[0], x, exact=True)
    r = b.fma(n, -f.ln2[1], exact)
    if low is not None:
        r = r + low
    p = horner(b, c.EXP_F32 if f.elem == "f32" else c.EXP_F64, r)
    rest = b.fma(n, -f.ln2[1], r * r * p)
    if low is not None:
        rest = rest + low
    return exact + rest, n


def exp2(b: Builder, x: Value) -> Value:
    low, high = (-151.0, 129.0) if x.type.elem == "f32" else (-1076.0, 1025.0)
    x = at_most(b, at_least(b, x, low), high)
    n, _ = rounded(b, x, 1.0)
    r = x - n
    p = horner(b, c.EXP2_F32 if x.type.elem == "f32" else c.EXP2_F64, r)
    return b.scalef(b.fma(p, r, 1.0), n)


def expm1(b: Builder, x: Value) -> Value:
    f = format_of(x)
    low, high = (-26.0, 89.0) if f.elem == "f32" else (-55.0, 710.0)
    clamped = at_most(b, at_least(b, x, low), high)
    n, bits = rounded(b, clamped, LOG2_E)
    r1 = b.fma(n, -f.ln2[0], clamped, exact=True)
    r = b.fma(n, -f.ln2[1], r1)
    q = horner(b, c.EXPM1_F32 if f.elem == "f32" else c.EXPM1_F64, r)
    p = b.fma(r * r, q, r)
    half = power_of_two(b, bits, -1, f)  # 2^n itself may overflow where the result does not
    y = b.fma(half, p, half - 0.5) * 2.0
    # x + x^2 / 2 rounds to x: keeps -0, and normal numbers whose half is flushed to zero
    same = 2.0**-25 if f.elem == "f32" else 2.0**-54
    return b.select(absolute(b, x) < same, x, y)


def logistic(b: Builder, x: Value) -> Value:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows or cancels."""
    high = 104.0 if x.type.elem == "f32" else 746.0
    s, n = exp_tail(b, -at_most(b, absolute(b, x), high))
    z = b.scalef(s + 1.0, n)
    over, lost = fast_two_sum(b.const(1.0, x.type), z)
    y = b.select(x < 0.0, z, 1.0) / over
    return b.fma(-y, lost, y)  # y (1 - lost): most of what rounding 1 + z cost


def tanh(b: Builder, x: Value) -> Value:
    """1 - 2 / (e^(2|x|) + 1); where that cancels, a polynomial, or expm1 in two words (f64)."""
    a = absolute(b, x)
    if x.type.elem == "f64":
        return copy_sign(b, _tanh_f64(b, a), x)
    z = x * x
    small = b.fma(z * x, horner(b, c.TANH_F32, z), x)
    # e^(2a) as 2^(2a log2(e)): the error of that factor counts less the larger e^(2a) is.
    limited = at_most(b, a, 9.5)
    n, bits = rounded(b, limited, 2 * LOG2_E)
    r = b.fma(limited, 2 * LOG2_E, -n, exact=True)
    p = b.fma(horner(b, c.EXP2_F32, r), r, 1.0)
    large = 1.0 - 2.0 / b.fma(p, power_of_two(b, bits, 0, format_of(x)), 1.0)
    return copy_sign(b, b.select(a < 0.55, small, large), x)  # the sum loses the sign of -0


def _tanh_f64(b: Builder, a: Value) -> Value:
    """e / (e + 2) with e = e^(2a) - 1 in two words, corrected after the division."""
    f = format_of(a)
    doubled = at_most(b, a, 20.0) * 2.0
    n, bits = rounded(b, doubled, LOG2_E)
    r1 = b.fma(n, -f.ln2[0], doubled, exact=True)
    r = b.fma(n, -f.ln2[1], r1)
    rest = b.fma(n, -f.ln2[1], r * r * horner(b, c.EXPM1_F64, r))
    t = power_of_two(b, bits, 0, f)
    # e = (t - 1) + t r1 + t rest, where the first two terms are exact and in falling order.
    high, low = fast_two_sum(t - 1.0, t * r1)
    low = b.fma(t, rest, low)
    over = (high + low) + 2.0
    inverse = 1.0 / over
    y = high * inverse
    y = b.fma(b.fma(-y, over, high, exact=True) + low, inverse, y)
    return b.select(high > 2.0, b.fma(inverse, -2.0, 1.0), y)


def _half_exp(b: Builder, a: Value) -> Value:
    """e^a / 2 for a >= 0, which overflows later than e^a."""
    high = 90.0 if a.type.elem == "f32" else 711.0
    s, n = exp_tail(b, at_most(b, a, high))
    return b.scalef(s + 1.0, n - 1.0)


def sinh(b: Builder, x: Value) -> Value:
    a = absolute(b, x)
    z = x * x
    small = b.fma(z * x, horner(b, c.SINH_F32 if x.type.elem == "f32" else c.SINH_F64, z), x)
    half = _half_exp(b, a)
    return b.select(a < 1.0, small, copy_sign(b, half - 0.25 / half, x))


def cosh(b: Builder, x: Value) -> Value:
    half = _half_exp(b, absolute(b, x))
    return half + 0.25 / half


FUNCTIONS: tuple[Callable[..., Value], ...] = (exp, exp2, expm1, logistic, tanh, sinh, cosh)
