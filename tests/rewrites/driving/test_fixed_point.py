"""Simplification and sharing reach a fixed point together, and rules are asked again when fewer
read a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from random import Random
from types import CodeType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.graph.ir import Graph, Value
from stagejit.graph.links import Links
from stagejit.graph.ops import build
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites import SIMPLIFY, rewrite_graph
from stagejit.rewrites.driving.driver import LocalStep, Rule, run_steps
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, bool_, f32, f64
from tests.rewrites.text_in_out import rewritten

SHAPE = (2, 3)
FUNCTIONS = ("exp", "sin", "tanh", "cos", "floor", "abs")
LEVELS = 6


class Disguised:
    """A chain of functions that is computed several times, each time in another disguise.

    To see that two of them are one, a rule has to undo the disguise, then both are shared, then a
    choice between them is none, then those that read the choice are shared, and so on.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.graph = Random(seed), Graph("f")
        self.x = self.graph.add_input("x", TensorType(f32, SHAPE))
        self.p = self.graph.add_input("p", TensorType(bool_, SHAPE))
        self.graph.set_outputs([self.level(LEVELS)])

    def level(self, number: int) -> Value:
        if not number:
            return self.x
        either = [self._map(FUNCTIONS[number - 1], self._hidden(self.level(number - 1)))]
        if self.random.random() < 0.7:
            either.append(self._map(FUNCTIONS[number - 1], self._hidden(self.level(number - 1))))
            either = [self._map("select", self.p, *map(self._hidden, either))]
        return self._hidden(either[0])

    def _map(self, fn: str, *operands: Value) -> Value:
        return build(self.graph, "map", operands, fn=fn, dtype=operands[-1].type.dtype)

    def _hidden(self, x: Value) -> Value:
        """`x`, after what changes nothing."""
        match self.random.randrange(7):
            case 0:
                return self._map("neg", self._map("neg", x))
            case 1:
                wide = build(self.graph, "convert", [x], dtype=f64)
                return build(self.graph, "convert", [wide], dtype=f32)
            case 2:
                turned = build(self.graph, "transpose", [x], permutation=(1, 0))
                return build(self.graph, "transpose", [turned], permutation=(1, 0))
            case 3:
                row = build(self.graph, "reshape", [x], shape=(6,))
                return build(self.graph, "reshape", [row], shape=SHAPE)
            case 4:
                one = np.broadcast_to(np.float32(1), ())
                number = self.graph.add("const", (), TensorType(f32, ()), value=one).result
                return self._map("mul", x, build(self.graph, "fill", [number], shape=SHAPE))
            case 5:
                return self._map("select", self.p, x, x)
        return x


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_in_many_disguises_is_one(seed: int) -> None:
    graph = Disguised(seed).graph
    run_steps(graph, (SIMPLIFY,), Options(verify=True))
    plain = "\n".join(
        f"  %{at}: f32[2,3] = map {fn} %{at - 1 if at else 'x'}" for at, fn in enumerate(FUNCTIONS)
    )
    assert as_text(graph) == (
        f"graph @f(%x: f32[2,3], %p: bool[2,3]) {{\n{plain}\n  return %{LEVELS - 1}\n}}"
    )


def test_a_choice_between_equal_values_is_none() -> None:
    def f(p: Any, x: Any) -> Any:
        return jnp.where(p, jnp.exp(x), jnp.exp(x))

    graph = graph_of(f, np.ones(4, bool), np.ones(4, np.float32))
    rewrite_graph(graph, Options(verify=True))
    assert [op.attrs["fn"] for op in graph] == ["exp"]


def test_a_rule_is_asked_again_when_others_stop_reading() -> None:
    """A pad is no padding of the window while somebody else reads it, which is so until what comes
    last has been simplified."""
    attributes = (
        "batch_groups=1 feature_groups=1 lhs_dilation=(1) lhs_spec=(0, 2, 1) out_spec=(0, 2, 1)"
        " padding=(({0}, {0})) rhs_dilation=(1) rhs_spec=(2, 1, 0) strides=(1)"
    )
    text = f"""graph @f(%x: f32[1,5,1], %w: f32[3,1,1]) {{
      %0: f32[] = const 0.0
      %1: f32[1,7,1] = fill %0
      %2: f32[1,7,1] = insert_slice %x into %1 at (0, 1, 0)
      %3: f32[1,5,1] = conv %2, %w {attributes.format(0)}
      %4: f32[1,5,1] = extract_slice %2 at (0, 1, 0)
      return %3, %4
    }}"""
    assert rewritten(SIMPLIFY, text) == (
        f"%0: f32[1,5,1] = conv %x, %w {attributes.format(1)}\nreturn %0, %x"
    )


def named(code: CodeType) -> Iterator[str]:
    """What a function's text names, inside of generator expressions and lambdas, too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from named(inner)


def calls(function: Callable[..., Any], seen: set[Any]) -> set[str]:
    """The names that a function of the package asks for, and those that it calls."""
    if function in seen:
        return set()
    seen.add(function)
    names = set(named(function.__code__))
    for name in set(names):
        callee = function.__globals__.get(name)
        if inspect.isfunction(callee) and callee.__module__.startswith("stagejit.rewrites"):
            names |= calls(callee, seen)
    return names


@pytest.mark.parametrize("rule", SIMPLIFY.rules, ids=lambda rule: rule.function.__name__)
def test_rules_that_count_users_say_so(rule: Rule) -> None:
    asked = calls(rule.function, set()) & {"uses", "users", "is_used", "uses_by_result"}
    assert rule.counts == bool(asked)


def test_replaced_operands_are_linked_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program returns n values, each of which is replaced: n edges go and n come."""
    linked = 0
    link = Links.link

    def counted(*args: Any) -> None:
        nonlocal linked
        linked += 1
        link(*args)

    n = 200
    graph = Graph()
    x = graph.add_input("x", TensorType(f32, SHAPE))
    graph.set_outputs([
        build(graph, "map", [build(graph, "map", [x], fn="neg", dtype=f32)], fn="neg", dtype=f32)
        for _ in range(n)
    ])  # fmt: skip
    assert graph.nx.number_of_edges() == 3 * n  # they are made when they are asked for
    monkeypatch.setattr(Links, "link", counted)
    run_steps(graph, (LocalStep("rules", SIMPLIFY.rules),), Options())
    assert list(graph.outputs) == [x] * n
    assert linked == n
