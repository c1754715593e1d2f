"""The error function family as loop-nest IR: erf, erfc, erf_inv.

Input and output: one f32 or f64 `Value`. Method: erf by a polynomial near 0, beyond as 1 - p^-8
(f32) or through erfc; erfc as e^(-x^2) / (x + k) times a polynomial in (x - l) / (x + l), with x^2
in two words; erf_inv by polynomials in log(1 - x^2), for f64 followed by one Halley step.
Invariants: at most 2 units in the last place (f64 erfc: 3), NaN passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value
from stagejit.codegen.math import coefficients as c
from stagejit.codegen.math.core import (
    INFINITY,
    NAN,
    absolute,
    at_most,
    copy_sign,
    fast_two_sum,
    format_of,
    horner,
    narrow,
    reciprocal_corrected,
    two_product,
    where_some,
    widen,
)
from stagejit.codegen.math.exp import exp_tail
from stagejit.codegen.math.log import log, log_short


def erf(b: Builder, x: Value) -> Value:
    a = absolute(b, x)
    z = x * x
    if x.type.elem == "f64":
        small = _with_least(b, b.fma(horner(b, c.ERF_F64, z), x, x), x, a)
        large = 1.0 - _erfc_f64(b, a)
        return b.select(a < 1.0, small, copy_sign(b, large, x))
    small = _with_least(b, b.fma(horner(b, c.ERF_F32, z), x, x), x, a)
    tail = horner(b, c.ERF_TAIL_F32, at_most(b, a, 3.95))
    for _ in range(3):
        tail = tail * tail
    return b.select(a < 1.2, small, copy_sign(b, 1.0 - 1.0 / tail, x))


def _with_least(b: Builder, small: Value, x: Value, a: Value) -> Value:
    """`small`, x plus a term that is flushed to zero for the least normal numbers where a CPU
    multiplies and adds one after the other."""
    return b.select(a < format_of(x).tiny * 16, x * (2 / math.sqrt(math.pi)), small)


def erfc(b: Builder, x: Value) -> Value:
    a = absolute(b, x)
    if x.type.elem == "f32":
        y = _erfc_f32(b, a)
        return b.select(x < 0.0, 2.0 - y, y)
    y = _erfc_f64(b, a)
    near = 1.0 - b.fma(horner(b, c.ERF_F64, x * x), x, x)
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
    q = horner(b, c.ERFC_F32[1:], t)
    p = b.fma(q, t, c.ERFC_F32[0])
    p_low = b.fma(q, t, c.ERFC_F32[0] - p)
    g, g_low = two_product(b, inverse, p)
    g_low = b.fma(inverse, p_low, b.fma(inverse_low, p, g_low))
    square, square_low = two_product(b, a, a)
    s, n = exp_tail(b, -square, -square_low)
    return b.scalef(g + b.fma(g, s, b.fma(g_low, s, g_low)), n)


def _erfc_f64(b: Builder, a: Value) -> Value:
    """erfc of a >= 0; below 0.4 not to the last place."""
    a = at_most(b, a, 28.0)
    t = (a - 4.0) / (a + 4.0)
    over, over_low = fast_two_sum_with_one(a * 2.0, b)
    g = reciprocal_corrected(b, horner(b, c.ERFC_F64, t), 0.0, over, over_low)
    square, square_low = two_product(b, a, a)
    s, n = exp_tail(b, -square, -square_low)
    return b.scalef(b.fma(s, g, g), n)


def fast_two_sum_with_one(x: Value, b: Builder) -> tuple[Value, Value]:
    """1 + x and its rounding error, for x >= 0."""
    one = b.const(1.0, x.type)
    above = x > 1.0
    return fast_two_sum(b.select(above, x, one), b.select(above, one, x))


def erf_inv(b: Builder, x: Value) -> Value:
    wide = widen(b, x) if x.type.elem == "f32" else x
    a = absolute(b, wide)
    y = _erf_inv_for_f32(b, a) if x.type.elem == "f32" else _erf_inv_f64(b, a)
    y = b.select(b.compare("eq", a, 1.0), INFINITY, y)
    y = copy_sign(b, b.select(b.compare("le", a, 1.0), y, NAN), wide)
    return narrow(b, y, "f32") if x.type.elem == "f32" else y


def _erf_inv_for_f32(b: Builder, a: Value) -> Value:
    """In f64, good for a result in f32; one branch per vector for |x| above 0.9966."""
    w = -log_short(b, (1.0 - a) * (a + 1.0))
    near = horner(b, c.ERF_INV_F32, w - 2.5)

    def tail() -> Value:
        return horner(b, c.ERF_INV_TAIL_F32, b.unary("sqrt", w) - 3.0)

    return where_some(b, b.compare("ge", w, 5.0), tail, lambda: near) * a


def _erf_inv_f64(b: Builder, a: Value) -> Value:
    w = -log(b, (1.0 - a) * (a + 1.0))
    near = horner(b, c.ERF_INV_F64, w - 2.5)
    far = horner(b, c.ERF_INV_TAIL_F64, b.unary("sqrt", w) - 4.0)
    y = _polished(b, b.select(w < 5.0, near, far) * a, a)
    return b.select(a < 1e-200, a * (math.sqrt(math.pi) / 2), y)  # where residuals underflow


def _polished(b: Builder, y: Value, a: Value) -> Value:
    """One Halley step for erf(y) = a; the residual comes from the side that does not cancel."""
    z = y * y
    near = b.fma(horner(b, c.ERF_F64, z), y, y - a)  # the difference is exact
    residual = b.select(a < 0.8, near, (1.0 - a) - _erfc_f64(b, y))
    s, n = exp_tail(b, z)
    u = residual * (math.sqrt(math.pi) / 2) * b.scalef(s + 1.0, n)
    return y - u / b.fma(y, u, 1.0)


FUNCTIONS: tuple[Callable[..., Value], ...] = (erf, erfc, erf_inv)
