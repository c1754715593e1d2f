"""`BoxIndex` against looking at every box, and how few it looks at."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.base.symbolic import Symbol, expr
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex, NumberedBoxes, cover, left_of


@st.composite
def boxes(draw: Any, rank: int) -> Box:
    dims = st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 3))
    return Box.of([draw(dims) for _ in range(rank)])


@st.composite
def many_boxes(draw: Any) -> list[Box]:
    return draw(st.lists(boxes(draw(st.integers(0, 3))), min_size=1, max_size=60))


@given(many_boxes(), st.data())
def test_it_finds_what_looking_at_every_box_finds(added: list[Box], data: Any) -> None:
    index: BoxIndex[int] = BoxIndex()
    kept: dict[int, Box] = {}
    for number, box in enumerate(added):
        other = added[data.draw(st.integers(0, number))]
        if data.draw(st.integers(0, 9)) == 0:
            taken = [at for at, known in kept.items() if known.overlaps(other)]
            assert index.taken(other) == taken
            kept = {at: known for at, known in kept.items() if at not in taken}
        entry = index.add(box, number)
        kept[number] = box
        if data.draw(st.integers(0, 9)) == 0:
            index.remove(entry)
            del kept[number]
        expected = [at for at, known in kept.items() if known.overlaps(other)]
        assert index.overlapping(other) == expected
        assert index.any_overlaps(other) == bool(expected)


FIRST, SECOND = Symbol("s", 0, 3), Symbol("t", 1, 4)
S, T, ZERO = expr(FIRST), expr(SECOND), {FIRST: 0, SECOND: 1}


@given(
    st.lists(
        st.tuples(st.sampled_from([0, S, T, S + T]), st.integers(0, 9), st.integers(1, 9)),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_left_of_a_box_does_not_depend_on_the_order_of_others(
    made: list[Any], rng: random.Random
) -> None:
    others = [Box((at + more,), (size,), (1,)) for at, more, size in made]
    shuffled = rng.sample(others, len(others))
    for box in (Box((2,), (12,), (1,)), Box((S + 2,), (6,), (1,))):
        found = [left_of(box, each) for each in (others, shuffled)]
        here = [set().union(*(elements(box.at(ZERO)) for box in each)) for each in found]
        assert here[0] == here[1]


def test_what_is_left_of_a_box_may_lie_in_several_others() -> None:
    """Between them at a strided one of many phases, or in which of them the call decides."""
    sparse, between = Box((0,), (4,), (20,)), [Box((n,), (19,), (1,)) for n in (1, 21, 41)]
    assert left_of(Box.whole((61,)), [sparse, *between]) == []
    halves = [Box((0,), (3,), (1,)), Box((3,), (2,), (1,))]
    assert left_of(Box((S,), (2,), (1,)), halves) == []
    assert left_of(Box((S,), (3,), (1,)), halves) != []


@given(many_boxes(), st.data())
def test_it_forgets_parts_of_boxes(added: list[Box], data: Any) -> None:
    """Of solid ones, element by element; all of others, or nothing."""
    index: BoxIndex[int] = BoxIndex()
    wholes: dict[int, Box] = {}
    kept: dict[int, set[tuple[int, ...]]] = {}
    for number, box in enumerate(added):
        index.add(box, number)
        wholes[number], kept[number] = box, elements(box)
        gone = added[data.draw(st.integers(0, len(added) - 1))]
        index.cut(gone)
        for at, whole in wholes.items():
            if (gone.is_solid and whole.is_solid) or gone.contains(whole):
                kept[at] -= elements(gone)
    for box in added:
        wanted = {at: left & elements(box) for at, left in kept.items() if left & elements(box)}
        found: dict[int, set[tuple[int, ...]]] = {}
        for at, common in index.common(box):
            found[at] = found.get(at, set()) | elements(common)
        assert list(found) == list(wanted)
        assert set(index.overlapping(box)) == set(wanted)
        for at, common in found.items():
            assert wanted[at] <= common <= elements(wholes[at].intersection(box))
            assert common == wanted[at] or not box.is_solid


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(o, o + n * s, s) for o, n, s in box.dims())))


@pytest.mark.parametrize("axis", [0, 1])
def test_boxes_that_lie_apart_are_compared_with_few_others(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    overlaps = Box.overlaps

    def counting(self: Box, other: Box) -> bool:
        nonlocal compared
        compared += 1
        return overlaps(self, other)

    monkeypatch.setattr(Box, "overlaps", counting)
    count = 1000
    shape = [4, 4]
    shape[axis] = 4 * count
    tiles = []
    for number in range(count):
        offsets = [0, 0]
        offsets[axis] = 4 * (number * 377 % count)  # in no order
        tiles.append(Box(tuple(offsets), (4, 4), (1, 1)))
    assert cover(tiles, shape)
    assert not cover([*tiles[1:], tiles[1]], shape)
    assert compared < 4 * count


@pytest.mark.parametrize("seed", range(10))
def test_boxes_of_some_numbers_are_found(seed: int) -> None:
    """All that overlap, and nothing of another number."""
    draw = random.Random(seed)
    made, known = NumberedBoxes(), []
    for _ in range(60):
        number, box = draw.randrange(30), Box((draw.randrange(50),), (draw.randrange(1, 9),), (1,))
        made.add(number, [box])
        known.append((number, box))
        asked, numbers = Box((draw.randrange(50),), (4,), (1,)), draw.getrandbits(30)
        wanted = [one for n, one in known if numbers >> n & 1]
        found = list(made.around(asked, numbers))
        assert all(one in wanted for one in found)
        assert all(one in found for one in wanted if one.overlaps(asked))
