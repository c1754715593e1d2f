"""fuse-attention: what becomes one op, what does not and why, and that values stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.base.decisions import Decision
from stagejit.base.machine import Machine
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.attention import fuse
from stagejit.rewrites.driving.driver import GraphStep, Log, run_steps
from stagejit.trace.translate import graph_of
from tests.randomness import RNG

GPU = Machine(cores=8, side_by_side=False)


def _attend(log: Log) -> None:
    fuse.fuse_attention(log)


STEP = GraphStep(fuse.NAME, _attend)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


def applied(text: str, machine: Machine = GPU) -> tuple[Graph, list[Decision]]:
    graph = parse(dedent(text))
    return graph, run_steps(graph, (STEP,), Options(verify=True), machine)


def reasons(text: str, machine: Machine = GPU) -> list[str]:
    decisions = applied(text, machine)[1]
    assert not any(decision.applied for decision in decisions)
    return [decision.reason for decision in decisions]


SOFTMAX = """\
    graph @f(%q: f32[8,32,16], %k: f32[8,48,16], %v: f32[8,48,4]) {
      %0: f32[8,32,48] = contract %q, %k batch=((0), (0)) contracting=((2), (2))
      %1: f32[8,32] = reduce max %0 axes=(2)
      %2: f32[8,32,48] = broadcast %1 axes=(0, 1)
      %3: f32[8,32,48] = map sub %0, %2
      %4: f32[8,32,48] = map exp %3
      %5: f32[8,32] = reduce add %4 axes=(2)
      %6: f32[8,32,48] = broadcast %5 axes=(0, 1)
      %7: f32[8,32,48] = map div %4, %6
      %8: f32[8,32,4] = contract %7, %v batch=((0), (0)) contracting=((2), (1))
      return %8
    }"""


def changed(*pairs: tuple[str, str]) -> str:
    text = SOFTMAX
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after, 1)
    return text


def test_a_softmax_of_a_product() -> None:
    graph, decisions = applied(SOFTMAX)
    assert as_text(graph) == dedent("""\
        graph @f(%q: f32[8,32,16], %k: f32[8,48,16], %v: f32[8,48,4]) {
          %0: f32[8,32,4] = attend %q, %k, %v batch=((0), (0)) contracting=((2), (2)) \
value_batch=((0), (0)) value_contracting=((2), (1))
            graph @scores(%x: f32[8,32,48]) {
              return %x
            }
            graph @weights(%x: f32[8,32,48]) {
              return %x
            }
          return %0
        }""")
    assert [decision.reason for decision in decisions] == [
        "f32[8,32,48] of scores are never stored"
    ]


def test_the_text_parses_back() -> None:
    graph = applied(SOFTMAX)[0]
    assert as_text(parse(as_text(graph))) == as_text(graph)


# ------------------------------------------------------------------ what does not, and why


def test_dont_where_workers_run_kernels_side_by_side() -> None:
    assert reasons(SOFTMAX, Machine(cores=8)) == []


def test_dont_where_weights_are_a_result() -> None:
    (reason,) = reasons(changed(("return %8", "return %8, %7")))
    assert reason.startswith("the caller reads map.")


def test_dont_where_somebody_else_reads_scores() -> None:
    text = changed(("return %8", "%9: f32[8,32,48] = map tanh %0\n      return %8, %9"))
    (reason,) = reasons(text)
    assert reason.startswith("map.")
    assert "reads contract." in reason


def test_dont_where_the_sums_are_a_result() -> None:
    (reason,) = reasons(changed(("return %8", "return %8, %5")))
    assert "reads reduce." in reason


def test_dont_where_scores_are_no_product() -> None:
    text = changed(
        ("%q: f32[8,32,16], %k: f32[8,48,16]", "%s: f32[8,32,48]"),
        ("contract %q, %k batch=((0), (0)) contracting=((2), (2))", "map tanh %s"),
    )
    assert reasons(text) == ["its scores are no product of queries and keys"]


def test_dont_where_what_is_subtracted_is_not_the_maximum() -> None:
    expected = ["what is subtracted is not the largest score of its row"]
    assert reasons(changed(("reduce max", "reduce min"))) == expected
    other = changed(("reduce max %0", "reduce max %9"), ("%1:", "%9: f32[8,32,48] = map neg %0\n"
                    "      %1:"))  # fmt: skip
    assert reasons(other) == expected


def test_dont_where_nothing_is_subtracted() -> None:
    assert reasons(changed(("map sub", "map add"))) == ["nothing is subtracted from the scores"]


def test_dont_where_the_divisor_is_no_sum_of_the_row() -> None:
    text = changed(("reduce add %4", "reduce max %4"))
    assert reasons(text) == ["what it is divided by is no sum of its row"]
    text = changed(("reduce add %4", "reduce add %3"))
    assert reasons(text) == ["what it is divided by sums something else"]


SQUARE = SOFTMAX.replace("48", "32")


def test_dont_sum_over_other_axes_than_the_softmax() -> None:
    text = SQUARE.replace("contracting=((2), (1))", "contracting=((1), (1))")
    assert reasons(text) == ["the product sums over other axes than the softmax"]


def test_dont_where_the_softmax_is_along_more_axes() -> None:
    text = """\
        graph @f(%q: f32[32,16], %k: f32[8,6,16], %v: f32[6,4]) {
          %0: f32[32,8,6] = contract %q, %k batch=((), ()) contracting=((1), (2))
          %1: f32[32,8] = reduce max %0 axes=(2)
          %2: f32[32,8,6] = broadcast %1 axes=(0, 1)
          %3: f32[32,8,6] = map sub %0, %2
          %4: f32[32,8,6] = map exp %3
          %5: f32[32,8] = reduce add %4 axes=(2)
          %6: f32[32,8,6] = broadcast %5 axes=(0, 1)
          %7: f32[32,8,6] = map div %4, %6
          %8: f32[32,8,4] = contract %7, %v batch=((), ()) contracting=((2), (0))
          return %8
        }"""
    assert reasons(text) == ["a row is not what the keys of a query give"]
    both = text.replace("%v: f32[6,4]", "%v: f32[8,6,4]").replace(
        "%8: f32[32,8,4] = contract %7, %v batch=((), ()) contracting=((2), (0))",
        "%8: f32[32,4] = contract %7, %v batch=((), ()) contracting=((1, 2), (0, 1))",
    )
    assert reasons(both) == ["the product sums over other axes than the softmax"]


def test_dont_where_queries_with_the_same_keys_have_other_values() -> None:
    text = changed(("%v: f32[8,48,4]", "%v: f32[32,48,4]"),
                   ("%8: f32[8,32,4] = contract %7, %v batch=((0), (0))",
                    "%8: f32[32,8,4] = contract %7, %v batch=((1), (0))"))  # fmt: skip
    assert reasons(text) == ["queries that share their keys differ in values"]


def test_dont_where_weights_are_no_multiples() -> None:
    text = changed(("%8:", "%9: f32[8,32,48] = map mul %7, %7\n      %8:"),
                   ("contract %7", "contract %9"))  # fmt: skip
    assert reasons(text) == ["its weights are no multiples of a softmax"]


def test_dont_where_weights_read_scores() -> None:
    text = changed(("%8:", "%9: f32[8,32,48] = map mul %7, %0\n      %8:"),
                   ("contract %7", "contract %9"))  # fmt: skip
    assert reasons(text) == ["what it reads is made of its scores"]


def test_dont_where_rows_mix() -> None:
    text = SQUARE.replace(
        "%1: f32[8,32] = reduce max %0",
        "%9: f32[8,32,32] = reverse %0 axes=(1)\n      %1: f32[8,32] = reduce max %9",
    ).replace("sub %0", "sub %9")
    assert reasons(text) == ["scores and weights mix axes of the product"]


WHERE = """\
    graph @f(%q: f32[32,16], %k: f32[48,16], %v: f32[48,4], %m: bool[32,48]) {
      %low: f32[] = const -inf
      %lows: f32[32,48] = fill %low
      %zero: f32[] = const 0.0
      %zeros: f32[32,48] = fill %zero
      %0: f32[32,48] = contract %q, %k batch=((), ()) contracting=((1), (1))
      %9: f32[32,48] = map select %m, %0, %lows
      %1: f32[32] = reduce max %9 axes=(1)
      %2: f32[32,48] = broadcast %1 axes=(0)
      %3: f32[32,48] = map sub %9, %2
      %4: f32[32,48] = map exp %3
      %10: f32[32,48] = map select %m, %4, %zeros
      %5: f32[32] = reduce add %10 axes=(1)
      %6: f32[32,48] = broadcast %5 axes=(0)
      %7: f32[32,48] = map div %4, %6
      %11: f32[32,48] = map select %m, %7, %zeros
      %8: f32[32,4] = contract %11, %v batch=((), ()) contracting=((1), (0))
      return %8
    }"""


def test_what_is_present_is_a_second_result_of_scores() -> None:
    graph = applied(WHERE)[0]
    (op,) = (op for op in graph if op.definition.applies)
    assert len(op.attrs["scores"].outputs) == 2
    assert op.operands[3] is graph.inputs[3]


def test_dont_where_weights_of_what_is_not_present_stay() -> None:
    text = WHERE.replace("contract %11", "contract %7")
    assert reasons(text) == ["rows without an element would have weights"]


def test_dont_where_few_queries_keep_few_workers_busy() -> None:
    text = (
        changed().replace("8,32", "1,1").replace("8,48", "1,100000").replace("1,1,48", "1,1,100000")
    )
    (reason,) = reasons(text, replace(GPU, cores=132, peak_flops=1e9))
    assert reason.startswith("1 rows of queries keep few workers busy: ")


# ------------------------------------------------------------------ values


def _scores(q: Any, k: Any) -> Any:
    return q @ jnp.swapaxes(k, -1, -2)


def _causal(q: Any, k: Any, v: Any) -> Any:
    s = jnp.where(jnp.tril(jnp.ones((20, 20), bool)), _scores(q, k), -jnp.inf)
    return jax.nn.softmax(s, -1) @ v


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "causal": (_causal, (normal(2, 20, 8), normal(2, 20, 8), normal(2, 20, 4))),
    "bias": (lambda q, k, v, b: jax.nn.softmax(jnp.tanh(_scores(q, k)) + b, -1) @ v,
             (normal(2, 3, 20, 8), normal(2, 3, 20, 8), normal(2, 3, 20, 4), normal(3, 20, 20))),
    "where": (lambda q, k, v, m: jax.nn.softmax(_scores(q, k), -1, where=m) @ v,
              (normal(20, 8), normal(20, 8), normal(20, 4), normal(20, 20) > 0)),
    "dropout": (lambda q, k, v, m: jnp.where(m, jax.nn.softmax(_scores(q, k), -1) / 0.9, 0) @ v,
                (normal(20, 8), normal(20, 8), normal(20, 4), normal(20, 20) > 0)),
    "grouped": (jax.nn.dot_product_attention,
                (normal(2, 20, 6, 8), normal(2, 20, 2, 8), normal(2, 20, 2, 8))),
    "one batch of one": (lambda q, k, v: jax.nn.softmax(_scores(q, k), -1) @ v,
                         (normal(2, 1, 20, 8), normal(2, 1, 20, 8), normal(2, 1, 20, 4))),
    "two products": (lambda q, k, v, r: jax.nn.softmax(_scores(q, k) + _scores(q, r), -1) @ v,
                     (normal(20, 8), normal(20, 8), normal(20, 4), normal(20, 8))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_switching_it_off_gives_the_same_values(name: str) -> None:
    function, args = PROGRAMS[name]
    fused, apart = graph_of(function, *args), graph_of(function, *args)
    rewrite_graph(fused, Options(verify=True), GPU)
    decisions = rewrite_graph(apart, Options(verify=True, disable=(fuse.NAME,)), GPU)
    assert any(op.definition.applies for op in fused)
    assert not any(op.definition.applies for op in apart)
    assert not any(decision.rewrite == fuse.NAME for decision in decisions)
    given = [np.asarray(x) for x in args]
    for a, b in zip(interpret(fused, given), interpret(apart, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_what_both_bodies_read_is_one_operand() -> None:
    function, args = PROGRAMS["where"]
    graph = graph_of(function, *args)
    rewrite_graph(graph, Options(verify=True), GPU)
    (op,) = (op for op in graph if op.definition.applies)
    assert len(op.operands) == 4


def test_positions_that_are_a_constant_are_counted() -> None:
    function, args = PROGRAMS["causal"]

    def seen(q: Any, k: Any, v: Any) -> Any:
        at = jnp.arange(20)
        s = jnp.where(at[:, None] >= at[None, :], _scores(q, k), -jnp.inf)
        return jax.nn.softmax(s, -1) @ v

    fused, apart = graph_of(seen, *args), graph_of(function, *args)
    rewrite_graph(fused, Options(verify=True), GPU)
    (op,) = (op for op in fused if op.definition.applies)
    assert len(op.operands) == 3
    given = [np.asarray(x) for x in args]
    for a, b in zip(interpret(fused, given), interpret(apart, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_a_gradient_keeps_its_weights() -> None:
    function, args = PROGRAMS["causal"]
    graph = graph_of(jax.grad(lambda *x: function(*x).sum(), (0, 1, 2)), *args)
    decisions = rewrite_graph(graph, Options(verify=True), GPU)
    assert not any(op.definition.applies for op in graph)
    assert all(not d.applied for d in decisions if d.rewrite == fuse.NAME)
