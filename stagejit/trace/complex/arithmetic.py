"""Products, quotients, absolute values and order of complex numbers.

Input: pairs of parts. Output: pairs, absolute values and conditions. Invariant: products are the
textbook's, but for squares, whose parts keep their digits; division (Smith 1962), absolute values
and signs are scaled, so that squares of large or small parts do not leave the range; what is
infinite divides to zero, as in C.
"""

from __future__ import annotations

from stagejit.graph.ir import Value
from stagejit.trace.complex.parts import Pair
from stagejit.trace.emitter import Emitter
from stagejit.trace.math.expressions import Real, larger, smaller


def product(x: Pair, y: Pair) -> Pair:
    """A square where both are one pair."""
    if x is y:
        return square(x)
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def square(x: Pair) -> Pair:
    """x**2, whose real part a**2 - b**2 would lose all digits where a is near b. Sizes, so that
    a zero is 0, never -0."""
    a, b = x
    large, small = abs(a), abs(b)
    return (large - small) * (large + small), a * b + b * a


def one_minus_square(x: Pair) -> Pair:
    """1 - x**2 as (1 + x) * (1 - x), which keeps the digits that squaring near 1 rounds away."""
    a, b = x
    return product((a + 1, b), (1 - a, 0 - b))


def one_minus(real: Value, emit: Emitter) -> Real | None:
    """1 - (|a| - |b|) * (|a| + |b|)  -->  (1 + a) * (1 - a) + b * b; None of others"""
    if real.op.attrs.get("fn") != "mul":
        return None
    less, more = (x.op for x in real.op.operands)
    if (less.attrs.get("fn"), more.attrs.get("fn")) != ("sub", "add"):
        return None
    sizes = [x.op for x in less.operands]
    if less.operands != more.operands or any(x.attrs.get("fn") != "abs" for x in sizes):
        return None
    a, b = (Real(emit, x.operands[0]) for x in sizes)
    return (a + 1) * (1 - a) + b * b


def quotient(x: Pair, y: Pair) -> Pair:
    """(a + bi) / (c + di), divided above and below by the larger one of c and d."""
    (a, b), (c, d) = x, y
    c, d = _without_infinity(c, d)
    first = abs(c) >= abs(d)
    large, small = c.where(first, d), d.where(first, c)
    # Nothing is left of y where large is zero: the parts of x are divided by zero.
    ratio = large.like(0).where(large.equals(0), small / large)
    below = large + small * ratio
    p, q = a.where(first, b), b.where(first, a)
    turned = q - p * ratio  # the imaginary part if c is larger
    return (p + q * ratio) / below, turned.where(first, -turned) / below


def _without_infinity(c: Real, d: Real) -> Pair:
    """The same, but for a number that has an infinite part: the other part of it counts as 0."""
    return (
        c.like(0).where(d.is_infinite, c).with_sign_of(c),
        d.like(0).where(c.is_infinite & ~d.is_infinite, d).with_sign_of(d),
    )


def reciprocal(x: Pair) -> Pair:
    one = x[0].like(1)
    return quotient((one, x[0].like(0)), x)


def power(x: Pair, exponent: int) -> Pair:
    """An integral power, by squares."""
    result: Pair | None = None
    squared, left = x, abs(exponent)
    while left:
        if left & 1:
            result = squared if result is None else product(result, squared)
        left >>= 1
        squared = square(squared) if left else squared
    if result is None:
        return x[0].like(1), x[0].like(0)
    return reciprocal(result) if exponent < 0 else result


def scaled(x: Pair) -> tuple[Real, Real, Real, Real]:
    """The larger part in size, both sizes divided by it, and the absolute value divided by it. What
    is zero stays zero."""
    a, b = abs(x[0]), abs(x[1])
    large = larger(a, b)
    divisor = large.like(1).where(large.equals(0), large)
    p, q = a / divisor, b / divisor
    ratio = smaller(p, q)
    return large, p, q, (ratio * ratio + 1)("sqrt")


def modulus(x: Pair) -> Real:
    """The absolute value: infinite where a part is, whatever the other one is."""
    a, b = abs(x[0]), abs(x[1])
    large, small = larger(a, b), smaller(a, b)
    ratio = large.like(0).where(large.equals(0), small / large)
    length = large * (ratio * ratio + 1)("sqrt")
    return a.like(float("inf")).where(a.is_infinite | b.is_infinite, length)


def sign(x: Pair) -> Pair:
    """x divided by its absolute value, of the only infinite part where there is one. Zeros stay."""
    a, b = x
    endless = a.is_infinite | b.is_infinite
    a, b = (
        x.like(1).where(x.is_infinite, 0).with_sign_of(x).where(endless, x) for x in (a, b)
    )  # fmt: skip
    large = larger(abs(a), abs(b))
    divisor = large.like(1).where(large.equals(0), large)
    p, q = a / divisor, b / divisor
    length = (p * p + q * q)("sqrt")
    length = length.like(1).where(large.equals(0), length)
    both = x[0].is_infinite & x[1].is_infinite
    nan = a.like(float("nan"))
    return nan.where(both, p / length), nan.where(both, q / length)


def chosen(fn: str, x: Pair, y: Pair) -> Pair:
    """The `max` or `min` by the real parts, then the imaginary ones; the first that is NaN."""
    compare = {"max": "ge", "min": "le"}[fn]
    strictly = {"max": "gt", "min": "lt"}[fn]
    (a, b), (c, d) = x, y
    keeps = a(strictly, c) & ~(b.is_nan | d.is_nan) | a.equals(c) & b(compare, d)
    keeps = keeps | a.is_nan | b.is_nan
    return a.where(keeps, c), b.where(keeps, d)
