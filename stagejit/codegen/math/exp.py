"""The exponential family as loop-nest IR: exp, exp2, expm1, logistic, tanh, sinh, cosh.

Input and output: one f32 or f64 `Value`. Method: x = n log(2) + r with |r| <= log(2)/2, a
polynomial in r, and a scaling by 2^n (Cody and Waite). Invariants: at most 2 units in the last
place, NaN passes, results that overflow are infinite and results that underflow are zero or
denormal.
"""

from __future__ import annotations

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math.core import (
    LN2,
    LOG2_E,
    at_most,
    between,
    copy_sign,
    fast_two_sum,
    polynomial,
    power_of_two,
    reciprocal_corrected,
    rounded,
)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value, Value, Value]:
    """x = n log(2) + r: (n, n in the low bits of an integer, r before the last step, which rounds,
    r)."""
    n, bits = rounded(b, x, LOG2_E)
    high, low = LN2[x.type.elem]
    exact = b.fma(n, -high, x, exact=True)
    return n, bits, exact, b.fma(n, -low, exact)


def exp(b: Builder, x: Value) -> Value:
    if x.type.elem == "f64":
        return exp_of_sum(b, between(b, -746.0, x, 710.0))
    n, _, _, r = _reduced(b, between(b, -104.0, x, 89.0))
    return b.scalef(b.fma(r * r, polynomial(b, "EXP", r), r) + 1.0, n)


def exp_tail(b: Builder, x: Value, low: Operand | None = None) -> tuple[Value, Value]:
    """(s, n) with e^(x + low) = (1 + s) 2^n; s is within 0.6 units of its last place.

    The first step of the reduction is exact, so s = exact + small rounds once.
    """
    n, _, exact, r = _reduced(b, x)
    if low is not None:
        r = r + low
    p = polynomial(b, "EXP", r)
    rest = b.fma(n, -LN2[x.type.elem][1], r * r * p)
    if low is not None:
        rest = rest + low
    return exact + rest, n


def exp_of_sum(b: Builder, x: Value, low: Operand | None = None) -> Value:
    """e^(x + low)"""
    s, n = exp_tail(b, x, low)
    return b.scalef(s + 1.0, n)


def exp2(b: Builder, x: Value) -> Value:
    low, high = (-151.0, 129.0) if x.type.elem == "f32" else (-1076.0, 1025.0)
    x = between(b, low, x, high)
    n, _ = rounded(b, x, 1.0)
    r = x - n
    return b.scalef(b.fma(polynomial(b, "EXP2", r), r, 1.0), n)


def expm1(b: Builder, x: Value) -> Value:
    low, high = (-26.0, 89.0) if x.type.elem == "f32" else (-55.0, 710.0)
    _, bits, _, r = _reduced(b, between(b, low, x, high))
    q = polynomial(b, "EXPM1", r)
    p = b.fma(r * r, q, r)
    half = power_of_two(b, bits, -1, x.type)  # 2^n may overflow where the result does not
    y = b.fma(half, p, half - 0.5) * 2.0
    # x + x^2 / 2 rounds to x: keeps -0, and normal numbers whose half is flushed to zero
    same = 2.0**-25 if x.type.elem == "f32" else 2.0**-54
    return b.select(abs(x) < same, x, y)


def logistic(b: Builder, x: Value) -> Value:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows or cancels."""
    high = 104.0 if x.type.elem == "f32" else 746.0
    z = exp_of_sum(b, -at_most(b, abs(x), high))
    over, lost = fast_two_sum(b.const(1.0, x.type), z)
    y = b.select(x < 0.0, z, 1.0) / over
    return b.fma(-y, lost, y)  # y (1 - lost): most of what rounding 1 + z cost


def tanh(b: Builder, x: Value) -> Value:
    """1 - 2 / (e^(2|x|) + 1); where that cancels, a polynomial, or expm1 in two words (f64)."""
    a = abs(x)
    if x.type.elem == "f64":
        return copy_sign(b, _tanh_f64(b, a), x)
    z = x * x
    small = b.fma(z * x, polynomial(b, "TANH", z), x)
    # e^(2a) as 2^(2a log2(e)): the error of that factor counts less the larger e^(2a) is.
    limited = at_most(b, a, 9.5)
    n, bits = rounded(b, limited, 2 * LOG2_E)
    r = b.fma(limited, 2 * LOG2_E, -n, exact=True)
    p = b.fma(polynomial(b, "EXP2", r), r, 1.0)
    large = 1.0 - 2.0 / b.fma(p, power_of_two(b, bits, 0, x.type), 1.0)
    return copy_sign(b, b.select(a < 0.55, small, large), x)  # the sum loses the sign of -0


def _tanh_f64(b: Builder, a: Value) -> Value:
    """e / (e + 2) with e = e^(2a) - 1 in two words, corrected after the division."""
    n, bits, exact, r = _reduced(b, at_most(b, a, 20.0) * 2.0)
    rest = b.fma(n, -LN2["f64"][1], r * r * polynomial(b, "EXPM1", r))
    t = power_of_two(b, bits, 0, a.type)
    # e = (t - 1) + t exact + t rest, where the first two terms are exact and in falling order.
    high, low = fast_two_sum(t - 1.0, t * exact)
    low = b.fma(t, rest, low)
    over = (high + low) + 2.0
    y = reciprocal_corrected(b, high, low, over)
    return b.select(high > 2.0, b.fma(1.0 / over, -2.0, 1.0), y)


def _half_exp(b: Builder, a: Value) -> Value:
    """e^a / 2 for a >= 0, which overflows later than e^a."""
    high = 90.0 if a.type.elem == "f32" else 711.0
    s, n = exp_tail(b, at_most(b, a, high))
    return b.scalef(s + 1.0, n - 1.0)


def sinh(b: Builder, x: Value) -> Value:
    a = abs(x)
    z = x * x
    small = b.fma(z * x, polynomial(b, "SINH", z), x)
    half = _half_exp(b, a)
    return b.select(a < 1.0, small, copy_sign(b, half - 0.25 / half, x))


def cosh(b: Builder, x: Value) -> Value:
    half = _half_exp(b, abs(x))
    return half + 0.25 / half
