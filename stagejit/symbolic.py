"""Integers that are known later: sums of products of bounded symbols.

Input: `Symbol`s with their bounds. Output: `Expr`, which adds, subtracts and multiplies like an
int, and what can be proven about it. Invariant: an `Expr` has a symbol in it (all else is an int),
so equal polynomials are equal objects; nothing is assumed of a symbol but its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Symbol:
    """An integer in `[low, high]`, both included. Symbols are equal by name: in plans a short one,
    before that the formula by which the host computes the value."""

    name: str
    low: int
    high: int

    def __str__(self) -> str:
        return self.name


Product = tuple[Symbol, ...]  # sorted; () for the constant


@dataclass(frozen=True)
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
            for more, factor in _terms(other):
                key = tuple(sorted((*product, *more)))
                coefficients[key] = coefficients.get(key, 0) + coefficient * factor
        return _made(coefficients)

    def __rmul__(self, other: int) -> Int:
        return self * other

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


def expr(symbol: Symbol) -> Int:
    """The value of a symbol; one with a single value is that."""
    return symbol.low if symbol.low == symbol.high else Expr((((symbol,), 1),))


def symbols_in(value: Int) -> Iterator[Symbol]:
    """The symbols of `value`, in order, some of them more than once."""
    for product, _ in _terms(value):
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
    if isinstance(value, int):
        return value, value
    # In terms of what each symbol is above its low bound, all products are at least 0.
    above = {symbol: _sum(expr(symbol), symbol.low, 1) for symbol in symbols_in(value)}
    low = high = 0
    for product, coefficient in _terms(substitute(value, above)):
        most = coefficient * math.prod(symbol.high - symbol.low for symbol in product)
        low += most if not product else min(most, 0)
        high += most if not product else max(most, 0)
    return low, high


def at_most(a: Int, b: Int) -> bool:
    """Whether a <= b is certain."""
    return bounds(b - a)[0] >= 0


def residue(value: Int, divisor: int) -> int | None:
    """value % divisor where that is the same for all values of the symbols, else None."""
    constant = 0
    for product, coefficient in _terms(value):
        if not product:
            constant = coefficient
        elif coefficient % divisor:
            return None
    return constant % divisor


def _terms(value: Int) -> tuple[tuple[Product, int], ...]:
    return value.terms if isinstance(value, Expr) else (((), value),)


def _sum(a: Int, b: Int, sign: int) -> Int:
    coefficients = dict(_terms(a))
    for product, coefficient in _terms(b):
        coefficients[product] = coefficients.get(product, 0) + sign * coefficient
    return _made(coefficients)


def _made(coefficients: Mapping[Product, int]) -> Int:
    terms = tuple(sorted((p, c) for p, c in coefficients.items() if c))
    if not terms:
        return 0
    return terms[0][1] if terms == (((), terms[0][1]),) else Expr(terms)
