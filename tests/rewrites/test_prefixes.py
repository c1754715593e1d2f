"""share-prefixes: concatenations that grow are one buffer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.decisions import Decision
from stagejit.graph.build import graph_of
from stagejit.graph.interpreter import interpret
from stagejit.graph.ir import Graph
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driver import GraphStep
from stagejit.rewrites.prefixes import NAME, share_prefixes
from tests.rewrites.text_in_out import reasons, rewritten

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


REFUSED = {
    "it is wanted in memory of its own, by return": lambda x, y, z: (
        jnp.concatenate([x, y]),
        jnp.concatenate([x, y, z]),
    ),
    "it is wanted in memory of its own, by insert_slice": lambda x, y, z: (
        jnp.concatenate([z, jnp.concatenate([x, y])]),
        jnp.concatenate([x, y, z]),
    ),
    "rows of 24 bytes apart are slower to read than to copy together": lambda x, y, z: (
        jnp.exp(jnp.concatenate([x.T, y.T], 1)),
        jnp.concatenate([x.T, y.T, z.T], 1),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_dont_share(reason: str) -> None:
    _, decisions = shared(REFUSED[reason], f32(3, 16), f32(3, 16), f32(3, 16))
    assert reason in [decision.reason for decision in decisions if not decision.applied]


def test_dont_share_with_a_longer_one_of_another_shape() -> None:
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
    assert reasons(STEP, text) == ["the longer one has another shape"]


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
    assert reasons(STEP, text) == ["later parts lie between the first ones"]


def test_dont_share_other_parts() -> None:
    graph, decisions = shared(
        lambda x, y, z: (jnp.exp(jnp.concatenate([x, y])), jnp.concatenate([y, x, z])),
        f32(3, 16),
        f32(3, 16),
        f32(3, 16),
    )
    assert decisions == []
    assert len([op for op in graph if op.kind == "empty"]) == 2
