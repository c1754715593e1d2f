"""share-prefixes: concatenations that grow are one buffer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.decisions import Decision
from stagejit.errors import OptionsError
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driving.driver import GraphStep
from stagejit.rewrites.moving.prefixes import NAME, share_prefixes
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import rewritten, unchanged

STEP = GraphStep(NAME, share_prefixes)


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def shared(fn: Any, *args: Any) -> tuple[Graph, list[Decision]]:
    """The rewritten graph, whose values are those without the rewrite, and its decisions."""
    graph, plain = graph_of(fn, *args), graph_of(fn, *args)
    decisions = rewrite_graph(graph, Options(verify=True))
    rewrite_graph(plain, Options(disable=(NAME,)))
    leaves = jax.tree.leaves(args)
    for a, b in zip(interpret(graph, leaves), interpret(plain, leaves), strict=True):
        np.testing.assert_array_equal(a, b)
    return graph, [decision for decision in decisions if decision.rewrite == NAME]


def test_a_prefix_is_a_slice_of_the_longer_one() -> None:
    text = """graph @f(%x: f32[2,16], %y: f32[3,16], %z: f32[1,16]) {
      %0: f32[5,16] = empty
      %1: f32[5,16] = insert_slice %x into %0 at (0, 0)
      %2: f32[5,16] = insert_slice %y into %1 at (2, 0)
      %3: f32[5,16] = map exp %2
      %4: f32[6,16] = empty
      %5: f32[6,16] = insert_slice %x into %4 at (0, 0)
      %6: f32[6,16] = insert_slice %y into %5 at (2, 0)
      %7: f32[6,16] = insert_slice %z into %6 at (5, 0)
      return %3, %7
    }"""
    assert rewritten(STEP, text) == (
        "%0: f32[6,16] = empty\n"
        "%1: f32[6,16] = insert_slice %x into %0 at (0, 0)\n"
        "%2: f32[6,16] = insert_slice %y into %1 at (2, 0)\n"
        "%3: f32[6,16] = insert_slice %z into %2 at (5, 0)\n"
        "%4: f32[5,16] = extract_slice %2 at (0, 0)\n"
        "%5: f32[5,16] = map exp %4\n"
        "return %5, %3"
    )


def grown(x: Any, axis: int) -> Any:
    parts = [x]
    for _ in range(4):
        parts.append(jnp.tanh(jnp.concatenate(parts, axis).sum(axis, keepdims=True)))
    return jnp.concatenate(parts, axis).sum()


@pytest.mark.parametrize("axis", [0, 1])
def test_all_prefixes_share_the_longest(axis: int) -> None:
    graph, decisions = shared(lambda x: grown(x, axis), f32(40, 40))
    assert len([op for op in graph if op.kind == "empty"]) == 1
    assert [d.applied for d in decisions] == [True] * 3


def inserted_twice(x: Any, y: Any, z: Any) -> Any:
    c = jnp.concatenate([x, y])
    return jnp.concatenate([z, c]), jnp.concatenate([c, z, z])


REFUSED = {
    "it is wanted in memory of its own, by return": lambda x, y, z: (
        jnp.concatenate([x, y]),
        jnp.concatenate([x, y, z]),
    ),
    "it is wanted in memory of its own, by insert_slice": inserted_twice,
    "rows of 24 bytes apart are slower to read than to copy together": lambda x, y, z: (
        jnp.exp(jnp.concatenate([x.T, y.T], 1)),
        jnp.concatenate([x.T, y.T, z.T], 1),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_dont_share(reason: str) -> None:
    _, decisions = shared(REFUSED[reason], f32(3, 16), f32(3, 16), f32(3, 16))
    assert reason in [decision.reason for decision in decisions if not decision.applied]


def test_a_box_within_a_block_of_another_shape() -> None:
    text = """graph @f(%x: f32[2,16], %y: f32[2,16], %z: f32[1,32], %w: f32[4,16]) {
      %0: f32[4,16] = empty
      %1: f32[4,16] = insert_slice %x into %0 at (0, 0)
      %2: f32[4,16] = insert_slice %y into %1 at (2, 0)
      %3: f32[4,16] = map exp %2
      %4: f32[5,32] = empty
      %5: f32[5,32] = insert_slice %x into %4 at (0, 0)
      %6: f32[5,32] = insert_slice %y into %5 at (2, 0)
      %7: f32[5,32] = insert_slice %z into %6 at (4, 0)
      %8: f32[5,32] = insert_slice %w into %7 at (0, 16)
      return %3, %8
    }"""
    assert "= extract_slice" in rewritten(STEP, text)


def test_dont_share_what_is_overwritten_later() -> None:
    text = """graph @f(%x: f32[2,16], %y: f32[2,16]) {
      %0: f32[4,16] = empty
      %1: f32[4,16] = insert_slice %x into %0 at (0, 0)
      %2: f32[4,16] = insert_slice %y into %1 at (2, 0)
      %3: f32[4,16] = map exp %2
      %4: f32[6,16] = empty
      %5: f32[6,16] = insert_slice %x into %4 at (0, 0)
      %6: f32[6,16] = insert_slice %y into %5 at (2, 0)
      %7: f32[6,16] = insert_slice %y into %6 at (3, 0)
      return %3, %7
    }"""
    assert unchanged(STEP, text)  # its parts overlap: it is no concatenation


# ------------------------------------------------------------- boxes and nesting


def test_new_parts_may_come_first() -> None:
    text = """graph @f(%x: f32[2,16], %y: f32[3,16]) {
      %0: f32[5,16] = empty
      %1: f32[5,16] = insert_slice %y into %0 at (0, 0)
      %2: f32[5,16] = insert_slice %x into %1 at (3, 0)
      %3: f32[5,16] = map exp %2
      %4: f32[10,16] = empty
      %5: f32[10,16] = insert_slice %3 into %4 at (0, 0)
      %6: f32[10,16] = insert_slice %y into %5 at (5, 0)
      %7: f32[10,16] = insert_slice %x into %6 at (8, 0)
      return %7
    }"""
    assert rewritten(STEP, text) == (
        "%0: f32[10,16] = empty\n"
        "%1: f32[10,16] = insert_slice %y into %0 at (5, 0)\n"
        "%2: f32[10,16] = insert_slice %x into %1 at (8, 0)\n"
        "%3: f32[5,16] = extract_slice %2 at (5, 0)\n"
        "%4: f32[5,16] = map exp %3\n"
        "%5: f32[10,16] = insert_slice %4 into %2 at (0, 0)\n"
        "return %5"
    )


def nested(order: Any) -> Any:
    """concatenate(concatenate(x, a), b), ..., where each of these is read, too."""

    def fn(x: Any) -> Any:
        for _ in range(4):
            x = jnp.concatenate(order(x, jnp.tanh(x.sum(0, keepdims=True))))
        return x.sum()

    return fn


ORDERS = {
    "old first": lambda old, new: [old, new],
    "new first": lambda old, new: [new, old],
    "on both sides": lambda old, new: [new, old, new * 2],
}


@pytest.mark.parametrize("order", ORDERS)
def test_nested_concatenations_are_one_buffer(order: str) -> None:
    graph, decisions = shared(nested(ORDERS[order]), f32(8, 32))
    assert len([op for op in graph if op.kind == "empty"]) == 1
    assert [d.applied for d in decisions] == [True] * 3


def test_a_concatenation_within_a_pad() -> None:
    def fn(x: Any, y: Any) -> Any:
        c = jnp.concatenate([jnp.exp(x), y])
        return jnp.pad(c, ((1, 2), (0, 0))), c.sum(0)

    graph, decisions = shared(fn, f32(3, 32), f32(2, 32))
    assert [d.applied for d in decisions] == [True]
    assert not [op for op in graph if op.kind == "empty"]


def test_returned_inner_ones_keep_a_buffer() -> None:
    def fn(x: Any) -> Any:
        kept = []
        for _ in range(3):
            x = jnp.concatenate([x, jnp.tanh(x.sum(0, keepdims=True))])
            kept.append(x)
        return kept

    _, decisions = shared(fn, f32(8, 32))
    reasons = {decision.reason for decision in decisions}
    assert reasons == {"it is wanted in memory of its own, by return"}


def test_long_chains_do_not_take_quadratic_time() -> None:
    """Each of the concatenations is a part of the next: looked at once."""

    def fn(x: Any) -> Any:
        for _ in range(60):
            x = jnp.concatenate([x, jnp.tanh(x[:1])])
        return x.sum()

    graph, _ = shared(fn, f32(1, 32))
    inserts = [op for op in graph if op.kind == "insert_slice"]
    assert len(inserts) <= 2 * 60 + 2


# ------------------------------------------------------------------ memory budget


def read_early_and_late(x: Any, y: Any, w: Any) -> Any:
    """Sharing keeps x and y of the last concatenation alive while the large products are."""
    early = lax.cummax(jnp.concatenate([x, y]), 0).sum(0) @ w
    large = lax.cumsum(jnp.outer(early, early), 0)
    again = lax.cumsum(large, 1)
    b = (large @ again)[:8, :64]
    return lax.cumsum(jnp.concatenate([x, y, b]), 0).sum(1)


EARLY_AND_LATE = (f32(64, 64), f32(64, 64), f32(64, 256))


def budget_plan(budget: int | None, *disable: str) -> Any:
    options = Options(memory_budget=budget, disable=disable, verify=True)
    return stagejit.jit(read_early_and_late, options=options).plan(*EARLY_AND_LATE)


def test_a_budget_that_is_enough_changes_nothing() -> None:
    plan = budget_plan(None)
    (decision,) = (d for d in plan.decisions if d.rewrite == NAME)
    assert decision.applied
    assert decision.loc
    assert budget_plan(plan.peak_nbytes + 100_000).as_text() == plan.as_text()


def test_over_the_budget_both_get_a_buffer() -> None:
    plan = budget_plan(600_000)
    (decision,) = (d for d in plan.decisions if d.rewrite == NAME)
    assert not decision.applied
    assert decision.reason == (
        "over the memory budget of 600000: 34816 bytes moved and at most 821248 in use "
        "while either lives, or 67584 and 786432 stored apart"
    )
    assert plan.as_text() == budget_plan(None, NAME).as_text()
    assert plan.transient_nbytes == budget_plan(None).transient_nbytes + 128 * 64 * 4


def test_no_budget_makes_memory_grow() -> None:
    """Where sharing saves memory, too, no budget is a reason against it."""
    options = Options(memory_budget=0)
    graph = graph_of(lambda x: grown(x, 0), f32(40, 40))
    decisions = rewrite_graph(graph, options)
    assert [d.applied for d in decisions if d.rewrite == NAME] == [True] * 3


def test_the_budget_is_a_number_of_bytes() -> None:
    with pytest.raises(OptionsError, match="memory_budget is -1"):
        Options(memory_budget=-1)


def test_dont_share_other_parts() -> None:
    graph, decisions = shared(
        lambda x, y, z: (jnp.exp(jnp.concatenate([x, y])), jnp.concatenate([y, x, z])),
        f32(3, 16),
        f32(3, 16),
        f32(3, 16),
    )
    assert decisions == []
    assert len([op for op in graph if op.kind == "empty"]) == 2


def test_a_concatenation_twice_in_one() -> None:
    """The second time it is copied from where it lies first, when all of it is there."""

    def f(a: Any) -> Any:
        inner = jnp.concatenate([a, a], 0)
        return jnp.concatenate([inner, inner, a.repeat(2, 0)], 1) + 1

    x = f32(1, 2, 64)
    graph, decisions = shared(f, x)
    assert [d.applied for d in decisions if d.rewrite == NAME] == [True]
    expected = np.concatenate([np.tile(x, (2, 1, 1))] * 3, 1) + 1
    np.testing.assert_array_equal(interpret(graph, [x])[0], expected)
