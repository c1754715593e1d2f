"""Inverse trigonometric and hyperbolic functions of complex numbers.

Input: pairs of parts. Output: pairs on the principal branch, whose cuts are continuous with the
side that the sign of a zero names. Invariant: no square leaves the range (Hull, Fairgrieve and Tang
1997 for arc sine and arc cosine).
"""

from __future__ import annotations

import math

import numpy as np

from stagejit.trace.complex.arithmetic import modulus, product, quotient
from stagejit.trace.complex.exponential import log, log_of_size, sqrt
from stagejit.trace.complex.parts import Pair
from stagejit.trace.math.expressions import Real, larger, smaller

# Beyond the first, squares of sums may overflow; below the second, squares of parts vanish.
_MOST = {"f32": 2.0**60, "f64": 2.0**508}
_LEAST = {"f32": 2.0**-60, "f64": 2.0**-508}


def _arc(x: Pair) -> tuple[Real, Real]:
    """What arc sine and arc cosine of |a| + |b|i are made of: the adjacent leg to the opposite |a|
    of the real part's angle, and the size of the imaginary part."""
    a, b = abs(x[0]), abs(x[1])
    name = a.dtype.name
    large = larger(a, b)
    far = large > _MOST[name]
    p, q = a.where(~far, 0), b.where(~far, 1)
    r, s = modulus((p + 1, q)), modulus((p - 1, q))
    half = (r + s) * 0.5
    low, high = r + (p + 1), s + (p - 1)  # of the legs; high vanishes left of 1
    inside = p <= 1
    # q * (q / x) and not q * q: the latter may vanish.
    across = q / low.where(low > 0, 1)
    near = s + (1 - p)
    left = q * across + near
    right = 1 / low.where(low > 0, 1) + 1 / high.where(~inside, 1)
    stretch = (half + p) * 0.5
    leg = (stretch * left)("sqrt").where(inside, q * (stretch * right)("sqrt"))
    excess = q / near.where(inside & (near > 0), 1)
    twice = q * across + (q * excess).where(inside, high)  # half - 1, whose half may vanish
    twice = twice.where(half <= 1.5, (half - 1) * 2)
    size = (twice * 0.5 + (twice * ((half + 1) * 0.5))("sqrt"))("log1p")
    tiny = (q < _LEAST[name]) & (p < 1)
    edge = ((1 - p) * (p + 1)).where(tiny, 1)
    size = (q / edge("sqrt")).where(tiny, size)
    ratio = smaller(a, b) / large
    ratio = ratio.like(0).where(large.is_infinite, ratio)
    huge = large("log") + (ratio * ratio)("log1p") * 0.5 + math.log(2)
    return b.where(far, leg), huge.where(far, size)


def asin(x: Pair) -> Pair:
    leg, size = _arc(x)
    a, b = x
    endless = a.like(np.inf).where(a.is_infinite | b.is_infinite, size)
    real = a.where(a.equals(0), a("atan2", leg))
    imaginary = endless.with_sign_of(b)
    return real, b.where(b.is_nan & ~a.is_infinite, imaginary)


def acos(x: Pair) -> Pair:
    leg, size = _arc(x)
    a, b = x
    endless = a.like(np.inf).where(a.is_infinite | b.is_infinite, size)
    real = a.like(math.pi / 2).where(a.equals(0) & ~b.is_infinite, leg("atan2", a))
    imaginary = (-endless).with_sign_of(-b)
    return real, b.where(b.is_nan & ~a.is_infinite, imaginary)


def acosh(x: Pair) -> Pair:
    """acos(x) turned by a right angle, to the right half plane."""
    real, imaginary = acos(x)
    return abs(imaginary), real.with_sign_of(x[1])


def _exchanged(x: Pair) -> Pair:
    return x[1], x[0]


def asinh(x: Pair) -> Pair:
    return _exchanged(asin(_exchanged(x)))


def atanh(x: Pair) -> Pair:
    """log1p(4 |a| / ((1 - |a|)^2 + b^2)) / 4, and half the angle of 1 - a^2 - b^2 + 2bi."""
    a, b = abs(x[0]), abs(x[1])
    name = a.dtype.name
    large = larger(a, b)
    endless = a.is_infinite | b.is_infinite
    far = (large > _MOST[name] ** 0.25) | endless
    p, q = a.where(~far, 0), b.where(~far, 0)
    away = 1 - p
    apart = away * away + q * q
    close = larger(abs(away), q) < 2.0**-10
    plain = (p * 4 / apart.where(~close, 1))("log1p") * 0.25
    at_pole = (((p + 1) * (p + 1) + q * q)("log") - log_of_size((away, q)) * 2) * 0.25
    real = at_pole.where(close, plain)
    angle = (q * 2)("atan2", away * (p + 1) - q * q) * 0.5
    # Far from 0: a / |x|^2, and a right angle less b / |x|^2.
    u, v = a / large, b / large
    ratio = smaller(u, v)
    small, less = (
        a.like(0).where(endless, x / large / (ratio * ratio + 1)) for x in (u, v)
    )  # fmt: skip
    real, angle = small.where(far, real), (math.pi / 2 - less).where(far, angle)
    angle = b.where(b.is_nan, angle)
    angle = angle.like(np.nan).where(a.is_nan & ~b.is_infinite, angle)
    real = a.where(a.equals(0), real)
    real = a.where(a.is_nan & ~b.is_infinite, real)
    return real.with_sign_of(x[0]), angle.with_sign_of(x[1])


def atan(x: Pair) -> Pair:
    return _exchanged(atanh(_exchanged(x)))


def atan2(y: Pair, x: Pair) -> Pair:
    """-i log((x + iy) / sqrt(x^2 + y^2)), as XLA defines it."""
    (a, b), (c, d) = x, y
    above = a - d, b + c
    p, q = product(x, x), product(y, y)
    real, imaginary = log(quotient(above, sqrt((p[0] + q[0], p[1] + q[1]))))
    return imaginary, -real
