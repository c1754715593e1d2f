"""Acceptance C: the dispatch that computes a result stores it wherever its readers want it."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from tests.acceptance.consumers.dense_blocks import (
    convolve,
    dense_block,
    expected_block,
    images,
    weights_of,
)
from tests.acceptance.running import f32, plan_of, run

MULTI = ("share-prefixes",)
OFF = (*MULTI, "fuse-insert")


def block_plan(*disable: str, batch: int = 1) -> Any:
    a, b = images(batch, 64, 90, 62)
    return plan_of(dense_block, a, b, weights_of(), disable=disable)


def bordered_plan(*disable: str, batch: int = 1) -> Any:
    a, b = images(batch, 64, 90, 62)
    always = Options(borders="always", verify=True)
    return plan_of(dense_block, a, b, weights_of(), disable=disable, options=always)


def test_c1_multi_store_mode() -> None:
    plan = block_plan(*MULTI)
    assert (len(plan.dispatches), len(plan.copies), len(plan.fills)) == (6, 0, 0)
    stores = [sum(w.buffer.startswith("t") for w in d.writes) for d in plan.dispatches]
    assert stores == [4, 4, 3, 2, 1, 0]
    assert plan.transient_nbytes == 12_856_320
    shapes = sorted(b.shape[1] for b in plan.buffers if b.kind == "transient")
    assert shapes == [96, 128, 160, 192]  # none for x or x1..x4


def test_c1_off_moves_every_part_by_a_copy() -> None:
    plan = block_plan(*OFF)
    assert len(plan.dispatches) - len(plan.copies) == 6
    assert len(plan.copies) == 14
    assert sum(w.nbytes for copy in plan.copies for w in copy.writes) == 12_856_320


def test_c1_values_in_every_mode() -> None:
    a, b = images(1, 8, 13, 9)
    weights = weights_of(8)
    off = ("share-prefixes", "fuse-insert", "read-placed", "pack-slots")
    run(dense_block, [a, b, weights], expected_block(a, b, weights), off=off)


def test_c2_prefix_mode_is_one_buffer() -> None:
    plan = block_plan()
    assert (len(plan.dispatches), len(plan.copies)) == (6, 0)
    assert sum(len(d.writes) for d in plan.dispatches[:-1]) == 5
    assert plan.transient_nbytes == plan.peak_nbytes == 4_285_440
    assert plan.peak_nbytes <= 6_870_528  # XLA's


def test_c2_off_stores_what_is_placed_a_second_time() -> None:
    assert block_plan("read-placed").transient_nbytes == 4_285_440 + 1_428_480


@pytest.mark.parametrize("batch", [1, 2])
def test_c2_the_buffer_has_the_border_of_its_windows(batch: int) -> None:
    plan = bordered_plan(batch=batch)
    assert (len(plan.dispatches), len(plan.copies), len(plan.fills)) == (6, 0, 0)
    assert plan.transient_nbytes == plan.peak_nbytes == batch * 192 * (90 + 2) * (62 + 2) * 4
    assert plan.peak_nbytes <= batch * 6_870_528  # XLA's
    (buffer,) = (b for b in plan.buffers if b.kind == "transient")
    placed = [w for d in plan.dispatches for w in d.writes if w.buffer == buffer.name]
    interior = [w for w in placed if w.offsets[2:] == (1, 1) and w.sizes[2:] == (90, 62)]
    assert len(interior) == 5
    assert sum(w.nbytes for w in placed) == buffer.nbytes  # the border exactly once
    assert not any(a.overlaps(b) for a, b in itertools.combinations(placed, 2))
    if batch == 1:
        assert buffer.nbytes == sum(b.nbytes for b in plan.barriers)
        assert sorted({b.nbytes for b in plan.barriers}) == [39_424, 714_240, 64 * 92 * 64 * 4]


def test_c2_borders_in_multi_store_mode() -> None:
    plan = bordered_plan("share-prefixes")
    assert (len(plan.dispatches), len(plan.copies), len(plan.fills)) == (6, 0, 0)
    assert plan.transient_nbytes == (96 + 128 + 160 + 192) * 92 * 64 * 4


def test_c2_borders_lie_in_memory_only_where_that_is_asked_for() -> None:
    assert not [d for d in block_plan().decisions if d.rewrite == "border-buffers"]
    assert [d.applied for d in bordered_plan().decisions if d.rewrite == "border-buffers"] == [True]


def densenet(order: Any) -> Any:
    def fn(x: Any, weights: Any) -> Any:
        for w in weights:
            y = jnp.maximum(lax.conv(x, w, (1, 1), "SAME"), 0)
            x = jnp.concatenate(order(x, y), 1)
        return x.mean((2, 3))

    return fn


@pytest.mark.parametrize(
    "order",
    [lambda old, new: [old, new], lambda old, new: [new, old]],
    ids=["old, new", "new, old"],
)
def test_c2_nested_concatenations_grow_in_one_buffer(order: Any) -> None:
    x, weights = f32(1, 16, 32, 32), [f32(12, 16 + 12 * n, 3, 3) / 20 for n in range(6)]
    expected = x.astype(np.float64)
    for w in weights:
        y = np.maximum(convolve(expected, w.astype(np.float64)), 0)
        expected = np.concatenate(order(expected, y), 1)
    args = [x, weights]
    plan = run(densenet(order), args, expected.mean((2, 3)), off=("share-prefixes",))
    assert [d.kind for d in plan.dispatches].count("copy") == 1  # of the argument
    assert plan.transient_nbytes == plan.peak_nbytes == 88 * 32 * 32 * 4
    apart = plan_of(densenet(order), *args, disable=("share-prefixes",))
    assert (len(apart.copies), apart.transient_nbytes) == (6, 1_425_408)


def test_c2_the_choice_is_explained_in_bytes() -> None:
    made = [d for d in block_plan().decisions if d.rewrite == "share-prefixes"]
    assert len(made) == 3
    assert made[-1].reason.startswith("the first 2 parts of")
    said = "4285440 bytes moved and at most 4285440 in use while either lives, or 6428160 and"
    assert said in made[-1].reason
    assert all(d.applied and d.loc for d in made)


def test_c3_a_result_claims_its_channels_in_each_buffer() -> None:
    second = block_plan(*MULTI).dispatches[2]
    assert [w.hull for w in second.writes] == [(2_142_720, 2_856_960)] * 3
    assert all(w.exact and w.nbytes == 714_240 for w in second.writes)
    assert len({w.buffer for w in second.writes}) == 3


def test_c4_barriers_name_newly_written_channels() -> None:
    plan = block_plan()
    assert [b.nbytes for b in plan.barriers] == [1_428_480] + [714_240] * 4
    assert sum(b.nbytes for b in plan.barriers) == 4_285_440


@pytest.mark.parametrize("disable", [(), MULTI])
def test_c5_a_batch_is_strided_segments(disable: tuple[str, ...]) -> None:
    plan = block_plan(*disable, batch=4)
    assert (len(plan.dispatches), len(plan.copies)) == (6, 0)
    placed = [w for d in plan.dispatches[:-1] for w in d.writes]
    assert len(placed) == (14 if disable == MULTI else 5)
    for write in placed:  # four segments: the hull holds other channels too, the box does not
        assert write.exact
        assert write.sizes[0] == 4
        assert write.nbytes < write.hull[1] - write.hull[0]
    newly_written = 12_856_320 if disable == MULTI else 4_285_440  # each byte is waited for once
    assert sum(b.nbytes for b in plan.barriers) == 4 * newly_written


def test_c5_values() -> None:
    a, b = images(4, 8, 6, 5)
    weights = weights_of(8)
    run(dense_block, [a, b, weights], expected_block(a, b, weights), off=MULTI)
