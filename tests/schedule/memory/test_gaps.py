"""Gaps between ranges that are taken for a time: what a look at each range finds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stagejit.schedule.memory import gaps
from stagejit.schedule.memory.gaps import Range, Taken


def by_looking_at_each(taken: Sequence[Range], users: int, finished: int, nbytes: int) -> int:
    found, end = [], 0
    for each in sorted(taken):
        if each.users & ~finished and users & ~each.finished:
            found.append((each.start - end, end))
            end = max(end, each.stop)
    return min(((gap, at) for gap, at in found if gap >= nbytes), default=(0, end))[1]


@pytest.mark.parametrize("seed", range(30))
def test_blocks_find_what_a_look_at_each_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(gaps, "_MOST_IN_BLOCK", draw.choice([1, 2, 4, 64]))
    positions, in_a_row = draw.choice([5, 20, 60]), draw.random() < 0.5
    ranges: list[Range] = []
    taken = Taken()
    for _ in range(100):
        first = draw.randrange(positions)
        users = 1 << first | 1 << min(positions - 1, first + draw.randrange(8))
        finished = (1 << first) - 1
        if not in_a_row:
            finished &= draw.getrandbits(positions)
        nbytes = draw.choice([4, 64, 100, 300])
        start = taken.best_gap(users, finished, nbytes)
        assert start == by_looking_at_each(ranges, users, finished, nbytes)
        ranges.append(Range(start, start + -(-nbytes // 64) * 64, users, finished))
        taken.add(ranges[-1])


def test_a_block_that_some_fill_is_passed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, looked = Taken(), list[int]()
    for at in range(8):  # of four that are over, and four in their places that are not
        taken.add(Range(64 * (at % 4), 64 * (at % 4 + 1), 1 << at, (1 << at) - 1))
    look = gaps._Block.in_use_beside
    monkeypatch.setattr(gaps._Block, "in_use_beside", lambda *args: looked.append(1) or look(*args))
    for _ in range(3):
        users, finished = 1 << 7, (1 << 4) - 1
        assert taken.best_gap(users, finished, 64) == 256
    assert len(looked) == 1
    assert taken.best_gap(1 << 9, (1 << 6) - 1, 64) == 0  # two of the four are over, too
    assert len(looked) == 2
