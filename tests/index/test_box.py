"""`Box`: exact arithmetic of strided boxes, against sets of indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.base.symbolic import Int, Symbol, Undecided, expr
from stagejit.index.box import Box
from stagejit.index.box_index import cover, fill_box


@st.composite
def boxes(draw: Any, rank: int = 2) -> Box:
    dims = [
        (draw(st.integers(0, 6)), draw(st.integers(0, 5)), draw(st.integers(1, 4)))
        for _ in range(rank)
    ]
    return Box(tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(o, o + n * s, s) for o, n, s in box.dims())))


@given(boxes(), boxes())
def test_overlap_intersection_and_containment_are_exact(a: Box, b: Box) -> None:
    common = elements(a) & elements(b)
    assert a.overlaps(b) == b.overlaps(a) == bool(common)
    assert elements(a.intersection(b)) == common
    assert a.contains(b) == (elements(b) <= elements(a))
    assert a.count == len(elements(a))


def test_a_box_of_a_reshape_has_the_same_elements() -> None:
    shapes = [(24,), (4, 6), (6, 4), (2, 12), (2, 2, 6), (4, 1, 6), (1, 24), (2, 3, 4)]
    for old, new in itertools.product(shapes, shapes):
        for dims in itertools.product(*(_parts(extent) for extent in old)):
            box = Box.of(dims)
            made, exact = box.reshaped(old, new)
            before = {np.ravel_multi_index(at, old) for at in elements(box)}
            after = {np.ravel_multi_index(at, new) for at in elements(made)}
            assert before <= after
            assert exact == (before == after)
            assert exact or [n for n in old if n != 1] != [n for n in new if n != 1]


def _parts(extent: int) -> list[tuple[int, int, int]]:
    return sorted(
        {(0, extent, 1), (extent // 2, 1, 1), (0, extent // 2, 1), (0, -(-extent // 2), 2)}
    )


@given(boxes(), boxes())
def test_a_hull_has_both_and_says_whether_it_has_more(a: Box, b: Box) -> None:
    if not a.count or not b.count:
        return
    hull, exact = a.hull(b)
    assert elements(a) | elements(b) <= elements(hull)
    assert not exact or elements(hull) == elements(a) | elements(b)


@given(boxes())
def test_hull_elements_are_the_first_and_last_row_major_offsets(box: Box) -> None:
    shape = (30, 40)
    offsets = [i * 40 + j for i, j in elements(box)]
    expected = (min(offsets), max(offsets) + 1) if offsets else (0, 0)
    assert box.hull_elements(shape) == expected


def test_adjacent_boxes_join_exactly() -> None:
    assert Box((0, 0), (2, 4), (1, 1)).hull(Box((2, 0), (3, 4), (1, 1))) == (
        Box((0, 0), (5, 4), (1, 1)),
        True,
    )


def test_dont_call_a_hull_around_a_gap_exact() -> None:
    assert not Box((0,), (2,), (1,)).hull(Box((5,), (2,), (1,)))[1]


def test_interleaved_boxes_do_not_overlap() -> None:
    assert not Box((0,), (4,), (2,)).overlaps(Box((1,), (4,), (2,)))


def test_what_is_left_of_a_box_is_disjoint_and_complete() -> None:
    whole, inner = Box.whole((6, 7)), Box((1, 2), (3, 4), (1, 1))
    pieces = whole.without(inner)
    assert len(pieces) == 4
    assert cover([*pieces, inner], (6, 7))


@pytest.mark.parametrize(
    "inner", [Box((1, 2), (2, 3), (3, 2)), Box((0, 0), (6, 2), (1, 5)), Box((5, 6), (1, 1), (1, 1))]
)
def test_what_is_left_around_a_strided_box_is_its_phases(inner: Box) -> None:
    pieces = Box.whole((6, 7)).without(inner)
    assert cover([*pieces, inner], (6, 7))


@given(boxes(), boxes())
def test_one_box_without_another_is_disjoint_and_complete(box: Box, other: Box) -> None:
    pieces = [elements(piece) for piece in box.minus(other)]
    assert sum(map(len, pieces)) == len(set().union(*pieces))
    assert set().union(*pieces) == elements(box) - elements(other)


def test_dont_take_away_what_is_not_certain_or_leaves_too_much() -> None:
    moving = Box((expr(S), 0), (1, 7), (1, 1))
    assert Box.whole((6, 7)).minus(moving) == [Box.whole((6, 7))]
    assert moving.minus(moving) == []
    assert moving.minus(Box.whole((60, 7))) == ([] if moving.last[0] < 60 else [moving])
    after = Box((expr(S) + 1, 0), (2, 7), (1, 1))
    assert after.minus(moving) == [after]
    assert Box((expr(S), 0), (3, 7), (1, 1)).minus(after) == [moving]
    sparse = Box((0,), (3,), (100,))
    assert Box.whole((300,)).minus(sparse) == [Box.whole((300,))]


def test_what_is_left_of_a_strided_box() -> None:
    whole, inner = Box((1, 0), (5, 4), (2, 3)), Box((3, 0), (2, 2), (4, 6))
    pieces = whole.without(inner)
    assert fill_box([*pieces, inner], whole)
    assert all(whole.contains(piece) for piece in pieces)


def test_overlapping_or_missing_boxes_do_not_cover() -> None:
    assert not cover([Box.whole((4,)), Box((0,), (1,), (1,))], (4,))
    assert not cover([Box((0,), (3,), (1,))], (4,))


def test_text_is_that_of_slices() -> None:
    assert str(Box((0, 2), (1, 3), (1, 2))) == "[0:1, 2:7:2]"
    assert str(Box((), (), ())) == "[]"


# ------------------------------------------------------------ symbolic offsets

S, T = Symbol("s", 0, 3), Symbol("t", 1, 4)


@st.composite
def symbolic_boxes(draw: Any) -> Box:
    def offset() -> Int:
        return draw(
            st.sampled_from([0, expr(S), expr(T), expr(S) * 2, 6 - expr(S), expr(S) + expr(T)])
        ) + draw(st.integers(0, 5))

    dims = [(offset(), draw(st.integers(0, 4)), draw(st.integers(1, 3))) for _ in range(2)]
    return Box.of(dims)


def in_all_calls(*made: Box) -> Iterator[tuple[Box, ...]]:
    for s, t in itertools.product(range(S.low, S.high + 1), range(T.low, T.high + 1)):
        yield tuple(box.at({S: s, T: t}) for box in made)


@given(symbolic_boxes(), symbolic_boxes())
def test_symbolic_boxes_are_proven_apart_or_within_for_all_values(a: Box, b: Box) -> None:
    pairs = [(elements(x), elements(y)) for x, y in in_all_calls(a, b)]
    assert a.overlaps(b) == b.overlaps(a)
    assert a.overlaps(b) or not any(x & y for x, y in pairs)
    assert not a.contains(b) or all(y <= x for x, y in pairs)
    if all(isinstance(p - q, int) for p, q in zip(a.offsets, b.offsets, strict=True)):
        assert a.overlaps(b) == bool(pairs[0][0] & pairs[0][1])
        assert a.contains(b) == (pairs[0][1] <= pairs[0][0])


@given(symbolic_boxes(), symbolic_boxes())
def test_the_intersection_and_hull_of_symbolic_boxes_have_all_elements(a: Box, b: Box) -> None:
    common = a.intersection(b)
    assert bool(common.count) == a.overlaps(b)
    for x, y, z in in_all_calls(a, b, common):
        assert elements(x) & elements(y) <= elements(z) <= elements(x)
    if a.count and b.count:
        hull, exact = a.hull(b)
        for x, y, z in in_all_calls(a, b, hull):
            both = elements(x) | elements(y)
            assert both <= elements(z)
            assert not exact or both == elements(z)


@given(symbolic_boxes())
def test_the_byte_hull_of_a_symbolic_box_holds_for_all_values(box: Box) -> None:
    start, stop = box.hull_elements((30, 40))
    offsets = [i * 40 + j for (each,) in in_all_calls(box) for i, j in elements(each)]
    assert all(start <= offset < stop for offset in offsets)
    assert not offsets or (start, stop) == (min(offsets), max(offsets) + 1)


@given(symbolic_boxes(), symbolic_boxes())
def test_a_box_without_a_symbolic_one_loses_what_is_in_it_for_all_values(a: Box, b: Box) -> None:
    pieces = a.minus(b)
    calls = list(in_all_calls(a, b, *pieces))
    for x, y, *rest in calls:
        left = [elements(piece) for piece in rest]
        assert sum(map(len, left)) == len(set().union(*left))
        assert elements(x) - elements(y) <= set().union(*left) <= elements(x)
    if a.static_offsets is not None and set(b.strides) == {1}:
        certain = set.intersection(*(elements(y) for _, y, *_ in calls))
        assert set().union(*map(elements, pieces)) == elements(a) - certain


def test_dont_call_equal_symbols_unequal() -> None:
    row = Box((expr(S), 0), (1, 4), (1, 1))
    assert row.contains(Box((expr(S), 1), (1, 2), (1, 1)))
    assert not row.overlaps(Box((expr(S) + 1, 0), (1, 4), (1, 1)))
    assert row.overlaps(Box((expr(T), 0), (1, 4), (1, 1)))
    assert not row.overlaps(Box((4, 0), (1, 4), (1, 1)))


def test_dont_say_what_is_left_of_a_box_at_an_unknown_place() -> None:
    with pytest.raises(ValueError, match="symbolic offset"):
        Box.whole((6, 7)).without(Box((expr(S), 0), (1, 7), (1, 1)))


# -------------------------------------------------------------- symbolic sizes

N, M = Symbol("n", 1, 4, is_size=True), Symbol("m", 1, 4, is_size=True)


@st.composite
def sized_boxes(draw: Any) -> Box:
    n, m = expr(N), expr(M)
    offsets = st.sampled_from([0, 2, n, m, n * 2, n + m])
    sizes = st.sampled_from([1, 3, n, m, n * 2])
    return Box.of([(draw(offsets), draw(sizes), draw(st.integers(1, 2))) for _ in range(2)])


@given(sized_boxes(), sized_boxes())
def test_boxes_of_symbolic_sizes_are_compared_for_all_sizes(a: Box, b: Box) -> None:
    cases = [(a.at(v), b.at(v)) for v in ({N: n, M: m} for n in range(1, 5) for m in range(1, 5))]
    pairs = [(elements(x), elements(y)) for x, y in cases]
    common = a.intersection(b)
    assert a.overlaps(b) or not any(x & y for x, y in pairs)
    assert not a.contains(b) or all(y <= x for x, y in pairs)
    for number, (x, y) in enumerate(pairs):
        n, m = number // 4 + 1, number % 4 + 1
        assert x & y <= elements(common.at({N: n, M: m}))
    try:
        hull, exact = a.hull(b)
    except Undecided:
        return
    for number, (x, y) in enumerate(pairs):
        all_of_it = elements(hull.at({N: number // 4 + 1, M: number % 4 + 1}))
        assert x | y <= all_of_it
        assert not exact or x | y == all_of_it


def test_equal_sizes_are_equal_and_others_are_not_assumed_to_be() -> None:
    n, m = expr(N), expr(M)
    first = Box.of([(0, n, 1)])
    assert not first.overlaps(Box.of([(n, n, 1)]))
    assert first.overlaps(Box.of([(m, n, 1)]))
    assert first.contains(Box.of([(0, n, 1)]))
    assert not first.contains(Box.of([(0, m, 1)]))
    assert fill_box([first, Box.of([(n, n, 1)])], Box.of([(0, n * 2, 1)]))
    assert not fill_box([first, Box.of([(n, m, 1)])], Box.of([(0, n * 2, 1)]))
    assert first.hull(Box.of([(n, m, 1)])) == (Box.of([(0, n + m, 1)]), True)
    strided = Box.of([(0, n, 2), (0, n, 1)])
    assert strided.hull(Box.of([(0, n, 2), (n, 1, 1)])) == (
        Box.of([(0, n, 2), (0, n + 1, 1)]),
        True,
    )


@pytest.mark.parametrize(("box", "run"), [
    (Box((0, 0), (4, 16), (1, 1)), 64), (Box((1, 0), (2, 16), (1, 1)), 32),
    (Box((0, 3), (4, 5), (1, 1)), 5), (Box((0, 0), (4, 8), (1, 2)), 1),
    (Box((0, 0), (2, 16), (2, 1)), 16), (Box((0, 15), (4, 1), (1, 1)), 1),
])  # fmt: skip
def test_elements_side_by_side(box: Box, run: int) -> None:
    assert box.run((4, 16)) == run
