"""Affine index arithmetic against Python's integers, at every point."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.index import affine
from stagejit.index.affine import (
    Affine,
    SplitNeeded,
    Var,
    delinearize,
    linearize,
    reshape_index,
)
from stagejit.index.coordinates import coordinates, variables


def points(variables: list[Var]) -> Iterator[dict[Var, int]]:
    for numbers in itertools.product(*(range(var.extent) for var in variables)):
        yield dict(zip(variables, numbers, strict=True))


def at(form: Affine, env: dict[Var, int]) -> int:
    """The value of `form`; operands of divisions must not be negative, as kernels assume."""
    total = form.const
    for var, coeff in form.terms:
        if var.operand is None:
            total += coeff * env[var]
            continue
        inner = at(var.operand, env)
        assert inner >= 0
        value = inner // var.divisor if var.kind == "div" else inner % var.divisor
        assert 0 <= value < var.extent
        total += coeff * value
    return total


@st.composite
def forms(draw: st.DrawFn) -> tuple[list[Var], Affine]:
    variables = [Var(draw(st.integers(2, 5))) for _ in range(draw(st.integers(1, 3)))]
    form = Affine((), draw(st.integers(-20, 20)))
    for var in variables:
        form = form + Affine.of(var) * draw(st.integers(-7, 7))
    return variables, form


@given(forms(), st.integers(1, 9))
def test_divmod(made: tuple[list[Var], Affine], divisor: int) -> None:
    variables, form = made
    quotient, remainder = form.divmod(divisor)
    for env in points(variables):
        assert (at(quotient, env), at(remainder, env)) == divmod(at(form, env), divisor)


@given(forms(), st.integers(1, 9), st.integers(1, 5))
def test_what_was_divided_comes_together(
    made: tuple[list[Var], Affine], divisor: int, factor: int
) -> None:
    _, form = made
    quotient, remainder = form.divmod(divisor)
    assert (quotient * divisor + remainder) * factor == form * factor


@given(forms(), st.integers(2, 9))
def test_a_strict_division_asks_for_a_split_of_its_own_variable(
    made: tuple[list[Var], Affine], divisor: int
) -> None:
    variables, form = made
    split = None
    try:
        form.divmod(divisor, strict=True)
    except SplitNeeded as needed:
        split = needed
    assert split is None or (split.var in variables and split.var.extent % split.inner == 0)


@given(forms())
def test_ranges_hold(made: tuple[list[Var], Affine]) -> None:
    variables, form = made
    found = [at(form, env) for env in points(variables)]
    assert (min(found), max(found)) == form.range()


@given(forms(), forms(), st.integers(-4, 4))
def test_arithmetic(a: tuple[list[Var], Affine], b: tuple[list[Var], Affine], k: int) -> None:
    total = a[1] * k + b[1] - 3
    for env in points([*a[0], *b[0]]):
        assert at(total, env) == at(a[1], env) * k + at(b[1], env) - 3


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_reshapes_keep_row_major_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    first = data.draw(st.sampled_from(divisors))
    to = [first, size // first]
    variables = [Var(extent) for extent in to]
    index = [Affine.of(var) for var in variables]
    flip = data.draw(st.booleans())
    if flip:
        index[1] = Affine((), to[1] - 1) - index[1]
    pulled = reshape_index(index, to, shape)
    live = [var for var in variables if var.extent > 1]
    for env in points(live):
        offset = at(linearize(index, to), env)
        assert at(linearize(pulled, shape), env) == offset
        assert all(0 <= at(part, env) < extent for part, extent in
                   zip(pulled, shape, strict=True))  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 3)])
def test_delinearize_inverts(shape: tuple[int, ...]) -> None:
    variables = [Var(extent) for extent in shape]
    index = tuple(Affine.of(var) for var in variables)
    assert delinearize(linearize(index, shape), shape) == index


def test_substitution_reaches_into_divisions() -> None:
    x, y = Var(12), Var(6)
    quotient, remainder = Affine.of(x).divmod(5)
    step = {x: Affine.of(y) * 2 + 1}
    for env in points([y]):
        value = 2 * env[y] + 1
        assert at(quotient.substitute(step), env) == value // 5
        assert at(remainder.substitute(step), env) == value % 5


def test_coordinates_are_the_same_after_the_cache_has_forgotten_them() -> None:
    before = variables((3, 4)), coordinates((3, 4))
    variables.cache_clear()
    coordinates.cache_clear()
    assert (variables((3, 4)), coordinates((3, 4))) == before


def test_equal_divisions_are_equal_on_any_thread() -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for size in range(1000, 1400):
            var, start = Var(size), threading.Barrier(4)
            found: list[Any] = []

            def ask(var: Var = var, start: Any = start, found: Any = found) -> None:
                start.wait()
                found.append((variables((var.extent, 7)), Affine.of(var).divmod(7)))

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [(variables((size, 7)), Affine.of(var).divmod(7))] * 4
    finally:
        sys.setswitchinterval(switching)


def test_variables_that_nobody_holds_are_forgotten() -> None:
    def count() -> int:
        gc.collect()
        return len(affine._shared)

    before = count()
    var = Var(1000)
    parts = Affine.of(var).divmod(7)
    assert count() == before + 2
    del parts, var
    assert count() == before
