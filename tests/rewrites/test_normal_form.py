"""Normal form: returned values have memory of their own, and bodies read arrays as inputs."""

from __future__ import annotations

from textwrap import dedent

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import VerificationError
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.rewrites.normal_form import normalize, verify_normal_form

OUTPUTS = """\
graph @f(%x: f32[3]) {
  %0: f32[3] = const [0.0, 1.0, 2.0]
  %1: f32[] = const 1.0
  %2: f32[3] = fill %1
  %3: f32[3] = map add %x, %2
  return %x, %3, %3, %0
}"""

BODY = """\
graph @f(%x: f32[3]) {
  %0: f32[3] = loop %x carries=1 reverse=false trip=4 xs=0
    graph @body(%c: f32[3] donated) {
      %0: f32[3] = const [0.0, 1.0, 2.0]
      %1: f32[3] = map mul %c, %0
      return %1
    }
  return %0
}"""

CONDITION = """\
graph @f(%x: f32[3]) {
  %0: f32[3] = loop %x carries=1 reverse=false trip=none xs=0
    graph @body(%c: f32[3] donated) {
      %0: f32[3] = const [0.0, 1.0, 2.0]
      %1: f32[3] = map mul %c, %0
      return %1
    }
    graph @condition(%c: f32[3]) {
      %0: f32[3] = const [3.0, 1.0, 2.0]
      %1: f32[3] = map mul %c, %0
      %2: f32[] = reduce add %1 axes=(0)
      %3: f32[] = const 100.0
      %4: bool[] = map lt %2, %3
      return %4
    }
  return %0
}"""


def normal(text: str) -> str:
    graph = parse(text)
    normalize(graph)
    verify_normal_form(graph)
    made = as_text(graph)
    normalize(graph)
    assert as_text(graph) == made  # once is enough
    return made


def test_what_is_somebody_elses_is_copied() -> None:
    assert normal(OUTPUTS).splitlines()[5:-1] == [
        "  %4: f32[3] = reshape %x",
        "  %5: f32[3] = reshape %3",
        "  %6: f32[3] = reshape %0",
        "  return %4, %3, %5, %6",
    ]


def test_arrays_of_constants_come_from_outside() -> None:
    assert normal(BODY) == dedent("""\
        graph @f(%x: f32[3]) {
          %0: f32[3] = const [0.0, 1.0, 2.0]
          %1: f32[3] = loop %x, %0 carries=1 reverse=false trip=4 xs=0
            graph @body(%c: f32[3] donated, %const1: f32[3]) {
              %0: f32[3] = map mul %c, %const1
              return %0
            }
          return %1
        }""")


def test_arrays_of_a_condition_too() -> None:
    made = normal(CONDITION)
    assert "graph @condition(%c: f32[3], %const1: f32[3])" in made
    values = [np.array([2.0, 3.0, 4.0], np.float32)]
    np.testing.assert_array_equal(
        interpret(parse(made), values), interpret(parse(CONDITION), values)
    )


def test_a_carry_that_stays_where_it_is_is_no_copy() -> None:
    text = BODY.replace("return %1\n    }", "return %c\n    }").replace("const [0.0", "const [1.0")
    assert "return %c" in normal(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [(OUTPUTS, "returns .*, whose memory is not its own"), (BODY, "has an array of constants")],
)
def test_the_verifier_refuses_others(text: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_normal_form(parse(text))


def test_a_plan_changes_no_graph() -> None:
    constant = np.arange(3, dtype=np.float32)

    def f(x: jnp.ndarray) -> tuple[jnp.ndarray, ...]:
        last = lax.fori_loop(0, 4, lambda _, c: c * constant, x)
        return x, last, last, jnp.asarray(constant), x.at[1:].set(last[:2])

    traced = stagejit.jit(f).trace(np.ones(3, np.float32))
    before = as_text(traced.graph)
    assert "dispatch" in traced.plan.as_text()
    assert as_text(traced.graph) == before


def test_equal_constants_of_bodies_are_one() -> None:
    """and one with that of the graph around"""
    loop = BODY.split("\n", 1)[1].rsplit("\n", 2)[0]
    first = "%0: f32[3] = loop %x"
    second, third = (loop.replace(first, f"%{at}: f32[3] = loop %{at - 1}") for at in (1, 2))
    graph = parse("\n".join([
        "graph @f(%x: f32[3]) {", loop, second, third.replace("2.0]", "3.0]"),
        "  %3: f32[3] = const [0.0, 1.0, 2.0]", "  %4: f32[3] = map add %2, %3", "  return %4", "}",
    ]))  # fmt: skip
    normalize(graph)
    verify_normal_form(graph)
    assert [op.kind for op in graph].count("const") == 2
