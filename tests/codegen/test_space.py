"""Iteration spaces: splitting where reshapes ask for it, merging where nothing forbids it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.codegen.space import Space, merge, refine
from stagejit.dispatch.affine import Affine, Index, Var, linearize, reshape_index


def values(form: Affine, variables: list[Var]) -> list[int]:
    """The values of `form` as the variables run, the last one fastest."""
    found = []
    for number in range(math.prod(var.extent for var in variables)):
        env, rest = {}, number
        for var in reversed(variables):
            rest, env[var] = divmod(rest, var.extent)
        found.append(_at(form, env))
    return found


def _at(form: Affine, env: dict[Var, int]) -> int:
    total = form.const
    for var, coeff in form.terms:
        if var.operand is None:
            total += coeff * env[var]
        else:
            inner = _at(var.operand, env)
            total += coeff * (inner // var.divisor if var.kind == "div" else inner % var.divisor)
    return total


def test_unit_dimensions_have_no_loop() -> None:
    space = Space((1, 5, 1))
    assert [var.extent for var in space.vars] == [5]
    assert space.index[0].is_const
    assert space.index[2].is_const


def test_split() -> None:
    space = Space((6, 10))
    (outer, inner) = space.vars
    assert space.split(inner, 5)
    assert [var.extent for var in space.vars] == [6, 2, 5]
    assert not space.split(inner, 5), "it is no variable of the space any more"
    assert values(space.index[1], space.vars)[:11] == [*range(10), 0]
    assert outer in space.vars


def test_refine_splits_until_a_reshape_is_affine() -> None:
    space = Space((24,))

    def evaluate(strict: bool) -> Index:
        return reshape_index(space.index, (24,), (2, 3, 4), strict=strict)

    index = refine([space], evaluate)
    assert all(var.kind == "loop" for part in index for var in part.vars())
    assert sorted(var.extent for var in space.vars) == [2, 3, 4]


def test_refine_divides_where_no_split_helps() -> None:
    space = Space((7, 15))
    index = refine(
        [space], lambda strict: reshape_index(space.index, (7, 15), (15, 7), strict=strict)
    )
    assert any(var.kind in ("div", "mod") for part in index for var in part.vars())
    flat = linearize(index, (15, 7))
    assert values(flat, space.vars) == list(range(105))


def test_merge_of_a_contiguous_space() -> None:
    space = Space((4, 5, 6))
    form = linearize(space.index, (4, 5, 6))
    merged, mapping = merge(space.vars, [form])
    assert [var.extent for var in merged] == [120]
    assert values(form.substitute(mapping), merged) == list(range(120))


def test_dont_merge_what_a_form_separates() -> None:
    space = Space((4, 5))
    row, column = space.index
    assert len(merge(space.vars, [linearize((row, column), (4, 5)), column])[0]) == 2
    assert len(merge(space.vars, [linearize((column, row), (5, 4))])[0]) == 2
    assert len(merge(space.vars, [])[0]) == 1, "nothing asks for any of them"


def test_dont_merge_below_a_division() -> None:
    space = Space((7, 15))
    index = reshape_index(space.index, (7, 15), (15, 7))
    assert len(merge(space.vars, [index[0]])[0]) == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_merge_keeps_the_forms(order: tuple[int, ...]) -> None:
    space = Space((3, 4, 5))
    shape = [3, 4, 5]
    form = linearize([space.index[k] for k in order], [shape[k] for k in order])
    merged, mapping = merge(space.vars, [form, form * 2 + 7])
    assert values(form.substitute(mapping), merged) == values(form, space.vars)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_refine_and_merge_visit_every_element_once(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    first = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    to = (first, size // first)
    space = Space(shape)

    def evaluate(strict: bool) -> Affine:
        return linearize(reshape_index(space.index, shape, to, strict=strict), to)

    form = refine([space], evaluate)
    merged, mapping = merge(space.vars, [form])
    assert values(form.substitute(mapping), merged) == list(range(size))
