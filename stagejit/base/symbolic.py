"""Integers that are known later: sums of products of bounded symbols.

Input: `Symbol`s with their bounds. Output: `Expr`, which adds, subtracts and multiplies like an
int, and what can be proven about it. Invariant: an `Expr` has a symbol in it (all else is an int),
so equal polynomials are equal objects; nothing is assumed of a symbol but its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stagejit.base.records import record


@dataclass(frozen=True, order=True)
class Symbol:
    """An integer in `[low, high]`, both included. name: in plans a short one, before that the
    formula by which the host computes the value. is_size: it is a dimension of an argument."""

    name: str
    low: int
    high: int
    is_size: bool = False

    def __str__(self) -> str:
        return self.name


LARGEST_SIZE = 1 << 62

Product = tuple[Symbol, ...]  # sorted; () for the constant


@record(repr=False)
class Expr:
    """`sum(coefficient * product)`, products in order, no coefficient 0."""

    terms: tuple[tuple[Product, int], ...]

    def __add__(self, other: Int) -> Int:
        return _sum(self, other, 1)

    def __radd__(self, other: int) -> Int:
        return _sum(self, other, 1)

    def __sub__(self, other: Int) -> Int:
        return _sum(self, other, -1)

    def __rsub__(self, other: int) -> Int:
        return _sum(self * -1, other, 1)

    def __neg__(self) -> Int:
        return self * -1

    def __mul__(self, other: Int) -> Int:
        coefficients: dict[Product, int] = {}
        for product, coefficient in self.terms:
            for more, factor in terms_of(other):
                key = tuple(sorted((*product, *more)))
                coefficients[key] = coefficients.get(key, 0) + coefficient * factor
        return _made(coefficients)

    def __rmul__(self, other: int) -> Int:
        return self * other

    # -------------------------------------------------- what only the bounds may decide

    def __lt__(self, other: Int) -> bool:
        return _decided(self, "<", other, at_most(self + 1, other), at_most(other, self))

    def __le__(self, other: Int) -> bool:
        return _decided(self, "<=", other, at_most(self, other), at_most(other + 1, self))

    def __gt__(self, other: Int) -> bool:
        return _decided(self, ">", other, at_most(other + 1, self), at_most(self, other))

    def __ge__(self, other: Int) -> bool:
        return _decided(self, ">=", other, at_most(other, self), at_most(self + 1, other))

    def __bool__(self) -> bool:
        low, high = bounds(self)
        return _decided(self, "!=", 0, low > 0 or high < 0, low == high == 0)

    def __floordiv__(self, divisor: Int) -> Int:
        return divided(self, divisor)

    def __rfloordiv__(self, value: int) -> Int:
        return divided(value, self)

    def __mod__(self, divisor: Int) -> Int:
        return self - divided(self, divisor) * divisor

    def __rmod__(self, value: int) -> Int:
        return value - divided(value, self) * self

    def __divmod__(self, divisor: Int) -> tuple[Int, Int]:
        return self // divisor, self % divisor

    def __rdivmod__(self, value: int) -> tuple[Int, Int]:
        return value // self, value % self

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """As Python would read it, without blanks."""
        text = ""
        for product, coefficient in sorted(self.terms, key=lambda term: not term[0]):
            factors = [str(symbol) for symbol in product]
            if abs(coefficient) != 1 or not product:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+" if text else ""
            text += sign + "*".join(factors)
        return text


Int = int | Expr


class Undecided(ValueError):
    """What is known of the symbols does not say whether something holds, or how much it is."""


def expr(symbol: Symbol) -> Int:
    """The value of a symbol; one with a single value is that."""
    return symbol.low if symbol.low == symbol.high else Expr((((symbol,), 1),))


def size_named(name: str) -> Int:
    """A dimension of that name, which is at least 1, as in JAX."""
    return expr(Symbol(name, 1, LARGEST_SIZE, is_size=True))


def symbols_in(value: Int) -> Iterator[Symbol]:
    """The symbols of `value`, in order, some of them more than once."""
    if isinstance(value, Expr):
        for product, _ in value.terms:
            yield from product


def substitute(value: Int, values: Mapping[Symbol, Int]) -> Int:
    """`value` with `values` in place of symbols; those that it does not name stay."""
    if isinstance(value, int):
        return value
    total: Int = 0
    for product, coefficient in value.terms:
        term: Int = coefficient
        for symbol in product:
            term = values.get(symbol, expr(symbol)) * term
        total = total + term
    return total


def bounds(value: Int) -> tuple[int, int]:
    """Between what the value lies for certain, both included."""
    if not isinstance(value, Expr):
        return value, value
    if all(len(product) < 2 for product, _ in value.terms):  # most: decided without a new sum
        low = high = 0
        for product, coefficient in value.terms:
            ends = (product[0].low, product[0].high) if product else (1, 1)
            low += coefficient * ends[coefficient < 0]
            high += coefficient * ends[coefficient > 0]
        return low, high
    # In terms of what each symbol is above its low bound, all products are at least 0.
    above = {symbol: _sum(expr(symbol), symbol.low, 1) for symbol in symbols_in(value)}
    low = high = 0
    for product, coefficient in terms_of(substitute(value, above)):
        most = coefficient * math.prod(symbol.high - symbol.low for symbol in product)
        low += most if not product else min(most, 0)
        high += most if not product else max(most, 0)
    return low, high


def extremes(value: Int) -> tuple[Int, Int]:
    """The least and the greatest value, in terms of the sizes among its symbols."""
    if isinstance(value, int):
        return value, value
    sizes = {symbol for symbol in symbols_in(value) if symbol.is_size}
    if not sizes:
        return bounds(value)
    low: Int = 0
    high: Int = 0
    for product, coefficient in terms_of(value):
        kept = tuple(symbol for symbol in product if symbol in sizes)
        rest = tuple(symbol for symbol in product if symbol not in sizes)
        least, greatest = bounds(_made({rest: coefficient}))
        low, high = low + _made({kept: least}), high + _made({kept: greatest})
    return low, high


def at_most(a: Int, b: Int) -> bool:
    """Whether a <= b is certain."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return bounds(b - a)[0] >= 0


def divided(value: Int, divisor: Int) -> Int:
    """value // divisor, by long division. Raises Undecided where that is no sum of products."""
    first, by = max(terms_of(divisor), key=lambda term: (len(term[0]), term[0]))
    quotient: Int = 0
    rest = value
    while (part := _multiple_in(rest, first, by)) is not None:
        quotient, rest = quotient + part, rest - part * divisor
    return quotient + _rounded(rest, divisor, value)


def _multiple_in(value: Int, product: Product, by: int) -> Int | None:
    """How often `by` times a product is in one term of the value; None where it is in none."""
    for found, coefficient in terms_of(value):
        left = list(found)
        for symbol in product:
            if symbol in left:
                left.remove(symbol)
        if coefficient // by and len(left) == len(found) - len(product):
            return _made({tuple(left): coefficient // by})
    return None


def _rounded(rest: Int, divisor: Int, value: Int) -> int:
    """The quotient of what is no multiple for certain: 0 or -1, or Undecided."""
    if rest == 0 or (at_most(0, rest) and at_most(rest + 1, divisor)):
        return 0
    if at_most(rest + 1, 0) and at_most(0, rest + divisor):
        return -1
    raise Undecided(f"{value} may be no multiple of {divisor}")


def is_multiple(value: Int, divisor: Int) -> bool:
    """Whether the divisor divides the value for certain."""
    try:
        return divided(value, divisor) * divisor == value
    except Undecided:
        return False


def residue(value: Int, divisor: int) -> int | None:
    """value % divisor where that is the same for all values of the symbols, else None."""
    if isinstance(value, int):
        return value % divisor
    constant = 0
    for product, coefficient in terms_of(value):
        if not product:
            constant = coefficient
        elif coefficient % divisor:
            return None
    return constant % divisor


def _decided(a: Int, sign: str, b: Int, holds: bool, fails: bool) -> bool:
    if holds or fails:
        return holds
    raise Undecided(f"whether {a} {sign} {b} depends on the sizes")


def terms_of(value: Int) -> tuple[tuple[Product, int], ...]:
    """Products of symbols and what each is multiplied by; that of a number is empty."""
    return value.terms if isinstance(value, Expr) else (((), value),)


def _sum(a: Int, b: Int, sign: int) -> Int:
    coefficients = dict(terms_of(a))
    for product, coefficient in terms_of(b):
        coefficients[product] = coefficients.get(product, 0) + sign * coefficient
    return _made(coefficients)


def _made(coefficients: Mapping[Product, int]) -> Int:
    terms = tuple(sorted((p, c) for p, c in coefficients.items() if c))
    if not terms:
        return 0
    return terms[0][1] if terms == (((), terms[0][1]),) else Expr(terms)
