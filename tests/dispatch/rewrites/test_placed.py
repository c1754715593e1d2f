"""read-placed: where the readers of a placed value read it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.dispatch.rewrites.placed import read_where_placed
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten
from tests.expected.left import left
from tests.schedule.planning import check


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def reasons(plan: Plan, applied: bool = False) -> list[str]:
    return [d.reason for d in plan.decisions if d.rewrite == "read-placed" and d.applied == applied]


def grown(a: Any, b: Any) -> Any:
    y = a @ b
    return jnp.concatenate([y, lax.cumsum(y, 0)]), lax.cumsum(y, 1)


def test_readers_slice_the_larger_buffer() -> None:
    plan = check(grown, f32(16, 8), f32(8, 20))
    assert plan.transient_nbytes == 0
    assert reasons(plan, True) == ["its readers read it where it is placed"]
    assert {str(read) for d in plan.dispatches for read in d.reads if read.buffer == "r0"} == {
        "r0[0:16, 0:20]"
    }


def test_off_stores_it_twice() -> None:
    plan = check(grown, f32(16, 8), f32(8, 20), options=Options(disable=("read-placed",)))
    assert plan.transient_nbytes == 16 * 20 * 4
    assert reasons(plan) == []


def test_dont_redirect_readers_of_a_dynamic_place() -> None:
    def fn(d: Any, a: Any, b: Any, i: Any) -> Any:
        y = a @ b
        return lax.dynamic_update_slice(d, y, (i, 0)), lax.cumsum(y, 0)

    plan = check(fn, f32(40, 20), f32(16, 8), f32(8, 20), np.int32(3))
    assert reasons(plan) == ["where it is placed is known at run time only"]


def test_dont_redirect_a_delegated_equation() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        return jnp.concatenate([y, y + 1]), left(y)

    plan = check(fn, f32(16, 8), f32(8, 20))
    assert reasons(plan) == ["a reader wants it in memory of its own"]


def test_dont_redirect_what_says_where_something_is_placed() -> None:
    def fn(d: Any, a: Any, x: Any) -> Any:
        starts = lax.cumsum(a)
        placed = jnp.concatenate([starts, a])
        return placed, lax.dynamic_update_slice(d, x * 2, (starts[3], jnp.int32(0)))

    plan = check(fn, f32(40, 20), np.arange(16, dtype=np.int32), f32(16, 20))
    assert "it says where something is placed" in reasons(plan)


def test_dont_read_short_pieces() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        return jnp.concatenate([y, lax.cumsum(y, 0)], 1), lax.cumsum(y, 1)

    plan = check(fn, f32(16, 8), f32(8, 5))
    assert reasons(plan) == ["it is placed in pieces of 20 bytes"]


def test_dont_read_what_is_overwritten_before() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        z = lax.cumsum(y, 0)
        whole = jnp.zeros((32, 20)).at[0:16].set(y).at[8:24].set(z)
        return whole, lax.cumsum(y + z, 1)

    plan = check(fn, f32(16, 8), f32(8, 20))
    assert reasons(plan) == ["it is overwritten before its last reader has run"]


def test_a_reader_that_places_its_result_beside() -> None:
    def fn(a: Any, b: Any) -> Any:
        y = a @ b
        return jnp.concatenate([y, lax.cumsum(y, 0), jnp.pad(y, ((1, 1), (0, 0)))])

    plan = check(fn, f32(16, 8), f32(8, 20))
    assert plan.transient_nbytes == 0
    assert plan.copies == ()


TWICE = part("f32[16] = map exp %a0", "f32[32] = insert_slice %0 into %d0 at (0)", "%0, %1",
             a0="f32[16]", d0="f32[32]")  # fmt: skip
SUM = part("f32[16] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[16]")


def test_who_waits_for_what_is_read_elsewhere_waits_for_who_stored_it() -> None:
    first = part("f32[16] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[2]", d0="f32[16]")
    before = expanded(
        """
        graph @f(%z: f32[16] donated, %y: f32[2]) {
          %0: f32[32] = empty
          %1: f32[16], %2: f32[32] = dispatch map %z into %0 [0:16] : TWICE
          %3: f32[16] = after %z, %1
          %4: f32[16] = dispatch copy %y into %3 [0:2] : first
          %5: f32[16] = dispatch cumulative %1 : SUM
          return %2, %4, %5
        }""", TWICE=TWICE, SUM=SUM, first=first)  # fmt: skip
    after, _ = rewritten(before, read_where_placed)
    assert outline(after) == plain("""
        graph @f(%z: f32[16] donated, %y: f32[2]) {
          %0: f32[32] = empty
          %1: f32[32] = dispatch map %z into %0 [0:16]
          %2: f32[16] = after %z, %1
          %3: f32[16] = dispatch copy %y into %2 [0:2]
          %4: f32[16] = dispatch cumulative %1
          return %1, %3, %4
        }""")


def test_what_is_placed_behind_a_barrier_is_read_there() -> None:
    before = expanded(
        """
        graph @f(%x: f32[16], %d: f32[32] donated) {
          %0: f32[32] = optimization_barrier %d
          %1: f32[16], %2: f32[32] = dispatch map %x into %0 [0:16] : TWICE
          %3: f32[16] = dispatch cumulative %1 : SUM
          return %2, %3
        }""", TWICE=TWICE, SUM=SUM)  # fmt: skip
    after, said = rewritten(before, read_where_placed)
    assert said == ["+ its readers read it where it is placed"]
    assert "%2: f32[16] = dispatch cumulative %1" in outline(after)
