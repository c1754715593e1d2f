"""Exponentials, logarithms, roots and powers of complex numbers.

Input: pairs of parts. Output: pairs. Invariant: parts that are infinite, NaN or signed zeros give
what C's Annex G gives, and results within the range are reached although what they are products of
is not.
"""

from __future__ import annotations

import math

import numpy as np

from stagejit.trace.complex.arithmetic import product, quotient, scaled
from stagejit.trace.complex.parts import Pair
from stagejit.trace.math.expressions import Real, larger, smaller
from stagejit.types import f64

# A whole number whose exponential is just within the range, and the exponent of a power of two.
LARGEST = {"f32": 88.0, "f64": 709.0}
_LARGEST_2 = {"f32": 127.0, "f64": 1023.0}


def times(x: Real, y: Real, exact: Real) -> Real:
    """x * y, but for zeros times what is not finite, which are zeros. exact: where x is no zero
    that it was only rounded to."""
    plain = x * y
    plain = (-y).where(x < 0, y).where(y.equals(0) & ~x.is_finite, plain)
    return x.where(x.equals(0) & exact & ~y.is_finite, plain)


def turned(x: Real, y: Real, exact: Real) -> Real:
    """`times`, the real part of what is infinitely large in an unknown direction y: infinite."""
    return times(x, y.like(1).where(x.is_infinite & exact & y.is_nan, y), exact)


def _grown(fn: str, x: Pair, most: float, angle: Real) -> Pair:
    """exp or exp2 of the real part, in the direction of an angle."""
    a, b = x
    beyond = a > most
    size = (a - a.like(most).where(beyond, 0))(fn)
    rest = a.like(np.exp(most) if fn == "exp" else 2.0**most).where(beyond, 1)
    cosine, sine = angle("cos"), angle("sin")
    exact = a.is_infinite
    real, imaginary = turned(size, cosine, exact) * rest, times(size, sine, exact) * rest
    return real, b.where(b.equals(0), imaginary)


def exp(x: Pair) -> Pair:
    return _grown("exp", x, LARGEST[x[0].dtype.name], x[1])


def exp2(x: Pair) -> Pair:
    return _grown("exp2", x, _LARGEST_2[x[0].dtype.name], x[1] * math.log(2))


def expm1(x: Pair) -> Pair:
    """exp(x) - 1 = expm1(a) cos b - 2 sin(b/2)^2 + i exp(a) sin b"""
    a, b = x
    real, imaginary = exp(x)
    half = (b * 0.5)("sin")
    near = a("expm1") * b("cos") - half * half * 2
    below = (a < LARGEST[a.dtype.name]) & b.is_finite & ~a.is_infinite
    near = a("expm1").where(b.equals(0), near)
    return near.where(below | b.equals(0), real - 1), imaginary


def _square_less_one(a: Real, b: Real) -> Real:
    """|1 + a + bi|^2 - 1 = 2a + a^2 + b^2 to the last bits, for parts of moderate size."""
    if a.dtype is not f64:
        wide, other = a.to(f64), b.to(f64)  # of which squares are exact
        total, lost = _sum(wide * 2, other * other)
        return (total + wide * wide + lost).to(a.dtype)
    (p, p_low), (q, q_low) = _square(a), _square(b)
    total, lost = _sum(a * 2, q)
    total, more = _sum(total, p)
    return (total + q_low) + (lost + more + p_low)


def _sum(x: Real, y: Real) -> tuple[Real, Real]:
    """x + y as a sum of two numbers (Knuth 1969)."""
    result = x + y
    taken = result - x
    return result, (x - (result - taken)) + (y - taken)


def _square(x: Real) -> tuple[Real, Real]:
    """x^2 as a sum of two numbers (Dekker 1971), of moderate size."""
    wide = x * (2.0**27 + 1)
    high = wide - (wide - x)
    low = x - high
    result = x * x
    return result, ((high * high - result) + high * low * 2) + low * low


def log_of_size(x: Pair) -> Real:
    """The logarithm of the absolute value, also of one that is nearly 1."""
    large, small = larger(abs(x[0]), abs(x[1])), smaller(abs(x[0]), abs(x[1]))
    near = (large > 0.5) & (large < 2.0)
    inside = _square_less_one(large.where(near, 1) - 1, small.where(near, 0))
    ratio = large.like(0).where(large.equals(0), small / large)
    far = large("log") + (ratio * ratio)("log1p") * 0.5
    result = (inside("log1p") * 0.5).where(near, far)
    return large.like(np.inf).where(x[0].is_infinite | x[1].is_infinite, result)


def log(x: Pair) -> Pair:
    return log_of_size(x), x[1]("atan2", x[0])


def log1p(x: Pair) -> Pair:
    """The logarithm of 1 + x. Its size is taken of x where 1 + x is around 1: the sum is rounded,
    and where its size is nearly 1, all digits of the logarithm are behind those that it keeps."""
    a, b = x
    one = a + 1
    far, angle = log_of_size((one, b)), b("atan2", one)
    moderate = (abs(a) < 4) & (abs(b) < 4)
    inside = _square_less_one(a.where(moderate, 0), b.where(moderate, 0))
    return (inside("log1p") * 0.5).where(moderate & (inside > -0.5), far), angle


def sqrt(x: Pair) -> Pair:
    """Of |a| + |b|i: ((|x| + |a|) / 2)^1/2 and |b| over twice that, each the other where a < 0."""
    a, b = x
    large, p, _, size = scaled(x)
    main = ((p + size) * 0.5)("sqrt")
    root = large("sqrt")
    first, second = main * root, abs(b) / root / (main * 2)
    zero = large.equals(0)
    first, second = large.like(0).where(zero, first), large.like(0).where(zero, second)
    left = a < 0
    real, imaginary = second.where(left, first), first.where(left, second)
    return _root_of_infinite(a, b, real, imaginary.with_sign_of(b))


def _root_of_infinite(a: Real, b: Real, real: Real, imaginary: Real) -> Pair:
    infinity, zero = a.like(np.inf), a.like(0)
    up, down = a.equals(np.inf), a.equals(-np.inf)
    real = infinity.where(up, (b - b).where(down, real))
    imaginary = zero.with_sign_of(b).where(up, imaginary)
    imaginary = b.where(up & b.is_nan, infinity.with_sign_of(b).where(down, imaginary))
    return infinity.where(b.is_infinite, real), b.where(b.is_infinite, imaginary)


def rsqrt(x: Pair) -> Pair:
    """The conjugate of the root divided by the absolute value."""
    a, b = x
    large, p, q, size = scaled(x)
    main = ((p + size) * 0.5)("sqrt")
    scale = large("rsqrt") / size
    first, second = main * scale, q * scale / (main * 2)
    left = a < 0
    real, imaginary = second.where(left, first), -first.where(left, second).with_sign_of(b)
    zero, endless = large.equals(0), a.is_infinite | b.is_infinite
    real = a.like(np.inf).where(zero, a.like(0).where(endless, real))
    nothing = -a.like(0).with_sign_of(b)
    return real, a.like(np.nan).where(zero, nothing.where(endless, imaginary))


def power(x: Pair, y: Pair) -> Pair:
    """exp(y log x); x^0 is 1, and 0 to what has a positive real part is 0."""
    (c, d) = y
    real, imaginary = exp(product(y, log(x)))
    none = x[0].equals(0) & x[1].equals(0)
    zero, nan = c.like(0), c.like(np.nan)
    of_zero = zero.where(c > 0, nan)
    real, imaginary = of_zero.where(none, real), of_zero.where(none, imaginary)
    is_one = c.equals(0) & d.equals(0)
    return c.like(1).where(is_one, real), zero.where(is_one, imaginary)


def logistic(x: Pair) -> Pair:
    """1 / (1 + exp(-x)) or, where that is small, exp(x) / (1 + exp(x))."""
    a, b = x
    left = a < 0
    e, f = exp((a.where(left, -a), b.where(left, -b)))
    one, zero = a.like(1), a.like(0)
    above = e.where(left, one), f.where(left, zero)
    return quotient(above, (e + 1, f))
