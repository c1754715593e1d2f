"""Iteration spaces: splitting where reshapes ask for it, merging where nothing forbids it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagejit.codegen.places.space import Space, merge, refine
from stagejit.index.affine import Affine, Index, Var, divisions, linearize, reshape_index


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
    assert [var.extent for var in space.loops()] == [5]
    assert not space.index[0].terms
    assert not space.index[2].terms


def test_split() -> None:
    space = Space((6, 10))
    (outer, inner) = space.loops()
    assert space.split(inner, 5)
    assert [var.extent for var in space.loops()] == [6, 2, 5]
    assert not space.split(inner, 5), "it is no variable of the space any more"
    assert values(space.index[1], space.loops())[:11] == [*range(10), 0]
    assert outer in space.loops()


def test_refine_splits_until_a_reshape_is_affine() -> None:
    space = Space((24,))

    def evaluate(strict: bool) -> Index:
        return reshape_index(space.index, (24,), (2, 3, 4), strict=strict)

    index = refine(space.split, evaluate)
    assert all(var.kind == "loop" for part in index for var in part.vars())
    assert sorted(var.extent for var in space.loops()) == [2, 3, 4]


def test_refine_divides_where_no_split_helps() -> None:
    space = Space((7, 15))
    index = refine(
        [space], lambda strict: reshape_index(space.index, (7, 15), (15, 7), strict=strict)
    )
    assert any(var.kind in ("div", "mod") for part in index for var in part.vars())
    flat = linearize(index, (15, 7))
    assert values(flat, space.loops()) == list(range(105))


def test_merge_of_a_contiguous_space() -> None:
    space = Space((4, 5, 6))
    form = linearize(space.index, (4, 5, 6))
    merged, mapping = merge(space.loops(), [form])
    assert [var.extent for var in merged] == [120]
    assert values(form.substitute(mapping), merged) == list(range(120))


def test_dont_merge_what_a_form_separates() -> None:
    space = Space((4, 5))
    row, column = space.index
    assert len(merge(space.loops(), [linearize((row, column), (4, 5)), column])[0]) == 2
    assert len(merge(space.loops(), [linearize((column, row), (5, 4))])[0]) == 2
    assert len(merge(space.loops(), [])[0]) == 1, "nothing asks for any of them"


def test_dont_merge_below_a_division() -> None:
    space = Space((7, 15))
    index = reshape_index(space.index, (7, 15), (15, 7))
    assert len(merge(space.loops(), [index[0]])[0]) == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_merge_keeps_the_forms(order: tuple[int, ...]) -> None:
    space = Space((3, 4, 5))
    shape = [3, 4, 5]
    form = linearize([space.index[k] for k in order], [shape[k] for k in order])
    merged, mapping = merge(space.loops(), [form, form * 2 + 7])
    assert values(form.substitute(mapping), merged) == values(form, space.loops())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_refine_and_merge_visit_every_element_once(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    first = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    to = (first, size // first)
    space = Space(shape)

    def evaluate(strict: bool) -> Affine:
        return linearize(reshape_index(space.index, shape, to, strict=strict), to)

    form = refine(space.split, evaluate)
    merged, mapping = merge(space.loops(), [form])
    assert values(form.substitute(mapping), merged) == list(range(size))


# -------------------------------------------------------------------- through views, twice


@dataclass(frozen=True)
class _Step:
    """A view: the shape of its result; from an index of it to that of the array that it views, and
    what is divided for that."""

    shape: tuple[int, ...]
    pull: Callable[[Index], tuple[Index, list[tuple[Affine, int]]]]


def _repeated(shape: tuple[int, ...], axis: int, count: int) -> _Step:
    """As `jnp.tile`: a new axis before `axis`, joined with it."""
    apart = (*shape[:axis], count, *shape[axis:])
    joined = (*shape[:axis], count * shape[axis], *shape[axis + 1 :])

    def pull(index: Index) -> tuple[Index, list[tuple[Affine, int]]]:
        found = reshape_index(index, joined, apart)
        return (*found[:axis], *found[axis + 1 :]), divisions(index, joined, apart)

    return _Step(joined, pull)


def _sliced(shape: tuple[int, ...], axis: int, start: int, stride: int, size: int) -> _Step:
    def pull(index: Index) -> tuple[Index, list[tuple[Affine, int]]]:
        return (*index[:axis], index[axis] * stride + start, *index[axis + 1 :]), []

    return _Step((*shape[:axis], size, *shape[axis + 1 :]), pull)


def _reshaped(shape: tuple[int, ...], to: tuple[int, ...]) -> _Step:
    return _Step(to, lambda index: (reshape_index(index, to, shape), divisions(index, to, shape)))


def _transposed(shape: tuple[int, ...]) -> _Step:
    return _Step(shape[::-1], lambda index: (index[::-1], []))


@st.composite
def _views(draw: st.DrawFn) -> tuple[tuple[int, ...], list[_Step]]:
    shape = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=2, max_size=3)))
    first, steps = shape, list[_Step]()
    for _ in range(draw(st.integers(1, 4))):
        axis = draw(st.integers(0, len(shape) - 1))
        match draw(st.sampled_from(["repeat", "slice", "slice", "reshape", "transpose"])):
            case "repeat" if shape[axis] <= 12:  # and one period of it, perhaps with gaps
                count, period = draw(st.integers(2, 3)), shape[axis]
                stride = draw(st.sampled_from([n for n in (1, 2, 3) if period % n == 0]))
                start = draw(st.integers(0, (count - 1) * period))
                steps.append(_repeated(shape, axis, count))
                shape = steps[-1].shape
                steps.append(_sliced(shape, axis, start, stride, period // stride))
            case "slice":
                stride = draw(st.integers(1, 3))
                size = draw(st.integers(1, -(-shape[axis] // stride)))
                start = draw(st.integers(0, shape[axis] - (size - 1) * stride - 1))
                steps.append(_sliced(shape, axis, start, stride, size))
            case "reshape":
                factors = [n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0]
                part = draw(st.sampled_from(factors))
                to = (*shape[:axis], part, shape[axis] // part, *shape[axis + 1 :])
                steps.append(_reshaped(shape, to if draw(st.booleans()) else (math.prod(shape),)))
            case _:
                steps.append(_transposed(shape))
        shape = steps[-1].shape
    return first, steps


@given(_views())
@settings(max_examples=300, deadline=None)
def test_a_merged_index_reads_the_same_memory_through_all_views(
    views: tuple[tuple[int, ...], list[_Step]],
) -> None:
    """Kernels go through the views again, at the index over the merged variables."""
    first, steps = views

    def walk(index: Index) -> tuple[Affine, list[tuple[Affine, int]]]:
        divided = []
        for step in reversed(steps):
            index, more = step.pull(index)
            divided += more
        return linearize(index, first), divided

    space = Space(steps[-1].shape)
    read, divided = walk(space.index)
    written = linearize(space.index, steps[-1].shape)
    variables, mapping = merge(space.loops(), [read, written], divided)
    again, _ = walk(tuple(part.substitute(mapping) for part in space.index))
    assert values(again, variables) == values(read, space.loops())
