"""Trigonometric and hyperbolic functions of complex numbers.

Input: pairs of parts. Output: pairs. Invariant: those of angles are the hyperbolic ones with parts
exchanged, since f(iz) = i g(z), so that both agree to the bit.
"""

from __future__ import annotations

import numpy as np

from stagejit.trace.complex.exponential import LARGEST, times, turned
from stagejit.trace.complex.parts import Pair
from stagejit.trace.math.expressions import Real


def _of_sizes(x: Pair, real_fn: str, imaginary_fn: str) -> Pair:
    """One hyperbolic function of the real part times the cosine, another times the sine."""
    a, b = x
    most = LARGEST[a.dtype.name]
    beyond = abs(a) > most
    large = (abs(a) - most)("exp")
    rest = a.like(np.exp(most) / 2).where(beyond, 1)

    def of_real(fn: str) -> Real:
        far = large.with_sign_of(a) if fn == "sinh" else large
        return far.where(beyond, a(fn))

    exact = a.is_infinite | a.equals(0)
    real = turned(of_real(real_fn), b("cos"), exact) * rest
    return real, times(of_real(imaginary_fn), b("sin"), exact) * rest


def sinh(x: Pair) -> Pair:
    return _of_sizes(x, "sinh", "cosh")


def cosh(x: Pair) -> Pair:
    return _of_sizes(x, "cosh", "sinh")


def tanh(x: Pair) -> Pair:
    """Kahan (1987): with t = tan b, s = sinh a, r = cosh a, q = 1 + t^2 it is
    (q r s + t i) / (1 + q s^2)."""
    a, b = x
    t, s, r = b("tan"), a("sinh"), a("cosh")
    q = t * t + 1
    below = q * s * s + 1
    real, imaginary = q * r * s / below, t / below
    one = a.like(1).with_sign_of(a)
    far = (abs(a) > LARGEST[a.dtype.name] / 8) & (b.is_finite | a.is_infinite)
    decayed = times((abs(a) * -2)("exp") * 4, b("sin") * b("cos"), a.is_infinite)
    real, imaginary = one.where(far, real), decayed.where(far, imaginary)
    return a.where(a.equals(0), real), b.where(b.equals(0), imaginary)


def _exchanged(x: Pair) -> Pair:
    return x[1], x[0]


def sin(x: Pair) -> Pair:
    return _exchanged(sinh(_exchanged(x)))


def cos(x: Pair) -> Pair:
    real, imaginary = cosh(_exchanged(x))
    return real, -imaginary


def tan(x: Pair) -> Pair:
    return _exchanged(tanh(_exchanged(x)))
