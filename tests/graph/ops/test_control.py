"""Loops and branches in the graph: types, text, meaning, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from stagejit.errors import ParseError, VerificationError
from stagejit.graph.isomorphic import difference, isomorphic
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import control
from stagejit.graph.ops.control import LoopOperands, bodies_of, body_operands, given, given_at
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of
from tests.loops.programs import CASES, IDS

SCAN = """graph @f(%c: f32[3], %x: f32[4,3], %w: f32[3]) {
  %0: f32[3], %1: f32[4,3] = loop %c, %x, %w carries=1 reverse=false trip=4 xs=1
    graph @body(%carry0: f32[3] donated, %x0: f32[3], %const0: f32[3]) {
      %0: f32[3] = map mul %carry0, %const0
      %1: f32[3] = map add %0, %x0
      return %1, %0
    }
  return %0, %1
}"""
WHILE = """graph @f(%n: i32[]) {
  %0: i32[] = const 0
  %1: i32[] = loop %0, %n carries=1 reverse=false trip=none xs=0
    graph @body(%i: i32[] donated) {
      %0: i32[] = const 1
      %1: i32[] = map add %i, %0
      return %1
    }
    graph @condition(%i: i32[], %n: i32[]) {
      %0: bool[] = map lt %i, %n
      return %0
    }
  return %1
}"""
BRANCH = """graph @f(%p: bool[], %x: f32[3]) {
  %0: f32[3] = branch %p, %x carried=()
    graph @case0(%x0: f32[3]) {
      return %x0
    }
    graph @case1(%x0: f32[3]) {
      %0: f32[3] = map exp %x0
      return %0
    }
  return %0
}"""


@pytest.mark.parametrize("text", [SCAN, WHILE, BRANCH])
def test_text_parses_back(text: str) -> None:
    graph = parse(text)
    verify(graph)
    assert as_text(graph) == text
    assert isomorphic(graph, parse(text))


@pytest.mark.some(2)
@pytest.mark.parametrize(("f", "args"), CASES, ids=IDS)
def test_meaning_and_text(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    graph = graph_of(f, *args)
    verify(graph)
    text = as_text(graph)
    again = parse(text)
    assert as_text(again) == text
    expected = jax.tree.leaves(jax.jit(f)(*args))
    for made in (interpret(graph, args), interpret(again, args)):
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_operands_by_purpose() -> None:
    (loop,) = parse(SCAN).ops()
    c, x, w = loop.operands
    assert LoopOperands.of(loop) == LoopOperands([c], [x], [w], [])
    assert [body.name for body in bodies_of(loop)] == ["body"]
    assert body_operands(loop) == ((c, x, w),)


@pytest.mark.parametrize(("text", "old", "new", "reason"), [
    (SCAN, "trip=4", "trip=5", "does not have 5 slices"),
    (SCAN, "carries=1", "carries=2", "does not have|other types|too few"),
    (SCAN, "donated", "", "carries of a body are donated"),
    (SCAN, "%c, %x, %w", "%x, %x, %w", "not"),
    (SCAN, "return %1, %0\n", "return %1\n", "type should be"),
    (SCAN, "reverse=false", "reverse=0", "reverse is a bool"),
    (WHILE, "trip=none", "trip=3", "with a condition has carries only"),
    (WHILE, "map lt %i, %n\n      return %0", "map lt %i, %n\n      return %i", "gives one bool"),
    (BRANCH, "%p: bool[]", "%p: f32[]", "index is a bool or an i32"),
    (BRANCH, "return %0\n    }", "return %x0, %0\n    }", "different types"),
])  # fmt: skip
def test_dont_accept(text: str, old: str, new: str, reason: str) -> None:
    assert old in text
    with pytest.raises((VerificationError, ParseError), match=reason):
        verify(parse(text.replace(old, new, 1)))


def test_dont_accept_a_loop_without_a_body() -> None:
    lines = SCAN.splitlines()
    with pytest.raises(ParseError, match="a loop has a body"):
        parse("\n".join([*lines[:2], *lines[-2:]]))


def test_dont_accept_faults_inside_a_body() -> None:
    graph = parse(SCAN)
    (loop,) = graph.ops()
    body = loop.attrs["body"]
    body.donated[0] = False
    with pytest.raises(VerificationError, match="donated"):
        verify(graph)
    body.donated[0] = True
    body.add("delegate", (), [], equation=None, reason="", effects=("e",))
    with pytest.raises(VerificationError):
        verify(graph)


def test_graphs_with_other_bodies_differ() -> None:
    assert difference(parse(SCAN), parse(SCAN.replace("map mul", "map sub"))) is not None


def test_updates_of_an_operand_are_the_results_that_take_it_over() -> None:
    def f(p: Any, *xs: Any) -> Any:
        xs = lax.fori_loop(0, 2, lambda i, c: (c[1], c[0], c[2] + 1), xs)
        return lax.cond(p, lambda *c: (c[1] * 2, c[0], c[2]), lambda *c: c, *xs)

    graph = graph_of(f, np.bool_(True), *[np.full(3, at) for at in range(3)])
    ops = [op for op in graph if op.definition.has_bodies]
    assert {op.kind for op in ops} == {"loop", "branch"}
    for op in ops:
        for operand in op.operands:
            expected = [value for value in op.results if control.destination_of(value) is operand]
            assert control.updates_of(op, operand) == expected


@pytest.mark.parametrize("text", [SCAN, WHILE, BRANCH])
def test_what_bodies_are_given_of_one_operand_is_that_of_all(text: str) -> None:
    for op in [op for op in parse(text).ops() if op.definition.has_bodies]:
        found = {at: given_at(op, at) for at in range(len(op.operands))}
        assert {at: inputs for at, inputs in found.items() if inputs} == given(op)
