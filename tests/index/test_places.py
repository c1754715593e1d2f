"""Places in an order in which things move: what a list says in which they do."""

from __future__ import annotations

import random

import pytest

from stagejit.index import places
from stagejit.index.places import Places


@pytest.mark.parametrize("gap", [1, 4, 1 << 256])
@pytest.mark.parametrize("seed", range(10))
def test_places_are_those_of_a_list(seed: int, gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_GAP", gap)  # of 1: all are numbered anew each time
    draw, order = random.Random(seed), list(range(12))
    made = Places(order)
    for new in range(100, 140):
        other = draw.choice(order)
        moved = [one for one in order if one is not other and draw.random() < 0.3]
        at = [one for one in order if one not in moved].index(other)
        shuffled = draw.sample(moved, len(moved))
        if draw.random() < 0.5:
            made.move_before(shuffled, other)
        else:
            made.move_after(shuffled, other)
            at += 1
        order = [one for one in order if one not in moved]
        order[at:at] = moved
        if draw.random() < 0.3:
            old = draw.choice(order)
            made.replace(old, new)
            order[order.index(old)] = new
        if draw.random() < 0.1:
            gone = order.pop(draw.randrange(len(order)))
            made.drop(gone)
            made.drop(gone)  # which has none
            assert gone not in made
            assert made.get(gone, -1) == -1
        assert list(made) == order == made.in_order(draw.sample(order, len(order)))
        numbers = [made[one] for one in order]
        assert numbers == sorted(set(numbers))


def test_nothing_has_no_places() -> None:
    assert list(Places[int]([])) == []
