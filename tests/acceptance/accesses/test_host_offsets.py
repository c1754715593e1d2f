"""Acceptance A10 and A13: offsets that the host knows are exact, others say why they are not."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import OptionsError, VerificationError
from stagejit.options import Options
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.verifier.plans import verify_plan
from tests.acceptance.running import f32, plan_of, reasons, run, same
from tests.schedule.planning import check

HULL = "its range is a conservative hull: all places where it may be"


def placed(d: Any, x: Any, i: Any) -> Any:
    return lax.dynamic_update_slice(d, jnp.exp(x), (i, 0))


@pytest.mark.parametrize("start", [-900, -9, 0, 5, 62, 63, 200])
def test_a10_an_offset_that_is_an_argument_is_exact(start: int) -> None:
    d, x, i = f32(64, 64), f32(2, 64), np.int32(start)
    at = min(max(start + 64 if start < 0 else start, 0), 62)  # JAX counts from the end
    expected = d.copy()
    expected[at : at + 2] = np.exp(x)
    plan = run(placed, [d, x, i], expected, off=("host-offsets",), donate_argnums=0)
    (write,) = plan.dispatches[-1].writes
    assert (write.exact, write.nbytes, write.hull) == (True, 2 * 256, (0, 16_384))
    assert str(write) == "d[s0:s0+2, 0:64]"
    now = plan.at(i=start)
    (write,) = now.dispatches[-1].writes
    assert (write.offsets, write.hull) == ((at, 0), (at * 256, (at + 2) * 256))
    assert parse_plan(plan.as_text()).at(i=start).as_text() == now.as_text()


def test_a10_switched_off_it_is_a_hull() -> None:
    args = [f32(64, 64), f32(2, 64), np.int32(0)]
    plan = plan_of(placed, *args, disable=["host-offsets"], donate_argnums=0)
    assert (plan.scalars, plan.dispatches[-1].writes[0].exact) == ((), False)
    assert any(HULL in reason for reason in reasons(plan, "host-offsets", applied=False))


def test_a10_the_plan_says_what_a_symbol_is() -> None:
    plan = plan_of(placed, f32(64, 64), f32(2, 64), np.int32(0), donate_argnums=0)
    text = plan.as_text()
    assert "  symbol s0 in 0:63 = clamp(i32(i+64) if i < 0 else i, 0, 62)\n" in text
    assert parse_plan(text).as_text() == text
    verify_plan(parse_plan(text))
    (said,) = reasons(plan, "host-offsets", applied=True)
    assert said == (
        "the host knows the offset clamp(i32(%i+64) if %i < 0 else %i, 0, 62): its range is exact"
    )


def decode(cache: Any, k: Any, pos: Any) -> Any:
    cache = cache.at[:, pos].set(k * 2)
    return cache, cache.sum(0)


@pytest.mark.parametrize("pos", [0, 5, 63, -1, -64, -65, 64])
def test_a10_a_decode_step_writes_its_row(pos: int) -> None:
    cache, k = f32(4, 64, 32), f32(4, 32, seed=1)
    expected = cache.copy()
    if -64 <= pos < 64:  # JAX drops what is out of bounds
        expected[:, pos] = k * 2
    args = [cache, k, np.int32(pos)]
    plan = run(decode, args, (expected, expected.sum(0)), donate_argnums=0)
    assert plan.copies == ()
    write, read = plan.dispatches
    assert [str(a) for a in write.writes] == ["?cache[0:4, s0:s0+1, 0:32]"]
    assert [(a.exact, a.nbytes) for a in write.writes] == [(True, 4 * 32 * 4)]
    (barrier,) = plan.barriers
    assert (barrier.src, barrier.dst, barrier.hazard) == (write.name, read.name, "RAW")
    assert barrier.nbytes == 4 * 32 * 4
    row = plan.at(pos=pos).dispatches[0].writes[0]
    inside = -64 <= pos < 64
    assert (row.offsets[1], row.nbytes) == ((pos % 64, 512) if inside else (0, 0))
    check(decode, *args, donated=(True, False, False))


def test_a10_only_an_undonated_cache_is_copied() -> None:
    plan = plan_of(decode, f32(4, 64, 32), f32(4, 32), np.int32(0))
    assert [copy.writes[0].nbytes for copy in plan.copies] == [4 * 64 * 32 * 4]


def use_insert_use(d: Any, a: Any, i: Any) -> Any:
    i = jnp.clip(i, 0, 31)
    d = lax.dynamic_update_slice(d, jnp.exp(a), (i, 0))
    u = lax.cumsum(lax.dynamic_slice(d, (i + 32, 0), (16, 64)), 0)
    return lax.dynamic_update_slice(d, u, (i + 16, 0))


@pytest.mark.parametrize("start", [-3, 0, 7, 16, 40])
def test_a10_ranges_with_one_symbol_are_compared_exactly(start: int) -> None:
    """[i, i+16), [i+32, i+48) and [i+16, i+32) are disjoint, and the bounds keep them inside."""
    d, a, i = f32(80, 64), f32(16, 64, seed=1), np.int32(start)
    at = min(max(start, 0), 31)
    expected = d.copy()
    expected[at : at + 16] = np.exp(a)
    expected[at + 16 : at + 32] = np.cumsum(expected[at + 32 : at + 48], 0)
    plan = run(use_insert_use, [d, a, i], expected, off=("host-offsets",), donate_argnums=0)
    assert (plan.copies, plan.barriers) == ((), ())
    check(use_insert_use, d, a, i, donated=(True, False, False))
    off = plan_of(use_insert_use, d, a, i, disable=["host-offsets"], donate_argnums=0)
    assert off.barriers


def two_rows(d: Any, a: Any, i: Any, j: Any) -> Any:
    d = lax.dynamic_update_slice(d, jnp.exp(a), (i, 0))
    return lax.dynamic_update_slice(d, lax.cumsum(a, 1), (j, 0))


@pytest.mark.parametrize(("i", "j"), [(3, 3), (3, 4), (8, 2)])
def test_a10_dont_take_two_arguments_for_different_or_equal(i: int, j: int) -> None:
    d, a = f32(16, 8), f32(1, 8, seed=1)
    expected = d.copy()
    expected[i] = np.exp(a)
    expected[j] = np.cumsum(a, 1)
    args = [d, a, np.int32(i), np.int32(j)]
    plan = run(two_rows, args, expected, donate_argnums=0)
    (barrier,) = plan.barriers
    assert barrier.hazard == "WAW"
    (now,) = plan.at(i=i, j=j).barriers  # this call waits, too, if for nothing
    assert (now.nbytes, len(now.ranges)) == ((32, 1) if i == j else (0, 0))
    verify_plan(plan.at(i=i, j=j))
    check(two_rows, *args, donated=(True, False, False, False), orders=4)


def at_the_largest(d: Any, x: Any) -> Any:
    return lax.dynamic_update_slice(d, jnp.exp(x), (jnp.argmax(x[0]), 0))


def test_a10_a_computed_offset_is_a_hull_and_nobody_waits_for_it() -> None:
    d, x = f32(64, 64), f32(2, 64, seed=1)
    at = min(int(np.argmax(x[0])), 62)
    expected = d.copy()
    expected[at : at + 2] = np.exp(x)
    plan = run(at_the_largest, [d, x], expected, donate_argnums=0)
    write = plan.dispatches[-1].writes[0]
    assert (write.exact, write.hull) == (False, (0, 16_384))
    (said,) = [d for d in plan.decisions if d.rewrite == "host-offsets"]
    assert not said.applied
    assert "computed by" in said.reason
    assert "reduce argmax" in said.reason
    assert said.loc.line == at_the_largest.__code__.co_firstlineno + 1
    # All of it is one native call: there is no host step between the argmax and the update.
    assert plan.delegated == ()
    lowered = stagejit.jit(at_the_largest, donate_argnums=0).lower(d, x)
    assert len(lowered.compilation.run_until("schedule").schedule.segments) == 1


def test_a10_the_same_at_an_element_of_an_argument() -> None:
    plan = plan_of(lambda d, x, i: placed(d, x, i[1]), f32(64, 64), f32(2, 64), np.zeros(3, int))
    (said,) = reasons(plan, "host-offsets", applied=False)
    assert said == f"the offset is an element of an argument array: {HULL}"


def test_at_needs_the_scalars_of_the_plan() -> None:
    plan = plan_of(placed, f32(64, 64), f32(2, 64), np.int32(0))
    with pytest.raises(OptionsError, match="depends on `i`"):
        plan.at()
    with pytest.raises(OptionsError, match="no argument"):
        plan.at(i=3, k=2)
    assert plan_of(lambda x: x * 2, f32(3)).at().dispatches


def test_the_verifier_wants_symbols_that_the_host_can_compute() -> None:
    plan = plan_of(placed, f32(64, 64), f32(2, 64), np.int32(0), donate_argnums=0)
    text = plan.as_text()
    verify_plan(parse_plan(text))
    for old, new, fault in [
        ("i32(i+64) if i < 0 else i", "x", "x is no scalar integer argument"),
        ("symbol s0 in 0:63", "symbol s0 in 0:64", "leaves the buffer"),
        ("symbol s0 in 0:63", "symbol s0 in 3:3", "has no value"),
    ]:
        with pytest.raises(VerificationError, match=fault):
            verify_plan(parse_plan(text.replace(old, new)))


# ------------------------------------------------------------------------ loops


def scanned(buffer: Any, rows: Any) -> Any:
    def step(c: Any, row_and_at: Any) -> Any:
        row, at = row_and_at
        before = lax.dynamic_slice(c, (at + 1, 0), (1, 16))
        return lax.dynamic_update_slice(c, jnp.exp(row)[None] + before, (at, 0)), before.sum()

    return lax.scan(step, buffer, (rows, jnp.arange(rows.shape[0]) * 2 + 1))


def counted(buffer: Any, rows: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return lax.dynamic_update_slice(c, rows[i][None] + c[0:1], (i + 3, 0))

    return lax.fori_loop(0, 5, step, buffer)


def body_of(plan: Plan) -> Any:
    (body,) = (body for dispatch in plan.dispatches for body in dispatch.bodies)
    return body


def test_a13_in_a_scan_the_offset_is_that_of_the_iteration() -> None:
    buffer, rows = f32(64, 16), f32(5, 16, seed=1)
    expected, sums = buffer.copy(), []
    for at in range(5):
        before = expected[2 * at + 2].copy()
        expected[2 * at + 1] = np.exp(rows[at]) + before
        sums.append(before.sum())
    plan = run(scanned, [buffer, rows], (expected, np.array(sums)), donate_argnums=0)
    body = body_of(plan)
    touched = [str(a) for d in body.plan.dispatches for a in (*d.reads, *d.writes)]
    assert "carry0[s0+1:s0+2, 0:16]" in touched
    assert "carry0[s0:s0+1, 0:16]" in touched
    (symbol,) = body.plan.scalars  # the bounds of the iteration leave nothing to clamp
    assert str(symbol) == "symbol s0 in 1:10 = x1"
    assert not body.plan.copies
    strides = {each.outer: each.stride_nbytes for each in body.bindings}
    assert strides["rows"] == 64
    (write,) = [w for d in body.plan.at(x1=7).dispatches for w in d.writes if "carry" in w.buffer]
    assert write.hull == (7 * 64, 8 * 64)
    check(scanned, buffer, rows, donated=(True, False))


def test_a13_a_counted_loop_knows_its_counter() -> None:
    buffer, rows = f32(64, 16), f32(5, 16, seed=1)
    expected = buffer.copy()
    for i in range(5):
        expected[i + 3] = rows[i] + expected[0]
    plan = run(counted, [buffer, rows], expected, donate_argnums=0)
    touched = {str(a) for d in body_of(plan).plan.dispatches for a in (*d.reads, *d.writes)}
    assert any(text.endswith("[s0+3:s0+4, 0:16]") for text in touched)
    assert not any(text.startswith("~") for text in touched)
    check(counted, buffer, rows, donated=(True, False))


def test_a13_dont_call_a_carried_offset_known() -> None:
    """What an iteration computes from arrays is not known to the host in the next one."""

    def fn(d: Any, x: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            d, at = c
            d = lax.dynamic_update_slice(d, row[None], (at, 0))
            return (d, jnp.argmax(row).astype(jnp.int32)), None

        return lax.scan(step, (d, jnp.int32(0)), x)[0]

    d, x = f32(16, 8), f32(6, 8, seed=1)
    expected, at = d.copy(), 0
    for row in x:
        expected[at], at = row, int(np.argmax(row))
    plan = run(fn, [d, x], (expected, np.int32(at)), donate_argnums=0)
    assert "~" in body_of(plan).plan.as_text()
    assert any(HULL in reason for reason in reasons(plan, "host-offsets", applied=False))
    check(fn, d, x, donated=(True, False))


def test_a10_values_agree_with_jax_for_many_offsets() -> None:
    def fn(d: Any, a: Any, i: Any, j: Any) -> Any:
        d = d.at[i % 8, j].add(a[0, 0]).at[j].mul(2.0)
        e = lax.dynamic_slice(d, (i, j), (3, 4)) + lax.dynamic_slice(d, (j - i, i * 2), (3, 4))
        return lax.dynamic_update_slice(d, e, (i + j, -j)), d[i], jnp.take(d, j, axis=1)

    d, a = f32(16, 12), f32(1, 8, seed=1)
    ours = stagejit.jit(fn, options=Options(verify=True), donate_argnums=0)
    for i in (-20, -3, 0, 1, 9, 15, 16, 2**31 - 1):
        for j in (-16, -1, 0, 2, 11, 40):
            theirs = jax.jit(fn)(d, a, np.int32(i), np.int32(j))
            same(ours(jnp.asarray(d), a, np.int32(i), np.int32(j)), theirs)
    for i, j in ((-3, 2), (9, 40)):
        check(fn, d, a, np.int32(i), np.int32(j), donated=(True, False, False, False))


def test_a10_an_offset_by_another_function_says_so() -> None:
    def fn(d: Any, x: Any, i: Any) -> Any:
        return placed(d, x, lax.population_count(i))

    plan = plan_of(fn, f32(64, 64), f32(2, 64), np.int32(0))
    (said,) = reasons(plan, "host-offsets", applied=False)
    assert "population_count" in said
    assert said.endswith(f"is no function that the host computes: {HULL}")


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (lambda x, i, k, t: jnp.argmax(x[:, 0]), r"computed by %\d+ reduce argmax .* of line \d+"),
        (lambda x, i, k, t: i.reshape(5)[3], "an element of an argument array"),
        (lambda x, i, k, t: t.astype(int) * 3, "made of a float argument"),
        (lambda x, i, k, t: (jnp.array([3, 1, 2]) + i[0])[0], "an element of an argument array"),
        (lambda x, i, k, t: lax.dynamic_slice(jnp.array([3, 1, 2]), (k,), (1,))[0],
         "an element of a constant array"),
        (lambda x, i, k, t: jnp.sort(i)[1], r"computed by %\d+ sort .* of line \d+"),
    ],
    ids=["argmax", "array", "float", "sum", "constant", "sort"],
)  # fmt: skip
def test_a10_what_the_host_does_not_know_is_named(offset: Any, said: str) -> None:
    def fn(d: Any, x: Any, i: Any, k: Any, t: Any) -> Any:
        return placed(d, x, offset(d, i, k, t))

    args = f32(64, 64), f32(2, 64), np.arange(5, dtype=np.int32), np.int32(1), np.float32(2)
    found = list(reasons(plan_of(fn, *args), "host-offsets", applied=False))
    assert any(re.search(f"the offset is {said}: {HULL}", text) for text in found), found


def test_a10_what_an_update_waits_for_hides_no_offset() -> None:
    """The loop comes after the sum. It starts from its first carry, the counter, behind that."""

    def fn(x: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            return lax.dynamic_update_slice(c, c[:1] * 2, (i + 1,))

        e = jnp.exp(x)
        return e.sum(), lax.fori_loop(0, 3, body, e)

    plan = check(fn, f32(8))
    assert "r1[1:4]" in map(str, plan.dispatches[-1].writes)
    same(stagejit.jit(fn, options=Options(verify=True))(f32(8)), jax.jit(fn)(f32(8)))
