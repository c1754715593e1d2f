"""simplify-loops: what nothing is computed from leaves a loop; what turns once is none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.trace.translate import graph_of
from tests.rewrites.loops.looping import STEP, X, loop
from tests.rewrites.text_in_out import rewritten, unchanged


def test_results_without_uses_are_not_computed() -> None:
    assert rewritten(STEP, """\
        graph @f(%c: f32[3], %d: f32[3], %x: f32[4,3], %y: f32[4,3]) {
          %0: f32[3], %1: f32[3], %2: f32[4,3], %3: f32[4,3] = loop %c, %d, %x, %y carries=2 """
          """reverse=true trip=4 xs=2
            graph @body(%a: f32[3] donated, %b: f32[3] donated, %p: f32[3], %q: f32[3]) {
              %0: f32[3] = map add %a, %p
              %1: f32[3] = map mul %b, %q
              %2: f32[3] = map exp %b
              return %0, %1, %2, %p
            }
          return %0
        }""") == "\n".join([
            "%0: f32[3] = loop %c, %x carries=1 reverse=true trip=4 xs=1",
            "graph @body(%a: f32[3] donated, %p: f32[3]) {",
            "%0: f32[3] = map add %a, %p",
            "return %0",
            "}",
            "return %0",
        ])  # fmt: skip


def test_what_turns_once_is_no_loop() -> None:
    assert rewritten(STEP, """\
        graph @f(%c: f32[3], %x: f32[1,3], %w: f32[3]) {
          %0: f32[3], %1: f32[1,3] = loop %c, %x, %w carries=1 reverse=false trip=1 xs=1
            graph @body(%a: f32[3] donated, %p: f32[3], %b: f32[3]) {
              %0: f32[3] = map mul %a, %b
              %1: f32[3] = map add %0, %p
              return %1, %0
            }
          return %0, %1
        }""") == "\n".join([
            "%0: f32[3] = reshape %x",
            "%1: f32[3] = map mul %c, %w",
            "%2: f32[3] = map add %1, %0",
            "%3: f32[1,3] = reshape %1",
            "return %2, %3",
        ])  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
def test_what_turns_once_gives_the_same(reverse: bool) -> None:
    def f(x: Any, c: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            inner = lax.scan(lambda c, x: (c @ x + 1, c.sum()), c, x[None], reverse=reverse)
            return lax.cond(c[0, 0] > 0, lambda c: c.at[0].set(2.0), jnp.tanh, inner[0]), inner[1]

        return lax.scan(body, c, x[None], reverse=reverse)

    staged = stagejit.jit(f)
    assert "loop" not in staged.lower(X, X).as_text("graph")
    for got, wanted in zip(jax.tree.leaves(staged(X, X)), jax.tree.leaves(f(X, X)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-6)


def test_dont_inline_what_has_effects() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            jax.debug.callback(lambda: seen.append(1), ordered=True)
            return c + 1, None

        return lax.scan(body, x, None, length=1)[0]

    np.testing.assert_array_equal(stagejit.jit(f)(X), X + 1)
    jax.effects_barrier()
    assert seen == [1]


def test_operands_that_nothing_is_computed_from_are_not_passed() -> None:
    """Of the body and of the condition, even where every result is used and every carry changes."""
    assert rewritten(STEP, """\
        graph @f(%i: i32[], %u: f32[3], %v: f32[3]) {
          %0: i32[] = loop %i, %u, %v carries=1 reverse=false trip=none xs=0
            graph @body(%a: i32[] donated, %b: f32[3]) {
              %0: f32[3] = map exp %b
              %1: i32[] = map add %a, %a
              return %1
            }
            graph @condition(%a: i32[], %c: f32[3]) {
              %0: i32[] = const 9
              %1: bool[] = map lt %a, %0
              return %1
            }
          return %0
        }""") == "\n".join([
            "%0: i32[] = loop %i carries=1 reverse=false trip=none xs=0",
            "graph @body(%a: i32[] donated) {",
            "%0: i32[] = map add %a, %a",
            "return %0",
            "}",
            "graph @condition(%a: i32[]) {",
            "%0: i32[] = const 9",
            "%1: bool[] = map lt %a, %0",
            "return %1",
            "}",
            "return %0",
        ])  # fmt: skip


def test_slices_that_nothing_is_computed_from_are_not_passed() -> None:
    assert rewritten(STEP, """\
        graph @f(%c: f32[3], %x: f32[4,3]) {
          %0: f32[3] = loop %c, %x carries=1 reverse=false trip=4 xs=1
            graph @body(%a: f32[3] donated, %p: f32[3]) {
              %0: f32[3] = map exp %a
              return %0
            }
          return %0
        }""").startswith("%0: f32[3] = loop %c carries=1 reverse=false trip=4 xs=0")  # fmt: skip


def test_a_loop_of_which_nothing_is_used_goes_away() -> None:
    assert (
        rewritten(
            STEP,
            """\
        graph @f(%c: f32[3], %w: f32[3]) {
          %0: f32[3], %1: f32[3] = loop %c, %w carries=2 reverse=false trip=3 xs=0
            graph @body(%a: f32[3] donated, %b: f32[3] donated) {
              %0: f32[3] = map exp %a
              return %0, %b
            }
          return %1
        }""",
        )
        == "return %w"
    )


def test_dont_drop_a_carry_that_another_one_needs() -> None:
    assert unchanged(
        STEP,
        """\
        graph @f(%c: f32[3], %d: f32[3]) {
          %0: f32[3], %1: f32[3] = loop %c, %d carries=2 reverse=false trip=3 xs=0
            graph @body(%a: f32[3] donated, %b: f32[3] donated) {
              %0: f32[3] = map add %a, %b
              %1: f32[3] = map exp %b
              return %0, %1
            }
          return %0
        }""",
    )


def test_what_two_operands_have_in_common_is_computed_once() -> None:
    """They are one value only when what is before the loop has been simplified."""

    def f(x: Any) -> Any:
        a = x * 1.0
        return lax.fori_loop(0, 5, lambda k, c: c @ a + jnp.tanh(c @ x), x)

    graph = graph_of(f, X)
    before = interpret(graph, [X])
    rewrite_graph(graph, Options(verify=True))
    body = loop(graph).attrs["body"]
    assert [op.kind for op in body].count("contract") == 1
    assert len(loop(graph).operands) == len(body.inputs) == 2  # the carry and x
    for a, b in zip(interpret(graph, [X]), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_slices_and_constants_of_one_value_are_two() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row @ (x * 1.0), row), x[0] * 0, x)

    graph = graph_of(f, X)
    before = interpret(graph, [X])
    rewrite_graph(graph, Options(verify=True))
    for a, b in zip(interpret(graph, [X]), before, strict=True):
        np.testing.assert_array_equal(a, b)
