"""Slots: shared by buffers that are never alive together, 64-byte aligned."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.options import Options
from stagejit.schedule.memory.packing import (
    ALIGNMENT,
    Life,
    Slot,
    finished_before,
    overwrites,
    pack,
)
from tests.schedule.lives import apart
from tests.schedule.planning import check, plan_of


def chain(x: Any, w: Any) -> Any:
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return x


SQUARE = np.ones((16, 16), np.float32) / 16


def test_a_chain_needs_two_slots() -> None:
    plan = check(chain, SQUARE, SQUARE)
    assert plan.transient_nbytes == 5 * 1024
    assert plan.peak_nbytes == 2 * 1024


def test_pack_slots_off_gives_each_buffer_its_own() -> None:
    plan = check(chain, SQUARE, SQUARE, options=Options(disable=("pack-slots",)))
    assert plan.peak_nbytes == plan.transient_nbytes == 5 * 1024


def test_transient_bytes_are_a_plain_sum() -> None:
    odd = np.ones((3, 5), np.float32)
    plan = plan_of(lambda x, w: jnp.tanh(x @ w) @ w, odd, np.ones((5, 5), np.float32))
    assert plan.transient_nbytes == plan.arena_nbytes == 60


def test_independent_buffers_do_not_share() -> None:
    def fn(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) @ w, jnp.tanh(w @ x) @ w

    plan = check(fn, SQUARE, SQUARE)
    first, second = (b for b in plan.buffers if b.kind == "transient")
    assert first.slot != second.slot


def test_a_buffer_goes_in_the_smallest_gap_that_fits() -> None:
    lives = [
        Life("a", 256, 0b0001),
        Life("b", 128, 0b0001),
        Life("c", 64, 0b0001),
        Life("d", 64, 0b1000),
    ]
    slots = pack(lives, [0, 1, 3, 7], share=True)
    assert slots == {"a": Slot(0), "b": Slot(256), "c": Slot(384), "d": Slot(0)}


def test_memory_of_results_comes_first() -> None:
    order = [0, 1, 3, 7]
    early, late = Life("early", 256, 0b0011), Life("late", 64, 0b1100)
    host = Life("host", 320, 0b1000)
    slots = pack([early, late], order, share=True, hosts=[host])
    assert slots == {"early": Slot(0, "host"), "late": Slot(0)}
    assert pack([early], order, share=True, hosts=[Life("host", 192, 0b1000)])["early"] == Slot(0)


def test_what_may_run_at_the_same_time_does_not_borrow() -> None:
    unordered = [0, 1, 1, 1]
    slots = pack([Life("a", 64, 0b0011)], unordered, share=True, hosts=[Life("r", 64, 0b0100)])
    assert slots["a"] == Slot(0)


CHAIN = [0, 1, 3, 7]
OVER = {
    "the last reader writes": (0b0011, 0b0110, CHAIN, True),
    "somebody reads later": (0b1011, 0b0110, CHAIN, False),
    "somebody may read later": (0b1011, 0b0110, [0, 1, 3, 1], False),
    "written before": (0b0011, 0b0111, CHAIN, False),
    "written in any order": (0b0011, 0b0110, [0, 1, 0, 0], False),
}


@pytest.mark.parametrize(("old", "new", "before", "expected"), OVER.values(), ids=OVER.keys())
def test_overwrites(old: int, new: int, before: list[int], expected: bool) -> None:
    lives = {"old": Life("old", 64, old), "new": Life("new", 64, new)}
    assert overwrites(lives, [(1, "old", "new")], before) == ({"new": "old"} if expected else {})


def test_a_buffer_is_overwritten_once() -> None:
    lives = {name: Life(name, 64, users) for name, users in (("a", 3), ("b", 2), ("c", 2))}
    assert overwrites(lives, [(1, "a", "b"), (1, "a", "c")], CHAIN) == {"b": "a"}
    assert overwrites(lives, [(1, "a", "b"), (1, "c", "b")], CHAIN) == {"b": "a"}


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 255)), max_size=12),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 255)), max_size=3),
    st.lists(st.integers(0, 255), min_size=8, max_size=8),
)
def test_buffers_that_overlap_are_never_alive_together(
    drawn: list[tuple[int, int]], results: list[tuple[int, int]], edges: list[int]
) -> None:
    before = [0] * 8
    for at in range(8):
        for earlier in range(at):
            if edges[at] >> earlier & 1:
                before[at] |= before[earlier] | 1 << earlier
    lives = [Life(f"b{n}", nbytes, users) for n, (nbytes, users) in enumerate(drawn)]
    hosts = {f"r{n}": Life(f"r{n}", *drawn) for n, drawn in enumerate(results)}
    slots = pack(lives, before, share=True, hosts=list(hosts.values()))
    finished = finished_before([*lives, *hosts.values()], before)
    for a in lives:
        slot = slots[a.name]
        assert slot.offset % ALIGNMENT == 0
        if slot.host:
            assert slot.offset + a.nbytes <= hosts[slot.host].nbytes
            assert not a.users & ~finished[slot.host]
        for b in lives:
            other = slots[b.name]
            overlap = (
                slot.host == other.host
                and slot.offset < other.offset + b.nbytes
                and other.offset < slot.offset + a.nbytes
            )
            assert a is b or not overlap or apart(a, b, finished)
