"""Acceptance C6 to C12: which results are placed in which destinations, and in which order."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.errors import OptionsError
from stagejit.options import Options
from tests.acceptance.running import f32, plan_of, reasons, run, writes
from tests.schedule.planning import check


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
