"""Acceptance A, inserts: which destinations are copied, what is read between two updates, what an
update with a part of itself gives, and every element type and degenerate shape."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.acceptance.running import f32, kinds, plan_of, run, totals, writes


def test_a9_only_destinations_that_somebody_needs_are_copied() -> None:
    x, d, table = f32(2, 64), f32(64, 64, seed=1), f32(64, 64, seed=2)
    fresh = np.zeros((64, 64), np.float32)

    def into(d: Any, x: Any) -> Any:
        return d.at[2:4].set(jnp.exp(x))

    def expected(d: Any) -> Any:
        d = d.copy()
        d[2:4] = np.exp(x)
        return d

    plan = run(lambda x: into(jnp.zeros((64, 64)), x), [x], expected(fresh), off=("fuse-pad",))
    assert totals(plan) == (1, 0, 0, 0)
    plan = run(lambda x: into(jnp.asarray(table), x), [x], expected(table))
    assert totals(plan) == (2, 0, 1, 0)
    plan = run(into, [d, x], expected(d))
    assert totals(plan) == (2, 0, 1, 0)
    assert plan.copies[0].writes[0].nbytes == d.nbytes
    plan = run(into, [d, x], expected(d), off=("reuse-arguments",), donate_argnums=0)
    assert totals(plan) == (1, 0, 0, 0)


def test_a9_one_live_destination_beside_a_fresh_one_is_one_copy() -> None:
    def fn(d: Any, x: Any) -> Any:
        e = jnp.exp(x)
        return d.at[2:4].set(e), jnp.zeros((64, 64)).at[5:7].set(e)

    d, x = f32(64, 64), f32(2, 64)
    one, two = d.copy(), np.zeros((64, 64))
    one[2:4] = two[5:7] = np.exp(x)
    plan = run(fn, [d, x], (one, two), off=("fuse-pad", "fuse-insert"))
    (copy,) = plan.copies
    assert [(w.buffer, w.nbytes) for w in copy.writes] == [("r0", d.nbytes)]
    assert plan.fills == ()


def test_a12_a_use_between_two_inserts_is_forwarded() -> None:
    def fn(d: Any, a: Any) -> Any:
        d = d.at[0:32].set(jnp.exp(a))
        u = d[0:32] * 2
        return d.at[32:64].set(u)

    d, a = f32(64, 256), f32(32, 256)
    expected = np.concatenate([np.exp(a), np.exp(a) * 2])
    plan = run(fn, [d, a], expected, off=("fold-views", "fuse-insert"), donate_argnums=0)
    assert plan.copies == ()
    assert plan.buffer("d").result == 0
    assert {read.buffer for dispatch in plan.dispatches for read in dispatch.reads} == {"a"}
    assert writes(plan) == [("d", (0, 32_768)), ("d", (32_768, 65_536))]
    assert plan.barriers == ()
    off = plan_of(fn, d, a, disable=["fold-views"], donate_argnums=0)
    assert "d" in {read.buffer for dispatch in off.dispatches for read in dispatch.reads}
    assert off.barriers


def test_a12_dont_forward_what_is_old_in_part() -> None:
    def fn(d: Any, a: Any) -> Any:
        d = d.at[0:32].set(jnp.exp(a))
        return d.at[32:64].set(d[16:48] * 2)

    d, a = f32(64, 256), f32(32, 256)
    first = np.concatenate([np.exp(a), d[32:]])
    expected = np.concatenate([first[:32], first[16:48] * 2])
    plan = run(fn, [d, a], expected, off=("fold-views", "fuse-insert"), donate_argnums=0)
    (read,) = (r for dispatch in plan.dispatches for r in dispatch.reads if r.buffer == "d")
    assert read.hull == (16 * 1024, 48 * 1024)


def test_a14_an_update_with_a_slice_of_itself() -> None:
    def fn(x: Any) -> Any:
        return lax.dynamic_update_slice(x, x[0:3], (1,))

    x = np.array([1, 2, 3, 4], np.float32)
    for donated in ((), (0,)):
        run(fn, [x], np.array([1, 1, 2, 3]), donate_argnums=donated)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_a14_the_program_of_xla_issue_49176(donated: tuple[int, ...]) -> None:
    """An update with a shifted slice of its operand, then a reshape, which XLA moves before the
    update: XLA then reads what it has written, and gives [1, 1, 1, 1]."""

    def fn(x: Any) -> Any:
        base = x + np.int32(1)
        return lax.dynamic_update_slice(base, base[:3], (1, 0, 0)).reshape((1, 4, 1))

    x = np.arange(4, dtype=np.int32).reshape(4, 1, 1)
    run(fn, [x], np.array([1, 1, 2, 3]).reshape(1, 4, 1), donate_argnums=donated)


@pytest.mark.parametrize("rows", [slice(1, None), slice(None, -1)])
def test_a14_a_buffer_shifted_by_one_row(rows: slice) -> None:
    other = slice(None, -1) if rows.start else slice(1, None)

    def fn(x: Any) -> Any:
        base = x * 2
        return base.at[rows].set(base[other]).reshape(1, 64, 16)

    x = np.arange(64 * 16, dtype=np.int32).reshape(64, 16)
    expected = x * 2
    expected[rows] = (x * 2)[other]
    run(fn, [x], expected.reshape(1, 64, 16), off=("fuse-insert",), donate_argnums=0)


DTYPES = [np.bool_, np.int8, np.uint16, np.int32, np.float16, jnp.bfloat16, np.float32]


@pytest.mark.parametrize("dtype", [*DTYPES, np.complex64])
def test_a15_element_types(dtype: Any) -> None:
    x = jnp.asarray(np.arange(12).reshape(3, 4) % 2, dtype)
    n = np.asarray(x)
    one = np.ones((), n.dtype)

    def fn(x: Any) -> Any:
        y = jnp.where(x == 0, jnp.ones_like(x), x)
        return lax.pad(y, jnp.ones((), x.dtype), ((1, 0, 1), (2, 1, 0)))

    expected = np.full((6, 7), one)
    plan = run(fn, [x], expected, off=("fuse-pad",))
    assert plan.delegated == ()
    if dtype is not np.complex64:  # whose border is two numbers
        assert totals(plan) == (1, 0, 0, 0)


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (1, 1), (5, 0)])
def test_a15_empty_and_unit_dimensions(shape: tuple[int, int]) -> None:
    x = f32(*shape)

    def fn(x: Any) -> Any:
        return jnp.pad(x * 2, ((1, 2), (0, 3))), jnp.concatenate([x * 2, x + 1], 1)

    run(fn, [x], (np.pad(x * 2, ((1, 2), (0, 3))), np.concatenate([x * 2, x + 1], 1)))


def test_a15_rank_reducing_inserts() -> None:
    def fn(x: Any, row: Any) -> Any:
        return jnp.zeros((5, 4)).at[2].set(jnp.exp(row)).at[3, 1].set(x[0, 0] * 2)

    x, row = f32(3, 3), f32(4)
    expected = np.zeros((5, 4))
    expected[2] = np.exp(row)
    expected[3, 1] = x[0, 0] * 2
    plan = run(fn, [x, row], expected, off=("fuse-pad", "fuse-insert"))
    assert plan.fills == plan.copies == ()
    assert set(kinds(plan)) == {"map"}
