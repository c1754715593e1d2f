"""Slots: shared by buffers that are never alive together, 64-byte aligned."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagejit.options import Options
from stagejit.schedule.memory import ALIGNMENT, Life, apart, finished_before, pack
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
    assert plan.transient_nbytes == plan.peak_nbytes == 60


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
    assert slots == {"a": 0, "b": 256, "c": 384, "d": 0}


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 255)), max_size=12),
    st.lists(st.integers(0, 255), min_size=8, max_size=8),
)
def test_buffers_that_overlap_are_never_alive_together(
    drawn: list[tuple[int, int]], edges: list[int]
) -> None:
    before = [0] * 8
    for at in range(8):
        for earlier in range(at):
            if edges[at] >> earlier & 1:
                before[at] |= before[earlier] | 1 << earlier
    lives = [Life(f"b{n}", nbytes, users) for n, (nbytes, users) in enumerate(drawn)]
    slots, finished = pack(lives, before, share=True), finished_before(lives, before)
    for a in lives:
        assert slots[a.name] % ALIGNMENT == 0
        for b in lives:
            overlap = (
                slots[a.name] < slots[b.name] + b.nbytes
                and slots[b.name] < slots[a.name] + a.nbytes
            )
            assert a is b or not overlap or apart(a, b, finished)
