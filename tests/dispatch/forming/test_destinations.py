"""Acceptance A and C, as far as dispatch formation goes: who writes which box of which buffer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.acceptance.consumers.dense_blocks import dense_block
from tests.dispatch.forming.placing import declined, f32, shape
from tests.expected.left import left
from tests.schedule.planning import check, plan_of


def split(plan: Plan) -> list[str]:
    return [d.reason for d in plan.decisions if d.rewrite == "limit-operands" and d.applied]


def concatenation(axis: int) -> Any:
    return lambda a, b, c: jnp.concatenate([a * 2, jnp.exp(b), c + 1], axis)


def test_a3_producers_write_their_exact_ranges() -> None:
    plan = plan_of(concatenation(0), shape(256, 512), shape(128, 512), shape(64, 512))
    assert (plan.copies, plan.barriers, plan.transient_nbytes) == ((), (), 0)
    assert [d.writes[0].hull for d in plan.dispatches] == [
        (0, 524288),
        (524288, 786432),
        (786432, 917504),
    ]


def test_a4_strided_boxes_are_disjoint_though_their_hulls_overlap() -> None:
    plan = plan_of(concatenation(1), shape(512, 256), shape(512, 128), shape(512, 64))
    first, second, third = (d.writes[0] for d in plan.dispatches)
    assert (plan.copies, plan.barriers, plan.transient_nbytes) == ((), (), 0)
    assert first.hull[1] > second.hull[0]
    assert not first.overlaps(second)
    assert not second.overlaps(third)


def test_a4_values() -> None:
    check(concatenation(1), f32(5, 4), f32(5, 3), f32(5, 2))


def test_fuse_insert_off_brings_the_copies_back() -> None:
    plan = check(
        concatenation(0), f32(5, 4), f32(3, 4), f32(2, 4), options=Options(disable=("fuse-insert",))
    )
    assert len(plan.copies) == 3
    assert plan.transient_nbytes == 4 * 40


def test_a5_an_interior_insert_claims_its_channels_only() -> None:
    def fn(x: Any) -> Any:
        whole = jnp.zeros((1, 192, 92, 64), jnp.float32)
        return lax.dynamic_update_slice(whole, x * 2, (0, 64, 1, 1))

    plan = plan_of(fn, shape(1, 32, 90, 62), options=Options(disable=("fuse-pad",)))
    access = plan.dispatches[-1].writes[0]
    assert str(access) == "r0[0:1, 64:96, 1:91, 1:63]"
    assert 1507328 <= access.hull[0] < access.hull[1] <= 2260992


def test_a7_a_source_with_other_uses_is_stored_twice() -> None:
    plan = check(lambda x: (lambda y: (y, jnp.pad(y, 1)))(x * 2), f32(5, 4))
    assert [d.kind for d in plan.dispatches] == ["map"]
    assert len(plan.dispatches[-1].writes) == 2


def test_a7_a_pad_with_two_consumers_is_written_once() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.pad(jnp.tanh(x), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1.0)
        return lax.conv(y, w, (1, 1), "VALID"), y.sum()

    plan = check(fn, f32(1, 2, 5, 5), f32(3, 2, 3, 3))
    assert [d.kind for d in plan.dispatches] == ["map", "conv", "reduce"]


def test_a9_a_live_argument_is_copied_once() -> None:
    plan = check(lambda d, x: d.at[1:3].set(x * 2), f32(5, 4), f32(2, 4))
    assert len(plan.copies) == 1
    assert "it is an argument that is not donated" in declined(plan, "elide-copy")


def test_a9_a_donated_argument_is_written_in_place() -> None:
    plan = check(lambda d, x: d.at[1:3].set(x * 2), f32(5, 4), f32(2, 4), donated=[True, False])
    assert [d.kind for d in plan.dispatches] == ["map"]
    assert plan.buffer("arg0").result == 0
    assert plan.dispatches[0].writes[0].hull == (16, 48)


def test_a9_reuse_arguments_off_copies_the_donated_argument() -> None:
    plan = check(
        lambda d, x: d.at[1:3].set(x * 2),
        f32(5, 4),
        f32(2, 4),
        donated=[True, False],
        options=Options(disable=("reuse-arguments",)),
    )
    assert len(plan.copies) == 1


def test_a9_a_constant_is_copied_once() -> None:
    table = f32(5, 4)
    plan = check(lambda x: jnp.asarray(table).at[1:3].set(x * 2), f32(2, 4))
    assert len(plan.copies) == 1
    assert "it is a constant" in declined(plan, "elide-copy")


def test_a9_a_delegated_result_is_copied() -> None:
    plan = check(lambda a, x: left(a).at[1:3].set(x * 2), f32(4, 4), f32(2, 4))
    assert "it is the result of a delegated equation" in declined(plan, "elide-copy")


def test_a9_a_destination_that_is_read_elsewhere_is_copied() -> None:
    def fn(x: Any, y: Any) -> Any:
        d = jnp.concatenate([x * 2, y * 3])
        return d, d.at[1:3].set(x[:2])

    plan = check(fn, f32(3, 4), f32(2, 4))
    assert "it is returned as it is" in declined(plan, "elide-copy")


def test_a_computed_destination_is_stored_there_by_its_producer() -> None:
    plan = check(lambda x, y: (x * 2).at[1:3].set(y), f32(5, 4), f32(2, 4))
    assert [d.kind for d in plan.dispatches] == ["map", "copy"]


def test_a10_an_offset_from_an_array_is_a_conservative_hull() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(x * 2, u * 3, (lax.reduce_max(i, (0,)), 0))

    for start in (-3, 2, 9):  # clamped as in JAX
        plan = check(fn, f32(5, 4), f32(2, 4), np.array([start], np.int32))
    assert not plan.dispatches[-1].writes[0].exact


def test_a14_a_slice_of_the_destination_is_read_before_it_is_overwritten() -> None:
    plan = check(
        lambda a: lax.dynamic_update_slice(a, a[0:3], (1,)),
        np.array([1, 2, 3, 4], np.float32),
        donated=[True],
    )
    assert plan.dispatches


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float64, jnp.bfloat16])
def test_a15_element_types(dtype: Any) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    check(lambda x, y: jnp.concatenate([x, y]), x, x)
    check(lambda x: jnp.pad(x, ((0, 0), (2, 1))), x)
    check(lambda x, y: jnp.concatenate([x[:0], y]), x, x)


def dense_block_plan(*disable: str) -> Plan:
    weights = [shape(o, i, 3, 3) for o, i in ((32, 64), (32, 96), (32, 128), (32, 160), (64, 192))]
    return plan_of(
        dense_block,
        shape(1, 64, 90, 62),
        shape(1, 64, 90, 62),
        weights,
        options=Options(disable=disable),
    )


def test_c1_every_result_is_stored_in_all_its_destinations() -> None:
    plan = dense_block_plan("share-prefixes")
    assert len(plan.dispatches) == 6
    assert plan.copies == ()
    placed = [len([w for w in d.writes if w.buffer.startswith("t")]) for d in plan.dispatches]
    assert placed == [4, 4, 3, 2, 1, 0]
    assert plan.transient_nbytes == 12_856_320


def test_c1_off_brings_fourteen_copies_back() -> None:
    plan = dense_block_plan("fuse-insert", "share-prefixes")
    assert len(plan.dispatches) - len(plan.copies) == 6
    assert len(plan.copies) == 14
    assert sum(copy.writes[0].nbytes for copy in plan.copies) == 12_856_320


def test_c2_one_buffer_serves_all_concatenations() -> None:
    plan = dense_block_plan()
    assert len(plan.dispatches) == 6
    assert plan.copies == ()
    (buffer,) = (b for b in plan.buffers if b.kind == "transient" and b.shape[1] > 64)
    assert buffer.nbytes == 4_285_440
    assert [len([w for w in d.writes if w.buffer == buffer.name]) for d in plan.dispatches] == [
        1,
        1,
        1,
        1,
        1,
        0,
    ]


def test_c4_barriers_name_newly_written_channels_only() -> None:
    plan = dense_block_plan()
    assert sum(b.nbytes for b in plan.barriers) == 4_285_440
    assert [str(b.ranges[0]) for b in plan.barriers[1:]] == [
        f"[0:1, {low}:{high}, 0:90, 0:62]"
        for low, high in ((64, 96), (96, 128), (128, 160), (160, 192))
    ]


def test_c3_a_result_claims_its_channels_and_nothing_else() -> None:
    second = dense_block_plan("share-prefixes").dispatches[2]
    assert [access.hull for access in second.writes] == [(2142720, 2856960)] * 3


def test_c5_batches_are_strided_boxes() -> None:
    plan = plan_of(lambda x, y: jnp.concatenate([x * 2, y + 1], 1), shape(4, 3, 5), shape(4, 2, 5))
    assert [str(d.writes[0]) for d in plan.dispatches] == ["r0[0:4, 0:3, 0:5]", "r0[0:4, 3:5, 0:5]"]
    assert plan.barriers == ()


def test_c7_overlapping_stores_of_one_value_keep_program_order() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        whole = jnp.zeros(8, jnp.float32)
        return whole.at[0:4].set(y).at[2:6].set(y)

    plan = check(fn, f32(4))
    assert "the producer writes the same place of the destination before" in declined(
        plan, "fuse-insert"
    )


def test_c7_the_same_value_twice_is_two_stores_of_one_dispatch() -> None:
    plan = check(lambda x: (lambda y: jnp.concatenate([y, y]))(x * 2), f32(4))
    assert len(plan.dispatches) == 1
    assert len(plan.dispatches[0].writes) == 2


def test_c8_dont_place_a_result_that_its_destination_depends_on() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        return jnp.cumsum(y, 0).at[0:8].set(y)

    plan = check(lambda a, b: fn(a, b), f32(8, 9), f32(9, 7))
    assert plan.dispatches
    plan = check(lambda a, b: jnp.cumsum(a @ b, 0).at[1:3].set((a @ b)[5:7]), f32(8, 9), f32(9, 7))
    assert plan.dispatches


def many_destinations(count: int) -> Any:
    def fn(x: Any, d: Any) -> Any:
        y = jnp.exp(x)
        return [lax.dynamic_update_slice(d * i, y, (i, 0)) for i in range(1, count + 1)]

    return fn


def test_c11_a_dispatch_has_no_more_operands_than_the_limit() -> None:
    plan = check(many_destinations(20), f32(2, 4), f32(24, 4))
    touched = [{a.buffer for a in (*d.reads, *d.writes)} for d in plan.dispatches]
    assert max(map(len, touched)) <= 16
    full = "the producer has the 16 operands that one dispatch may have"
    assert full in declined(plan, "fuse-insert")
    assert plan.copies


def test_c11_the_limit_is_an_option() -> None:
    plan = check(many_destinations(6), f32(2, 4), f32(24, 4), options=Options(operand_limit=5))
    assert split(plan) == ["it takes 6 buffers, more than the 5 that one dispatch may have"]
    full = "the producer has the 5 operands that one dispatch may have"
    assert full in declined(plan, "fuse-insert")
    plan = plan_of(many_destinations(6), f32(2, 4), f32(24, 4))
    assert split(plan) == []


def test_c11_first_contents_count_too() -> None:
    def fn(x: Any, u: Any) -> Any:
        y = jnp.exp(x)
        return [lax.dynamic_update_slice(y, u * i, (i, 0)) for i in range(6)]

    plan = check(fn, f32(24, 4), f32(2, 4), options=Options(operand_limit=5))
    assert "it takes 6 buffers, more than the 5 that one dispatch may have" in split(plan)
    touched = [{a.buffer for a in (*d.reads, *d.writes)} for d in plan.dispatches]
    assert max(map(len, touched)) <= 5
