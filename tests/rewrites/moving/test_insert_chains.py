"""Reads pass the updates before them that leave their box alone: the same elements as before, in
steps that do not grow with the number of updates. What inserts cover is not filled before."""

from __future__ import annotations

import random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.graph.meaning.interpreter import interpret
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driving.driver import GraphStep
from stagejit.rewrites.moving.insert_chains import NAME, elide_covered_fills
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import rewritten, unchanged

SHAPE = (12, 10)


def random_chain(seed: int) -> Any:
    """Updates of boxes and reads of boxes of one buffer, by turns, some with strides."""

    def f(x: Any) -> Any:
        rng = random.Random(seed)
        results = []
        for _ in range(40):
            parts = []
            for size in SHAPE:
                first = rng.randrange(size)
                stop = min(size, first + rng.choice((1, 1, 2, 4)) * (step := rng.choice((1, 1, 2))))
                parts.append(slice(first, stop, step))
            box = tuple(parts)
            if rng.random() < 0.5:
                x = x.at[box].set(rng.random())
            else:
                results.append(jnp.sum(x[box] * rng.random()))
                x = x.at[box].mul(2.0) if rng.random() < 0.2 else x
        return x, jnp.stack(results or [jnp.zeros(())])

    return f


@pytest.mark.parametrize("seed", range(12))
def test_rewrites_keep_what_is_read(seed: int) -> None:
    x = np.arange(120, dtype=np.float32).reshape(SHAPE)
    graph = graph_of(random_chain(seed), x)
    before = interpret(graph, [x])
    rewrite_graph(graph, Options())
    for a, b in zip(before, interpret(graph, [x]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("distance", [1, 300])
def test_a_read_looks_at_few_updates(distance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    overlaps = Box.overlaps

    def counted(*args: Any) -> bool:
        nonlocal looked
        looked += 1
        return overlaps(*args)

    monkeypatch.setattr(Box, "overlaps", counted)
    updates = 300

    def f(x: Any) -> Any:
        for i in range(updates):
            x = x.at[i].set(x[i + distance] * 2)
        return x

    graph = graph_of(f, np.ones(updates + distance + 1, np.float32))
    rewrite_graph(graph, Options())
    assert looked < 4 * updates
    reads = [op for op in graph.ops() if op.kind == "extract_slice"]
    assert all(read.operands[0].op.kind == "input" for read in reads)


@pytest.mark.parametrize("more", [5, 150])
def test_a_read_of_what_was_read_before_is_followed_at_once(more: int) -> None:
    """A concatenation that is made longer by a row of itself, again and again."""

    def f(x: Any) -> Any:
        for _ in range(more):
            x = jnp.concatenate([x, x[1:2]])
        return x

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = graph_of(f, x)
    rewrite_graph(graph, Options())
    assert [op.kind for op in graph].count("extract_slice") == 1
    np.testing.assert_array_equal(interpret(graph, [x])[0], f(x))


ELIDE = GraphStep(NAME, elide_covered_fills)


def inserts(first: str, second: str, returned: str = "%3") -> str:
    return f"""graph @f(%x: f32[2,3], %y: f32[2,3], %v: f32[], %i: i32[]) {{
      %0: f32[4,3] = fill %v
      %1: f32[4,3] = insert_slice %x into %0 at {first}
      %2: f32[4,3] = insert_slice %y into %1 at {second}
      %3: f32[4,3] = map neg %2
      return {returned}
    }}"""


@pytest.mark.parametrize(
    ("first", "second"), [("(0, 0)", "(2, 0)"), ("(1, 0) strides (2, 1)", "(0, 0) strides (2, 1)")]
)
def test_a_fill_that_inserts_cover_is_empty(first: str, second: str) -> None:
    assert rewritten(ELIDE, inserts(first, second)) == (
        "%0: f32[4,3] = empty\n"
        f"%1: f32[4,3] = insert_slice %x into %0 at {first}\n"
        f"%2: f32[4,3] = insert_slice %y into %1 at {second}\n"
        "%3: f32[4,3] = map neg %2\n"
        "return %3"
    )


def test_numbers_are_covered_too() -> None:
    text = """graph @f(%x: i32[4]) {
      %0: i32[4] = iota axis=0
      %1: i32[4] = insert_slice %x into %0 at (0)
      return %1, %0
    }"""
    assert rewritten(ELIDE, text) == (
        "%0: i32[4] = iota axis=0\n%1: i32[4] = empty\n"
        "%2: i32[4] = insert_slice %x into %1 at (0)\nreturn %2, %0"
    )


def test_dont_take_a_fill_of_which_something_is_left() -> None:
    assert unchanged(ELIDE, inserts("(0, 0)", "(1, 0)"))


def test_dont_take_a_fill_where_a_place_is_not_known() -> None:
    assert unchanged(ELIDE, inserts("(0, 0)", "(%i, 0)"))
    assert unchanged(ELIDE, inserts("(%i, 0)", "(2, 0)"))


def test_dont_take_a_fill_that_is_read_between() -> None:
    assert unchanged(ELIDE, inserts("(0, 0)", "(2, 0)", returned="%1, %3"))
    part = inserts("(0, 0)", "(2, 0)").replace("neg %2", "add %1, %2")
    assert unchanged(ELIDE, part)


def test_dont_take_memory_for_a_fill() -> None:
    text = """graph @f(%x: f32[2], %y: f32[2]) {
      %0: f32[2] = insert_slice %x into %y at (0)
      %1: f32[2] = const [0.0, 1.0]
      %2: f32[2] = insert_slice %x into %1 at (0)
      %3: f32[2] = map neg %y
      %4: f32[2] = insert_slice %x into %3 at (0)
      return %0, %2, %4
    }"""
    assert unchanged(ELIDE, text)
