"""The driver: decisions, switches, locations, order of work, and rules that misbehave."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.base.decisions import Decision
from stagejit.base.loc import Loc
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import SWITCHES, Options
from stagejit.rewrites import STEPS, algebra, constants, rewrite_graph, subexpressions
from stagejit.rewrites.driving.driver import (
    GraphStep,
    LocalStep,
    Log,
    Outcome,
    Rule,
    declined,
    rewrite,
    run_steps,
)
from stagejit.rewrites.moving import views
from stagejit.trace.translate import graph_of
from stagejit.types import f32
from tests.strategies import RandomProgram, programs

TEXT = """graph @f(%x: f32[4]) {
  %0: f32[4] = map neg %x  // model.py:3
  %1: f32[4] = map neg %0  // model.py:4
  return %1
}"""
OURS = sorted({name for step in STEPS for name in step.switches})


@rewrite("simplify-algebra", roots="map")
def neg_neg(graph: Graph, op: Op) -> Outcome:
    """neg (neg %x)  -->  %x"""
    inner = op.operands[0].op
    return inner.operands[0] if inner.kind == "map" else None


def test_a_decision_has_the_rewrite_the_op_the_reason_and_the_line() -> None:
    graph = parse(TEXT)
    decisions = run_steps(graph, (LocalStep("s", (neg_neg,)),), Options(verify=True))
    assert decisions == [
        Decision("simplify-algebra", "map.3 neg: f32[4]", True, "neg (neg %x)  -->  %x",
                 Loc("model.py", 4))
    ]  # fmt: skip
    assert str(decisions[0]).startswith("applied simplify-algebra @ map.3 neg: f32[4]: neg (neg")
    assert len(graph) == 0


def test_a_disabled_rewrite_leaves_the_graph_alone() -> None:
    graph = parse(TEXT)
    assert not run_steps(
        graph, (LocalStep("s", (neg_neg,)),), Options(disable=("simplify-algebra",))
    )
    assert as_text(graph, with_locs=True) == TEXT


def test_new_ops_get_the_location_of_the_op_they_replace() -> None:
    @rewrite("simplify-algebra", roots="map")
    def to_abs(graph: Graph, op: Op) -> Outcome:
        """neg  -->  abs"""
        if op.attrs["fn"] != "neg":
            return None
        return build(graph, "map", op.operands, fn="abs", dtype=f32)

    graph = parse(TEXT)
    run_steps(graph, (LocalStep("s", (to_abs,)),), Options(verify=True))
    assert [(op.attrs["fn"], op.loc.line) for op in graph] == [("abs", 3), ("abs", 4)]


def test_a_reason_is_recorded_once() -> None:
    @rewrite("simplify-algebra", roots="map")
    def never(graph: Graph, op: Op) -> Outcome:
        """map  -->  nothing"""
        return declined("not today")

    graph = parse(TEXT)
    decisions = run_steps(graph, (LocalStep("a", (never,)), LocalStep("b", (never,))), Options())
    assert [(d.op, d.applied, d.reason) for d in decisions] == [
        ("map.2 neg: f32[4]", False, "not today"), ("map.3 neg: f32[4]", False, "not today")
    ]  # fmt: skip


def test_rules_that_do_not_end_are_an_internal_error() -> None:
    @rewrite("simplify-algebra", roots="map")
    def again(graph: Graph, op: Op) -> Outcome:
        """map  -->  the same map"""
        return build(graph, "map", op.operands, **op.attrs)

    with pytest.raises(InternalError, match="do not end") as caught:
        run_steps(parse(TEXT), (LocalStep("s", (again,)),), Options())
    assert "graph @f" in caught.value.dump


def test_a_replacement_of_another_type_is_an_internal_error() -> None:
    @rewrite("simplify-algebra", roots="map")
    def shrink(graph: Graph, op: Op) -> Outcome:
        """map  -->  a slice"""
        return build(graph, "extract_slice", [op.operands[0]], offsets=(0,), sizes=(2,),
                     strides=(1,))  # fmt: skip

    with pytest.raises(InternalError, match="simplify-algebra replaced"):
        run_steps(parse(TEXT), (LocalStep("s", (shrink,)),), Options())


def test_verification_between_steps_names_the_step() -> None:
    def damage(log: Log) -> None:
        log.graph.add("reverse", [log.graph.inputs[0]], log.graph.inputs[0].type, axes=(7,))
        log.graph.set_outputs([list(log.graph)[-1].result])

    step = GraphStep("fold-views", damage)
    with pytest.raises(InternalError, match="in step 'fold-views'"):
        run_steps(parse(TEXT), (step,), Options(verify=True))
    run_steps(parse(TEXT), (step,), Options())


def test_effects_survive_every_step() -> None:
    import jax

    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: None, x, ordered=True)
        return x + 1

    graph = graph_of(f, np.ones(3, np.float32))
    rewrite_graph(graph, Options(verify=True))
    assert [op.kind for op in graph].count("delegate") == 1


def test_names_of_rewrites_are_switches() -> None:
    assert set(OURS) <= SWITCHES.keys()


def test_each_switch_is_asked_for_somewhere() -> None:
    package = Path(stagejit.__file__).parent
    sources = (path for path in package.rglob("*.py") if path.name != "options.py")
    text = "".join(path.read_text() for path in sources)
    assert [name for name in SWITCHES if f'"{name}"' not in text] == []


def test_work_grows_with_the_graph_not_with_its_square() -> None:
    def f(x: Any, n: int) -> Any:
        for _ in range(n):
            x = jnp.negative(-(x.T.T + 1.0))
        return x

    def seconds(n: int) -> float:
        graph = graph_of(lambda x: f(x, n), np.ones((2, 2), np.float32))
        start = time.perf_counter()
        rewrite_graph(graph, Options())
        assert len(graph) == n + 2
        return time.perf_counter() - start

    seconds(20)
    assert seconds(600) < 40 * seconds(60) + 0.5


# ------------------------------------------------------------------ ablation


def example(x: Any, i: Any) -> Any:
    y = jnp.where(x > 0, x * 1, jnp.negative(-x)).T.T + jnp.zeros_like(x)
    padded = jnp.pad(jnp.pad(x, 1), 1)
    chosen = x[i % 4] + jnp.arange(3) * 2
    return jnp.exp(y)[1:][:2], jnp.exp(y).at[2 - 1].set(2.0), chosen, padded


# split-reduce, split-scan, map-parts, share-pads and spread-repeats add ops, overlay-parts and
# overlay-rows want a machine, skip-zeros only says something of one; the ablations of those on
# loops, branches and prefixes are in their own tests.
ELSEWHERE = {"split-reduce", "split-scan", "spread-repeats", "border-buffers", "share-prefixes",
             "map-parts", "share-pads", "overlay-parts", "overlay-rows",
             "simplify-loops", "simplify-branches", "update-branches", "select-updates",
             "fuse-insert", "sum-to-contract", "contract-to-sum", "tile-and-fuse", "skip-zeros",
             "fuse-attention", "scale-weights", "store-weights", "evaluate-weights",
             "join-indices"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(OURS) - ELSEWHERE))
def test_switching_a_rewrite_off_leaves_more_ops_and_the_same_values(name: str) -> None:
    x, i = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.int32(2)
    full, ablated = graph_of(example, x, i), graph_of(example, x, i)
    applied = rewrite_graph(full, Options(verify=True))
    rest = rewrite_graph(ablated, Options(verify=True, disable=(name,)))
    assert any(d.rewrite == name and d.applied for d in applied)
    assert not any(d.rewrite == name for d in rest)
    assert len(ablated) > len(full)
    for a, b in zip(interpret(full, [x, i]), interpret(ablated, [x, i]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.fuzz
@given(programs(), st.sets(st.sampled_from(OURS)))
def test_any_subset_of_rewrites_keeps_every_value(
    program: RandomProgram, disabled: set[str]
) -> None:
    graph = graph_of(program.fn, *program.args)
    before = interpret(graph, program.args)
    rewrite_graph(graph, Options(verify=True, disable=tuple(disabled)))
    for ours, theirs in zip(interpret(graph, program.args), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    text = as_text(graph)
    assert as_text(parse(text)) == text


LOCAL = (*views.RULES, *algebra.RULES, *constants.RULES)


@pytest.mark.fuzz
@given(programs(), st.permutations(LOCAL), st.booleans())
def test_any_order_of_rules_keeps_every_value(
    program: RandomProgram, rules: list[Rule], common_first: bool
) -> None:
    graph = graph_of(program.fn, *program.args)
    before = interpret(graph, program.args)
    simplify = LocalStep("simplify", tuple(rules))
    common = LocalStep("common", (), subexpressions.SHARING)
    run_steps(graph, (common, simplify) if common_first else (simplify, common),
              Options(verify=True))  # fmt: skip
    for ours, theirs in zip(interpret(graph, program.args), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.fuzz
@given(programs())
def test_who_looks_changes_no_decision(program: RandomProgram) -> None:
    plain, watched, verified = (graph_of(program.fn, *program.args) for _ in range(3))
    seen: list[Decision] = []
    decisions = rewrite_graph(plain, Options())
    assert (
        rewrite_graph(watched, Options(), watch=lambda _, __, made: seen.extend(made)) == decisions
    )
    assert rewrite_graph(verified, Options(verify=True)) == decisions
    assert seen == [each for each in decisions if each in seen]
    assert as_text(plain) == as_text(watched) == as_text(verified)
