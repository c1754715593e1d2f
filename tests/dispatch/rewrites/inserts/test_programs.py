"""fuse-insert: who computes a value writes it where it is placed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.dispatch.rewrites.inserts import fuse_inserts
from stagejit.schedule.plans.plan import Plan
from tests.dispatch.rewrites.texts import rewritten
from tests.schedule.planning import check

BEFORE = """graph @f(%x: f32[2]) {
  %0: f32[2] = dispatch map %x
    graph @map(%a0: f32[2]) {
      %0: f32[2] = map exp %a0
      return %0
    }
  %1: f32[5] = empty
  %2: f32[5] = dispatch copy %0 into %1 [0:2]
    graph @copy(%a0: f32[2], %d0: f32[5] donated) {
      %0: f32[5] = insert_slice %a0 into %d0 at (0)
      return %0
    }
  return %2
}"""
AFTER = """graph @f(%x: f32[2]) {
  %0: f32[5] = empty
  %1: f32[5] = dispatch map %x into %0 [0:2]
    graph @map(%a0: f32[2], %d0: f32[5] donated) {
      %0: f32[2] = map exp %a0
      %1: f32[5] = insert_slice %0 into %d0 at (0)
      return %1
    }
  return %1
}"""


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def kinds(plan: Plan) -> list[str]:
    return [dispatch.kind for dispatch in plan.dispatches]


def test_the_producer_writes_into_the_destination() -> None:
    after, said = rewritten(BEFORE, fuse_inserts)
    assert after == AFTER
    assert said == ["+ the producer writes into the destination"]


def test_a_source_with_other_readers_is_stored_twice() -> None:
    after, _ = rewritten(BEFORE.replace("return %2\n}", "return %2, %0\n}"), fuse_inserts)
    assert "%1: f32[2], %2: f32[5] = dispatch map %x into %0 [0:2]" in after


def test_dont_place_what_an_argument_holds() -> None:
    before = """graph @f(%x: f32[2]) {
  %0: f32[5] = empty
  %1: f32[5] = dispatch copy %x into %0 [0:2]
    graph @copy(%a0: f32[2], %d0: f32[5] donated) {
      %0: f32[5] = insert_slice %a0 into %d0 at (0)
      return %0
    }
  return %1
}"""
    reason = "- what is copied is the argument x, which nobody computes"
    assert rewritten(before, fuse_inserts) == (before, [reason])


def test_an_update_moves_in_front_of_those_of_other_elements() -> None:
    plan = check(lambda b: (lambda y: jnp.concatenate([jnp.cumsum(y), y]))(jnp.exp(b)), f32(4))
    assert kinds(plan) == ["map", "cumulative"]
    assert plan.transient_nbytes == 0


def test_dont_move_in_front_of_what_overwrites_the_same() -> None:
    def f(b: Any) -> Any:
        y = jnp.exp(b)
        return jnp.zeros(6).at[0:4].set(jnp.cumsum(y)).at[2:6].set(y)

    plan = check(f, f32(4))
    said = [d.reason for d in plan.decisions if d.rewrite == "fuse-insert" and not d.applied]
    assert said == ["the destination depends on the producer"]


def test_dont_place_one_value_over_itself() -> None:
    def f(b: Any) -> Any:
        y = jnp.exp(b)
        return jnp.zeros(6).at[0:4].set(y).at[2:6].set(y)

    plan = check(f, f32(4))
    said = [d.reason for d in plan.decisions if d.rewrite == "fuse-insert" and not d.applied]
    assert said == ["the producer writes the same place of the destination before"]


def test_buffers_in_buffers_in_buffers() -> None:
    def f(a: Any, b: Any) -> Any:
        inner = jnp.concatenate([jnp.exp(a), jnp.cumsum(b)])
        return jnp.pad(jnp.stack([inner, inner * 2]), 1)

    plan = check(f, f32(3), f32(4))
    assert not plan.fills


def test_a_dynamic_box_of_an_assembled_buffer() -> None:
    def f(d: Any, a: Any, b: Any, i: Any) -> Any:
        inner = jnp.concatenate([jnp.exp(a), jnp.cumsum(b)])
        return lax.dynamic_update_slice(d, inner, (i,))

    plan = check(f, f32(20), f32(3), f32(4), np.int32(5), donated=[True, False, False, False])
    assert kinds(plan) == ["map", "cumulative"]


@pytest.mark.parametrize("donated", [False, True])
def test_who_reads_what_several_hosts_overwrite_comes_before_all_of_them(donated: bool) -> None:
    def turned(x: Any) -> Any:
        return x.at[0:4].set(jnp.concatenate([x[3:4], x[0:3]]))

    def of_a_product(x: Any) -> Any:
        return turned(x * 2)

    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    for fn in (turned, of_a_product):
        check(fn, x, donated=[donated])


@pytest.mark.parametrize("assembled", ["updated", "joined"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shift", [0, 1])
def test_what_an_assembled_buffer_is_placed_in_is_not_overwritten_while_it_is_read(
    assembled: str, stride: int, shift: int
) -> None:
    def f(d: Any) -> Any:
        n = jnp.concatenate([d[:6], jnp.sin(d[6:])])
        if assembled == "updated":
            n = d.at[11:14:2].add(d[7:5:-1])
        whole = lax.pad(n, jnp.float32(1), ((1, 1, stride - 1), (1, 0, 0)))
        changed = whole.at[:, 0].set(whole[:, 3])
        size = whole.shape[0] - 7
        moved = whole[2 : 2 + size, shift : shift + 2] - changed[2 : 2 + size, 1::-1]
        return changed.at[7 : 7 + size, 0:2].add(moved)

    check(f, f32(16, 5))
