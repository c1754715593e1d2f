"""Acceptance C: the dispatch that computes a result stores it wherever its readers want it."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.errors import OptionsError
from stagejit.options import Options
from tests.acceptance.running import f32, plan_of, reasons, run, writes
from tests.schedule.planning import check

CHANNELS = ((64, 32), (96, 32), (128, 32), (160, 32), (192, 64))
MULTI = ("share-prefixes",)
OFF = (*MULTI, "fuse-insert")


def dense_block(a: Any, b: Any, weights: Any) -> Any:
    x = a + b
    parts = [x]
    for w in weights[:-1]:
        y = lax.conv(jnp.concatenate(parts, 1), w, (1, 1), "SAME")
        parts.append(jnp.where(y > 0, y, 0.2 * y))
    return lax.conv(jnp.concatenate(parts, 1), weights[-1], (1, 1), "SAME") * 0.2 + x


def weights_of(divisor: int = 1) -> list[Any]:
    return [
        f32(o // divisor, i // divisor, 3, 3, seed=n) / (3 * i**0.5)
        for n, (i, o) in enumerate(CHANNELS)
    ]


def images(*shape: int) -> tuple[Any, Any]:
    return f32(*shape), f32(*shape, seed=1)


def convolve(x: Any, w: Any) -> Any:
    """SAME, 3x3, in float64."""
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], height, width))
    for i, j in itertools.product(range(3), range(3)):
        part = padded[:, :, i : i + height, j : j + width]
        out += np.einsum("bchw,oc->bohw", part, w[:, :, i, j], optimize=True)
    return out


def expected_block(a: Any, b: Any, weights: Any) -> Any:
    x = a.astype(np.float64) + b
    parts = [x]
    for w in weights[:-1]:
        y = convolve(np.concatenate(parts, 1), w.astype(np.float64))
        parts.append(np.where(y > 0, y, 0.2 * y))
    return convolve(np.concatenate(parts, 1), weights[-1].astype(np.float64)) * 0.2 + x


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


def two_destinations(d: Any, a: Any, b: Any) -> Any:
    e = jnp.exp(a)
    return d.at[1:5].set(e), jnp.concatenate([e, b * 2])


def test_c6_a_result_and_a_donated_argument() -> None:
    d, a, b = f32(8, 16), f32(4, 16), f32(9, 16)
    one = d.copy()
    one[1:5] = np.exp(a)
    expected = (one, np.concatenate([np.exp(a), b * 2]))
    args = [d, a, b]
    plan = run(two_destinations, args, expected, off=("fuse-insert",), donate_argnums=0)
    assert (len(plan.dispatches), len(plan.copies), plan.transient_nbytes) == (2, 0, 0)
    assert plan.buffer("d").result == 0
    plan = run(two_destinations, args, expected)
    assert (len(plan.dispatches), len(plan.copies), plan.transient_nbytes) == (3, 1, 0)
    assert plan.copies[0].writes[0].nbytes == d.nbytes


def test_c7_one_value_twice_in_one_destination() -> None:
    def fn(a: Any) -> Any:
        e = jnp.exp(a)
        return jnp.zeros((12, 16)).at[0:4].set(e).at[6:10].set(e)

    a = f32(4, 16)
    expected = np.zeros((12, 16))
    expected[0:4] = expected[6:10] = np.exp(a)
    plan = run(fn, [a], expected, off=("fuse-insert", "fuse-pad"))
    assert (len(plan.dispatches), len(plan.copies), plan.transient_nbytes) == (1, 0, 0)
    assert plan.dispatches[0].writes[0].hull == (0, 12 * 64)
    plan = plan_of(fn, a, disable=["fuse-pad"])
    assert [w.hull for w in plan.dispatches[-1].writes] == [(0, 256), (384, 640)]


def test_c7_overlapping_stores_keep_program_order() -> None:
    def fn(a: Any) -> Any:
        e = jnp.exp(a)
        return jnp.zeros((8, 16)).at[0:4].set(e).at[2:6].set(e)

    a = f32(4, 16)
    expected = np.zeros((8, 16))
    expected[0:4] = np.exp(a)
    expected[2:6] = np.exp(a)
    plan = run(fn, [a], expected, off=("fuse-insert", "fuse-pad", "read-placed"))
    (barrier,) = (b for b in plan.barriers if b.hazard == "WAW")
    assert [str(box) for box in barrier.ranges] == ["[2:4, 0:16]"]
    order = "the producer writes the same place of the destination before"
    assert order in reasons(plan, "fuse-insert", applied=False)


def test_c8_dont_place_into_what_depends_on_the_producer() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        other = jnp.zeros((20, 16)).at[0:8].set(y)
        return lax.cumsum(jnp.concatenate([y, y]), 0).at[2:10].set(y), other

    a, b = f32(8, 8), f32(8, 16)
    y = a @ b
    one, two = np.cumsum(np.concatenate([y, y]), 0), np.zeros((20, 16))
    one[2:10] = y
    two[0:8] = y
    plan = run(fn, [a, b], (one, two), off=("fuse-insert", "read-placed"))
    assert reasons(plan, "fuse-insert", applied=True)  # the legal ones
    declined = reasons(plan, "fuse-insert", applied=False)
    assert declined == ["the destination depends on the producer"]
    assert len(plan.copies) == 1


def test_c8_dont_place_into_what_is_read_in_between() -> None:
    def fn(d: Any, a: Any) -> Any:
        e = jnp.exp(a)
        first = d.at[0:4].set(e)
        return first.at[2:6].set(lax.cumsum(first, 0)[2:6])

    d, a = f32(8, 16), f32(4, 16)
    first = d.copy()
    first[0:4] = np.exp(a)
    expected = first.copy()
    expected[2:6] = np.cumsum(first, 0)[2:6]
    run(fn, [d, a], expected, off=("fuse-insert", "read-placed"), donate_argnums=0)


def test_c8_a_conditional_store_is_not_hoisted() -> None:
    def fn(p: Any, d: Any, a: Any) -> Any:
        e = jnp.exp(a)
        return lax.cond(p, lambda d, e: d.at[0:4].set(e), lambda d, e: d, d, e)

    d, a = f32(8, 16), f32(4, 16)
    stored = d.copy()
    stored[0:4] = np.exp(a)
    for p, expected in ((True, stored), (False, d)):
        plan = run(fn, [np.bool_(p), d, a], expected, donate_argnums=1)
    (producer,) = (dispatch for dispatch in plan.dispatches if "exp" in dispatch.ops)
    assert [(w.buffer, w.nbytes) for w in producer.writes] == [("t0", a.nbytes)]
    (branch,) = (dispatch for dispatch in plan.dispatches if dispatch.kind == "branch")
    assert [w.buffer for w in branch.writes] == ["d"]


def test_c9_placed_plain_and_dead_results() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        placed, plain, dead = jnp.exp(y), jnp.tanh(y), jnp.sin(y)
        jnp.zeros((30, 16)).at[0:8].set(dead)
        jnp.zeros((30, 16)).at[0:8].set(placed)
        return jnp.concatenate([placed, b]), plain

    a, b = f32(8, 8), f32(8, 16)
    y = a @ b
    plan = run(fn, [a, b], (np.concatenate([np.exp(y), b]), np.tanh(y)), off=("fuse-insert",))
    producer = next(d for d in plan.dispatches if d.kind == "contract")
    assert [w.buffer for w in producer.writes] == ["r1", "r0"]
    assert not any("sin" in dispatch.ops for dispatch in plan.dispatches)


def scan_rows(d: Any, xs: Any) -> Any:
    def step(carry: Any, ix: Any) -> Any:
        i, x = ix
        return lax.dynamic_update_slice(carry, jnp.exp(x)[None], (i, 0)), None

    return lax.scan(step, d, (jnp.arange(xs.shape[0]), xs))[0]


def test_c10_the_destination_of_a_scan_is_carried_in_place() -> None:
    d, xs = f32(12, 64), f32(8, 64)
    expected = d.copy()
    expected[:8] = np.exp(xs)
    plan = run(scan_rows, [d, xs], expected, donate_argnums=0)
    assert (plan.delegated, plan.copies) == ((), ())
    assert plan.buffer("d").result == 0
    (body,) = (body for dispatch in plan.dispatches for body in dispatch.bodies)
    assert body.carries == ()  # nothing is moved between iterations
    assert body.plan.copies == ()
    row = sum(access.nbytes for d in body.plan.dispatches for access in d.reads)
    assert row <= xs.nbytes // 8 + 8  # and none of the carry is read


def many_destinations(count: int) -> Any:
    def fn(a: Any, b: Any) -> Any:
        e = jnp.exp(a)
        return [jnp.concatenate([e, b[: n + 1] * 2]) for n in range(count)]

    return fn


def test_c11_beyond_the_operand_limit_placement_is_partial() -> None:
    a, b = f32(4, 16), f32(40, 16)
    expected = [np.concatenate([np.exp(a), b[: n + 1] * 2]) for n in range(20)]
    plan = run(many_destinations(20), [a, b], expected, off=("fuse-insert",))
    touched = [{w.buffer for w in (*d.reads, *d.writes)} for d in plan.dispatches]
    assert max(map(len, touched)) <= 16
    full = "the producer has the 16 operands that one dispatch may have"
    assert full in reasons(plan, "fuse-insert", applied=False)
    assert reasons(plan, "fuse-insert", applied=True)
    assert writes(plan) == writes(plan_of(many_destinations(20), a, b))
    assert not plan_of(many_destinations(12), a, b).copies


def test_c11_the_limit_is_an_option() -> None:
    plan = check(many_destinations(6), f32(4, 16), f32(8, 16), options=Options(operand_limit=4))
    assert max(len(d.reads) + len(d.writes) for d in plan.dispatches) <= 4
    with pytest.raises(OptionsError, match="operand_limit is 0"):
        Options(operand_limit=0)


def test_c11_epilogues_count_too() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        y = a @ b
        return [jnp.maximum(y, n) * c[n] for n in range(16)]

    a, b, c = f32(8, 8), f32(8, 16), f32(16, 8, 16)
    expected = [np.maximum(a @ b, n) * c[n] for n in range(16)]
    plan = run(fn, [a, b, c], expected, off=("fuse-epilogues",))
    assert [d.kind for d in plan.dispatches] == ["contract", "map"]
    assert [len(d.writes) for d in plan.dispatches] == [13, 4]  # y itself and twelve; the rest
    full = "it takes 19 buffers, more than the 16 that one dispatch may have"
    assert reasons(plan, "limit-operands", applied=True) == [full]
    assert len(plan_of(fn, a, b, c, disable=["fuse-epilogues"]).dispatches) > 1


def test_c12_casts_are_fused_per_store() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        y = a @ b
        return (
            jnp.concatenate([y, c * 2]),
            jnp.concatenate([y.astype(jnp.bfloat16), (c + 1).astype(jnp.bfloat16)]),
        )

    a, b, c = f32(8, 8), f32(8, 16), f32(9, 16)
    y = a @ b
    expected = (np.concatenate([y, c * 2]), np.concatenate([y, c + 1]))
    plan = run(fn, [a, b, c], expected, off=("fuse-insert", "fuse-epilogues"))
    assert (plan.copies, plan.transient_nbytes) == ((), 0)
    producer = next(d for d in plan.dispatches if d.kind == "contract")
    assert [(w.buffer, w.nbytes) for w in producer.writes] == [("r0", 512), ("r1", 256)]
