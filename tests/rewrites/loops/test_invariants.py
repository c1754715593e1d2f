"""simplify-loops: what does not change is computed before a loop, or after it, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.options import Options
from stagejit.rewrites import loops, rewrite_graph
from stagejit.rewrites.driving.driver import run_steps
from stagejit.trace.translate import graph_of
from tests.rewrites.loops.looping import STEP, X, loop
from tests.rewrites.text_in_out import rewritten, unchanged


def test_dear_functions_of_constants_are_computed_before() -> None:
    assert rewritten(STEP, """\
        graph @f(%c: f32[64], %w: f32[64]) {
          %0: f32[64] = loop %c, %w carries=1 reverse=false trip=3 xs=0
            graph @body(%a: f32[64] donated, %b: f32[64]) {
              %0: f32[64] = map exp %b
              %1: f32[64] = map mul %a, %0
              return %1
            }
          return %0
        }""") == "\n".join([
            "%0: f32[64] = map exp %w",
            "%1: f32[64] = loop %c, %0 carries=1 reverse=false trip=3 xs=0",
            "graph @body(%a: f32[64] donated, %hoisted1: f32[64]) {",
            "%0: f32[64] = map mul %a, %hoisted1",
            "return %0",
            "}",
            "return %1",
        ])  # fmt: skip


def test_a_carry_that_does_not_change_is_a_constant() -> None:
    assert rewritten(STEP, """\
        graph @f(%n: i32[], %x: f32[3], %w: f32[3]) {
          %0: i32[] = const 0
          %1: i32[], %2: i32[], %3: f32[3], %4: f32[3] = loop %0, %n, %x, %w carries=4 """
          """reverse=false trip=none xs=0
            graph @body(%i: i32[] donated, %n: i32[] donated, %a: f32[3] donated, """
            """%b: f32[3] donated) {
              %0: i32[] = const 1
              %1: i32[] = map add %i, %0
              %2: f32[3] = map mul %a, %b
              return %1, %n, %2, %b
            }
            graph @condition(%i: i32[], %n: i32[], %a: f32[3], %b: f32[3]) {
              %0: bool[] = map lt %i, %n
              return %0
            }
          return %3, %4
        }""") == "\n".join([
            "%0: i32[] = const 0",
            "%1: i32[], %2: f32[3] = loop %0, %x, %w, %n carries=2 reverse=false trip=none xs=0",
            "graph @body(%i: i32[] donated, %a: f32[3] donated, %b: f32[3]) {",
            "%0: i32[] = const 1",
            "%1: i32[] = map add %i, %0",
            "%2: f32[3] = map mul %a, %b",
            "return %1, %2",
            "}",
            "graph @condition(%i: i32[], %a: f32[3], %n: i32[]) {",
            "%0: bool[] = map lt %i, %n",
            "return %0",
            "}",
            "return %2, %w",
        ])  # fmt: skip


NOT_SURE_TO_TURN = """\
graph @f(%i: i32[], %n: i32[], %c: f32[64], %w: f32[64]) {
  %0: i32[], %1: f32[64] = loop %i, %c, %w, %n carries=2 reverse=false trip=none xs=0
    graph @body(%i: i32[] donated, %a: f32[64] donated, %b: f32[64]) {
      %0: f32[64] = map log %b
      %1: f32[64] = map mul %a, %0
      %2: i32[] = const 1
      %3: i32[] = map add %i, %2
      return %3, %1
    }
    graph @condition(%i: i32[], %a: f32[64], %n: i32[]) {
      %0: bool[] = map lt %i, %n
      return %0
    }
  return %1
}"""


def test_with_checks_nothing_is_computed_before_a_loop_that_may_not_turn() -> None:
    """What is NaN there is none of the program's."""
    for options, hoisted in ((Options(), True), (Options(check_nans=True), False)):
        graph = parse(NOT_SURE_TO_TURN)
        run_steps(graph, [STEP], options)
        assert any(op.attrs.get("fn") == "log" for op in graph) is hoisted


def test_with_checks_what_is_sure_to_turn_has_it_before() -> None:
    sure = """\
graph @f(%c: f32[64], %w: f32[64]) {
  %0: f32[64] = loop %c, %w carries=1 reverse=false trip=3 xs=0
    graph @body(%a: f32[64] donated, %b: f32[64]) {
      %0: f32[64] = map log %b
      %1: f32[64] = map mul %a, %0
      return %1
    }
  return %0
}"""
    graph = parse(sure)
    run_steps(graph, [STEP], Options(check_infs=True))
    assert any(op.attrs.get("fn") == "log" for op in graph)


@pytest.mark.parametrize(
    "body",
    [
        "%0: f32[64] = map neg %b",  # cheap
        "%0: f32[64] = convert %b",
    ],
)
def test_dont_hoist_what_is_cheap(body: str) -> None:
    assert unchanged(
        STEP,
        f"""\
        graph @f(%c: f32[64], %w: f32[64]) {{
          %0: f32[64] = loop %c, %w carries=1 reverse=false trip=3 xs=0
            graph @body(%a: f32[64] donated, %b: f32[64]) {{
              {body}
              %1: f32[64] = map mul %a, %0
              return %1
            }}
          return %0
        }}""",
    )


def test_dont_hoist_what_is_small() -> None:
    assert unchanged(
        STEP,
        """\
        graph @f(%c: f32[8], %w: f32[8]) {
          %0: f32[8] = loop %c, %w carries=1 reverse=false trip=3 xs=0
            graph @body(%a: f32[8] donated, %b: f32[8]) {
              %0: f32[8] = map exp %b
              %1: f32[8] = map mul %a, %0
              return %1
            }
          return %0
        }""",
    )


def test_dont_hoist_what_takes_much_more_memory() -> None:
    """exp of a large array that is made of nothing."""
    assert unchanged(
        STEP,
        """\
        graph @f(%c: f32[1024,512]) {
          %0: f32[1024,512] = loop %c carries=1 reverse=false trip=3 xs=0
            graph @body(%a: f32[1024,512] donated) {
              %0: f32[1024,512] = iota axis=0
              %1: f32[1024,512] = map exp %0
              %2: f32[1024,512] = map mul %a, %1
              return %2
            }
          return %0
        }""",
    )


def invariants(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return jnp.tanh(c @ jnp.exp(x) * 1e-3 + row), (c, jnp.sin(x[0]))

    return lax.scan(step, x[0], x)


def invariants_of_inner_loops(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, d: d + jnp.log(x + 2).sum(0) * row, c), None

    return lax.scan(outer, x[0], x)[0]


def unused(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return (c[0] + row, c[1] * 2 + c[0]), (c[0], c[1])

    carries, ys = lax.scan(step, (x[0], x[1]), x)
    return carries[0], ys[0]


def fixed_carries(x: Any) -> Any:
    return lax.while_loop(
        lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1], s[2] @ s[3], s[3]), (0, 3, x, x)
    )


@pytest.mark.parametrize("f", [invariants, invariants_of_inner_loops, unused, fixed_carries])
def test_results_are_the_same_without_it(f: Callable[..., Any]) -> None:
    full, ablated = graph_of(f, X), graph_of(f, X)
    applied = rewrite_graph(full, Options(verify=True))
    rest = rewrite_graph(ablated, Options(verify=True, disable=(loops.NAME,)))
    verify(full)
    assert any(d.rewrite == loops.NAME and d.applied for d in applied)
    assert not any(d.rewrite == loops.NAME for d in rest)
    assert len(as_text(loop(full).attrs["body"])) < len(as_text(loop(ablated).attrs["body"]))
    for a, b in zip(interpret(full, [X]), interpret(ablated, [X]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_each_iteration_stores_again_is_repeated_after_the_loop() -> None:
    assert rewritten(STEP, """\
        graph @f(%c: f32[2], %x: f32[3,2], %w: f32[2]) {
          %0: f32[2], %1: f32[3,2], %2: f32[3,2], %3: f32[3] = loop %c, %x, %w carries=1 """
          """reverse=false trip=3 xs=1
            graph @body(%a: f32[2] donated, %r: f32[2], %b: f32[2]) {
              %0: f32[2] = map add %a, %r
              %1: f32[2] = map exp %b
              %2: f32[] = const 1.0
              return %0, %1, %r, %2
            }
          return %0, %1, %2, %3
        }""") == "\n".join([
            "%0: f32[2] = loop %c, %x carries=1 reverse=false trip=3 xs=1",
            "graph @body(%a: f32[2] donated, %r: f32[2]) {",
            "%0: f32[2] = map add %a, %r",
            "return %0",
            "}",
            "%1: f32[2] = map exp %w",
            "%2: f32[3,2] = broadcast %1 axes=(1)",
            "%3: f32[] = const 1.0",
            "%4: f32[3] = fill %3",
            "return %0, %2, %x, %4",
        ])  # fmt: skip


def test_a_loop_that_only_stores_the_same_goes() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, r: (c, (w @ w, r, c)), x[0], x, reverse=True)

    graph = graph_of(f, X, X)
    expected = interpret(graph, [X, X])
    rewrite_graph(graph, Options(verify=True))
    assert not [op for op in graph if op.kind == "loop"]
    for a, b in zip(interpret(graph, [X, X]), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_dont_repeat_what_depends_on_the_iteration() -> None:
    assert unchanged(STEP, """\
        graph @f(%c: f32[2], %x: f32[3,2]) {
          %0: f32[2], %1: f32[3,2], %2: f32[3,2] = loop %c, %x carries=1 reverse=false trip=3 xs=1
            graph @body(%a: f32[2] donated, %r: f32[2]) {
              %0: f32[2] = map add %a, %r
              return %0, %a, %0
            }
          return %0, %1, %2
        }""")  # fmt: skip
