"""The interior of loops: what parts ask has one answer there, of which no other box has more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.codegen.closed import closed
from stagejit.codegen.places import interior
from stagejit.codegen.places.interior import interior_of
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

ROW, COLUMN = Var(6, "i"), Var(24, "j")
LANES = 4

forms = st.builds(
    lambda var, coeff, const, extent: (Affine.of(var) * coeff + const, extent),
    st.sampled_from([ROW, COLUMN]),
    st.integers(-3, 3).filter(bool),
    st.integers(-30, 30),
    st.integers(1, 40),
)


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interior, "_LEAST_PART", 0.0)


def loops(*cuts: tuple[Affine, int], vector: Var | None = COLUMN) -> Loops:
    region = region_of(graph_of(lambda x: -x, np.ones((6, 24), np.float32)))
    index = Affine.of(ROW), Affine.of(COLUMN)
    return Loops(
        region=closed(region), target=Target.avx2(), groups=((ROW, COLUMN),),
        index=index, places=(index,), offsets=(index[0] * 24 + index[1],), reads=(),
        lanes=LANES, vector=vector, cuts=cuts,
    )  # fmt: skip


def answers(form: Affine, extent: int, var: Var) -> list[tuple[bool, bool]]:
    """Whether an element is before a part, and whether it is behind, along a loop."""
    ((_, coeff),) = form.terms
    at = [form.const + coeff * step for step in range(var.extent)]
    return [(each < 0, each >= extent) for each in at]


def longest(cuts: list[tuple[Affine, int]], var: Var) -> int:
    """Steps of a loop, one after the other, at which all answers are the same."""
    own = [answers(*cut, var) for cut in cuts if cut[0].coeff(var)]
    steps = list(zip(*own, strict=True)) if own else [()] * var.extent
    return max(len(list(same)) for _, same in itertools.groupby(steps))


@given(st.lists(forms, min_size=1, max_size=5))
def test_every_question_has_one_answer_inside(cuts: list[tuple[Affine, int]]) -> None:
    found = interior_of(loops(*cuts))
    assert (found is None) == all(longest(cuts, var) == var.extent for var in (ROW, COLUMN))
    if found is None:
        return
    for var in (ROW, COLUMN):
        low, inner = found.first.get(var, (0, var))
        assert inner.extent == longest(cuts, var)
        for form, extent in cuts:
            if form.coeff(var):
                assert len(set(answers(form, extent, var)[low : low + inner.extent])) == 1


def test_what_is_stored_is_moved() -> None:
    column = Affine.of(COLUMN)
    found = interior_of(loops((column - 5, 24)))
    assert found is not None
    ((low, inner),) = found.first.values()
    assert (low, inner.extent) == (5, 19)
    assert found.loops.vector is inner
    moved = Affine.of(inner) + 5
    assert found.loops.index == (Affine.of(ROW), moved)
    assert found.loops.offsets == (Affine.of(ROW) * 24 + moved,)
    assert found.part == pytest.approx(4 / 6)  # whole vectors between 8 and 24, of six


def test_none_where_it_is_small_or_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    row, column = Affine.of(ROW), Affine.of(COLUMN)
    assert interior_of(loops((column - 1, 24), vector=None)) is None
    assert interior_of(loops((column - 1, 24), (row + column, 9))) is None  # of two loops
    assert interior_of(loops()) is None
    monkeypatch.setattr(interior, "_LEAST_PART", 0.4)
    assert interior_of(loops((column - 12, 24))) is not None
    assert interior_of(loops((column - 12, 24), (column - 6, 24), (row - 3, 6))) is None
