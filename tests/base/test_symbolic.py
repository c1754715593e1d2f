"""Integers with symbols in them, against all values of the symbols."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.base.formulas import evaluate
from stagejit.base.symbolic import (
    Expr,
    Int,
    Symbol,
    Undecided,
    at_most,
    bounds,
    divided,
    expr,
    is_multiple,
    residue,
    size_named,
    substitute,
    symbols_in,
)

SYMBOLS = (Symbol("a", 0, 3), Symbol("b", -2, 2), Symbol("c", 1, 4))


@st.composite
def integers(draw: Any, products: bool = True) -> Int:
    value: Int = draw(st.integers(-6, 6))
    for _ in range(draw(st.integers(0, 3))):
        term: Int = draw(st.integers(-3, 3))
        for _ in range(draw(st.integers(1, 2 if products else 1))):
            term = expr(draw(st.sampled_from(SYMBOLS))) * term
        value = term + value
    return value


def assignments() -> Iterator[dict[Symbol, Int]]:
    ranges = [range(symbol.low, symbol.high + 1) for symbol in SYMBOLS]
    for values in itertools.product(*ranges):
        yield dict(zip(SYMBOLS, values, strict=True))


def values_of(value: Int) -> list[int]:
    return [int(substitute(value, each)) for each in assignments()]  # type: ignore[arg-type]


@given(integers(), integers())
def test_arithmetic_is_that_of_the_values(a: Int, b: Int) -> None:
    for made, one, other in zip(values_of(a + b), values_of(a), values_of(b), strict=True):
        assert made == one + other
    for made, one, other in zip(values_of(a * b - a), values_of(a), values_of(b), strict=True):
        assert made == one * other - one
    assert a - a == 0
    assert (a + b) - b == a
    assert isinstance(a, int) or list(symbols_in(a))


@given(integers())
def test_bounds_hold(value: Int) -> None:
    low, high = bounds(value)
    assert all(low <= each <= high for each in values_of(value))


@given(integers(products=False))
def test_bounds_of_sums_are_reached(value: Int) -> None:
    assert bounds(value) == (min(values_of(value)), max(values_of(value)))


@given(integers(), integers())
def test_what_is_certain_holds_for_all_values(a: Int, b: Int) -> None:
    pairs = list(zip(values_of(a), values_of(b), strict=True))
    assert not at_most(a, b) or all(one <= other for one, other in pairs)


@given(integers(), st.integers(1, 5))
def test_a_residue_is_that_of_all_values(value: Int, divisor: int) -> None:
    rest = residue(value, divisor)
    assert rest is None or {each % divisor for each in values_of(value)} == {rest}


@given(integers(), st.integers(1, 5))
def test_a_quotient_is_that_of_all_values(value: Int, divisor: int) -> None:
    try:
        quotient = divided(value, divisor)
    except Undecided:
        assert residue(value, divisor) is None
        return
    assert values_of(quotient) == [each // divisor for each in values_of(value)]


@given(integers(), integers(products=False), st.booleans())
def test_a_quotient_by_sizes_is_that_of_all_values(value: Int, divisor: Int, times: bool) -> None:
    value = value * divisor + 1 if times else value
    try:
        quotient = value // divisor
        remainder = value % divisor
    except (Undecided, ZeroDivisionError):
        return
    of = zip(values_of(value), values_of(divisor), strict=True)
    found = zip(values_of(quotient), values_of(remainder), of, strict=True)
    assert all((q, r) == divmod(v, d) for q, r, (v, d) in found if d)


def test_a_quotient_by_a_size() -> None:
    n, m = size_named("n"), size_named("m")
    assert (n * m - 1) // m == n - 1
    assert (n * m + m - 1) // m == n
    assert (n * m - 1) % m == m - 1
    assert 0 // n == 0 % n == 0
    assert -1 // n == -1
    assert is_multiple(n * m * 6, m * 2)
    assert not is_multiple(n * 6, m)
    assert not is_multiple(1, n)
    assert is_multiple(0, n)
    with pytest.raises(Undecided, match="multiple of n"):
        assert 1 // n  # 1 where n is 1


def test_a_quotient_by_a_sum() -> None:
    n, m = size_named("n"), size_named("m")
    assert divmod(24 * n + 71, n + 3) == (23, n + 2)
    assert (m * n * n + m * n - 1) // (n + 1) == m * n - 1
    assert divmod(3, n + 3) == (0, 3)
    assert is_multiple(n * n - 1, n + 1)
    assert not is_multiple(2 * n + 1, n + 1)
    with pytest.raises(Undecided, match="multiple of n"):
        assert divmod(4, n + 3)  # 1 where n is 1


@given(integers(), integers())
def test_comparisons_hold_for_all_values_or_are_undecided(a: Int, b: Int) -> None:
    pairs = list(zip(values_of(a), values_of(b), strict=True))
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            holds = compare(a, b)
        except Undecided:
            continue
        assert all(compare(one, other) == holds for one, other in pairs)


def test_what_only_sizes_decide_is_undecided() -> None:
    n = size_named("n")
    assert n >= 1
    assert bool(n)
    assert n * 8 // n == 8
    assert (n * 8 - 1) // 8 == n - 1
    with pytest.raises(Undecided, match="n > 1"):
        assert n > 1
    with pytest.raises(Undecided, match="multiple of 8"):
        assert n // 8
    with pytest.raises(Undecided):
        assert n - 1


@given(integers())
def test_text_reads_back(value: Int) -> None:
    assert evaluate(str(value), {symbol.name: expr(symbol) for symbol in SYMBOLS}) == value


def test_a_symbol_with_one_value_is_a_number() -> None:
    assert expr(Symbol("n", 3, 3)) == 3


def test_dont_prove_what_only_some_values_satisfy() -> None:
    a = expr(SYMBOLS[0])
    assert at_most(a, 3)
    assert not at_most(a, 2)
    assert not at_most(3, a)
    assert residue(a * 2 + 1, 2) == 1
    assert residue(a, 2) is None


@pytest.mark.parametrize(
    "text", ["a +", "a.b", "__import__('os')", "a[0]", "1.5", "f(a)", "a ** 2"]
)
def test_dont_read_what_is_no_formula(text: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        evaluate(text, {"a": 1})


def test_an_expression_has_a_symbol() -> None:
    assert isinstance(expr(SYMBOLS[0]) + 1, Expr)
    assert expr(SYMBOLS[0]) * 0 == 0
