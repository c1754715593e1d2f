"""The error function family as loop-nest IR: erf, erfc, erf_inv.

Input and output: one f32 or f64 `Value`. Method: erf by a polynomial near 0, beyond as 1 - p^-8
(f32) or through erfc; erfc as e^(-x^2) / (x + k) times a polynomial in (x - l) / (x + l), with x^2
in two words; erf_inv by polynomials in log(1 - x^2), for f64 followed by one Halley step.
Invariants: at most 2 units in the last place (f64 erfc: 3), NaN passes.
"""

from __future__ import annotations

import math

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math.coefficients import POLYNOMIALS
from stagejit.codegen.math.core import (
    at_most,
    copy_sign,
    horner,
    narrow,
    polynomial,
    reciprocal_corrected,
    sorted_two_sum,
    two_product,
    where_some,
    widen,
)
from stagejit.codegen.math.exp import exp_tail
from stagejit.codegen.math.log import infinite_at_one, log, log_short


def erf(b: Builder, x: Value) -> Value:
    a = abs(x)
    small = b.fma(polynomial(b, "ERF", x * x), x, x)
    # Its last term is flushed to zero for the least normal numbers where a CPU multiplies and adds
    # one after the other.
    small = b.select(a < x.type.tiny * 16, x * (2 / math.sqrt(math.pi)), small)
    if x.type.elem == "f64":
        large = 1.0 - _erfc_f64(b, a)
        return b.select(a < 1.0, small, copy_sign(b, large, x))
    tail = polynomial(b, "ERF_TAIL", at_most(b, a, 3.95))
    for _ in range(3):
        tail = tail * tail
    return b.select(a < 1.2, small, copy_sign(b, 1.0 - 1.0 / tail, x))


def erfc(b: Builder, x: Value) -> Value:
    a = abs(x)
    if x.type.elem == "f32":
        y = _erfc_f32(b, a)
        return b.select(x < 0.0, 2.0 - y, y)
    y = _erfc_f64(b, a)
    near = 1.0 - b.fma(polynomial(b, "ERF", x * x), x, x)
    return b.select(a < 0.4, near, b.select(x < 0.0, 2.0 - y, y))


def _erfc_f32(b: Builder, a: Value) -> Value:
    """erfc of a >= 0: e^(-a^2) / (a + 1) times a polynomial in (a - 1) / (a + 1) = 1 - 2 / (a + 1),
    with the reciprocal and its product with the polynomial in two words."""
    a = at_most(b, a, 10.3)
    over = a + 1.0
    inverse = 1.0 / over
    lost = a - (over - 1.0)
    inverse_low = inverse * b.fma(-inverse, lost, b.fma(-inverse, over, 1.0, exact=True))
    t = b.fma(inverse_low, -2.0, b.fma(inverse, -2.0, 1.0))
    first, *rest = POLYNOMIALS["ERFC_F32"]
    q = horner(b, rest, t)
    p = b.fma(q, t, first)
    p_low = b.fma(q, t, first - p)
    g, g_low = two_product(b, inverse, p)
    g_low = b.fma(inverse, p_low, b.fma(inverse_low, p, g_low))
    s, n = _exp_of_minus_square(b, a)
    return b.scalef(g + b.fma(g, s, b.fma(g_low, s, g_low)), n)


def _erfc_f64(b: Builder, a: Value) -> Value:
    """erfc of a >= 0; below 0.4 not to the last place."""
    a = at_most(b, a, 28.0)
    t = (a - 4.0) / (a + 4.0)
    over, over_low = sorted_two_sum(b, a * 2.0, b.const(1.0, a.type))
    g = reciprocal_corrected(b, polynomial(b, "ERFC", t, chained=True), 0.0, over, over_low)
    s, n = _exp_of_minus_square(b, a)
    return b.scalef(b.fma(s, g, g), n)


def _exp_of_minus_square(b: Builder, a: Value) -> tuple[Value, Value]:
    """e^(-a^2) as in `exp_tail`."""
    square, square_low = two_product(b, a, a)
    return exp_tail(b, -square, -square_low)


def erf_inv(b: Builder, x: Value) -> Value:
    wide = widen(b, x)
    a = abs(wide)
    y = (_erf_inv_for_f32 if x.type.elem == "f32" else _erf_inv_f64)(b, a)
    return narrow(b, copy_sign(b, infinite_at_one(b, a, y), wide), x)


def _erf_inv_for_f32(b: Builder, a: Value) -> Value:
    """In f64, good for a result in f32; one branch per vector for |x| above 0.9966."""
    w = -log_short(b, (1.0 - a) * (a + 1.0))
    near = polynomial(b, "ERF_INV_SHORT", w - 2.5)

    def tail() -> Value:
        return polynomial(b, "ERF_INV_TAIL_SHORT", b.unary("sqrt", w) - 3.0)

    return where_some(b, b.compare("ge", w, 5.0), tail, lambda: near) * a


def _erf_inv_f64(b: Builder, a: Value) -> Value:
    w = -log(b, (1.0 - a) * (a + 1.0))
    near = polynomial(b, "ERF_INV", w - 2.5)
    far = polynomial(b, "ERF_INV_TAIL", b.unary("sqrt", w) - 4.0)
    y = _polished(b, b.select(w < 5.0, near, far) * a, a)
    return b.select(a < 1e-200, a * (math.sqrt(math.pi) / 2), y)  # where residuals underflow


def _polished(b: Builder, y: Value, a: Value) -> Value:
    """One Halley step for erf(y) = a; the residual comes from the side that does not cancel."""
    z = y * y
    near = b.fma(polynomial(b, "ERF", z), y, y - a)  # the difference is exact
    residual = b.select(a < 0.8, near, (1.0 - a) - _erfc_f64(b, y))
    s, n = exp_tail(b, z)
    u = residual * (math.sqrt(math.pi) / 2) * b.scalef(s + 1.0, n)
    return y - u / b.fma(y, u, 1.0)
