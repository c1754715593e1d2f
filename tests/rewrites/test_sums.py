"""contract-to-sum: products of computed matrices and vectors as sums, and those that stay."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from stagejit.base.machine import SMALL_SERVER
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from stagejit.rewrites import _simplified, sums
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.types import TensorType, f32
from tests.rewrites.text_in_out import reasons, rewritten, unchanged
from tests.schedule.planning import check_graph

STEP = GraphStep(sums.NAME, sums.sum_products)


def text(m: str = "32,8", v: str = "8", *, axes: str = "((1), (0))", batch: str = "((), ())",
         result: str = "32", swapped: bool = False, dtype: str = "f32",
         matrix: str = "map tanh %m", more: str = "", returned: str = "%1") -> str:  # fmt: skip
    operands = "%v, %0" if swapped else "%0, %v"
    return f"""graph @f(%m: {dtype}[{m}], %v: {dtype}[{v}]) {{
      %0: {dtype}[{m}] = {matrix}
      %1: {dtype}[{result}] = contract {operands} batch={batch} contracting={axes}
      {more}
      return {returned}
    }}"""


def test_a_product_of_a_computed_matrix_and_a_vector_is_a_sum() -> None:
    assert rewritten(STEP, text()) == (
        "%0: f32[32,8] = map tanh %m\n"
        "%1: f32[8] = reshape %v\n"
        "%2: f32[32,8] = broadcast %1 axes=(1)\n"
        "%3: f32[32,8] = map mul %0, %2\n"
        "%4: f32[32] = reduce add %3 axes=(1)\n"
        "%5: f32[32] = reshape %4\n"
        "return %5"
    )


def made_of(text: str) -> list[str]:
    """What is made of the operands, without views that change nothing."""
    return rewritten(GraphStep(sums.NAME, _simplified(sums.sum_products)), text).splitlines()[1:]


def test_the_vector_may_come_first() -> None:
    assert made_of(text(v="32", axes="((0), (0))", result="8", swapped=True)) == [
        "%1: f32[32,8] = broadcast %v axes=(0)",
        "%2: f32[32,8] = map mul %1, %0",
        "%3: f32[8] = reduce add %2 axes=(0)",
        "return %3",
    ]


def test_batches_come_first_in_the_result() -> None:
    made = made_of(text("6,5,32", "32,5", axes="((1), (1))", batch="((2), (0))", result="32,6"))
    assert made == [
        "%1: f32[6,5,32] = broadcast %v axes=(2, 1)",
        "%2: f32[6,5,32] = map mul %0, %1",
        "%3: f32[6,32] = reduce add %2 axes=(1)",
        "%4: f32[32,6] = transpose %3 permutation=(1, 0)",
        "return %4",
    ]


@pytest.mark.parametrize("result", ["32,1", "1,32"])
def test_a_column_is_a_vector(result: str) -> None:
    swapped = result.startswith("1")
    axes = "((0), (1))" if swapped else "((1), (0))"
    assert made_of(text(v="8,1", axes=axes, result=result, swapped=swapped))[2:] == [
        f"%3: f32[32,8] = map mul {'%2, %0' if swapped else '%0, %2'}",
        "%4: f32[32] = reduce add %3 axes=(1)",
        f"%5: f32[{result}] = reshape %4",
        "return %5",
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"matrix": "reverse %m axes=(0)"},  # lies in memory
        {"dtype": "bf16"},  # whose products are not rounded
        {"dtype": "i32"},
        {"v": "8,3", "result": "32,3"},  # elements are read three times
        {"m": "0,8", "result": "0"},
    ],
)
def test_dont_touch_other_products(other: dict[str, str]) -> None:
    graph = text(**other).replace("map tanh", "map neg")
    assert unchanged(STEP, graph)
    assert reasons(STEP, graph) == []


NARROW = """graph @f(%m: i8[32,8], %v: f32[8]) {
  %0: f32[32,8] = convert %m
  %1: f32[32,8] = map neg %0
  %2: f32[32] = contract %1, %v batch=((), ()) contracting=((1), (0))
  return %2
}"""
MADE = """graph @f(%m: f32[32,9], %w: f32[9,8], %v: f32[8]) {
  %0: f32[32,8] = contract %m, %w batch=((), ()) contracting=((1), (0))
  %1: f32[32,8] = map tanh %0
  %2: f32[32] = contract %1, %v batch=((), ()) contracting=((1), (0))
  return %2
}"""


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (text("15,17", "17", result="15"), "there are too few products"),
        (text(returned="%1, %0"), "what makes the matrix is read elsewhere, too"),
        (NARROW, "the matrix lies in memory in another type"),
        (MADE, "the matrix is made of what another kernel makes, which may store it"),
    ],
)
def test_dont_sum(graph: str, reason: str) -> None:
    assert reasons(STEP, graph) == [reason]


def test_dont_sum_on_a_gpu_or_what_weights_make() -> None:
    graph = parse(text())
    gpu = replace(SMALL_SERVER, side_by_side=False)
    assert run_steps(graph, (STEP,), Options(), gpu) == []
    assert unchanged(STEP, text().replace("%m: f32[32,8],", "%m: f32[32,8] bound,"))


def test_what_is_small_and_repeats_may_be_made_elsewhere() -> None:
    graph = """graph @f(%m: f32[32,8], %v: f32[8]) {
      %0: f32[8] = reduce add %m axes=(0)
      %1: f32[32,8] = broadcast %0 axes=(1)
      %2: f32[32,8] = map sub %m, %1
      %3: f32[32] = contract %2, %v batch=((), ()) contracting=((1), (0))
      return %3
    }"""
    assert "contract" not in rewritten(STEP, graph)


@pytest.mark.parametrize("seed", range(12))
def test_values(seed: int) -> None:
    """Random axes, batches and sums, in any order, of either operand."""
    rng = Random(seed)
    sizes = [rng.choice((3, 5, 8)) for _ in range(4)]
    kinds = [rng.choice(("sum", "batch", "free")) for _ in sizes[1:]] + ["sum"]
    shared = [axis for axis, kind in enumerate(kinds) if kind != "free"]
    rng.shuffle(shared)
    graph = Graph("f")
    m = graph.add_input("m", TensorType(f32, tuple(sizes)))
    one = (1,) * rng.randrange(3)
    v = graph.add_input("v", TensorType(f32, (*(sizes[axis] for axis in shared), *one)))
    made = build(graph, "map", [m], fn="square", dtype=f32)
    own = [[axis for axis in shared if kinds[axis] == kind] for kind in ("sum", "batch")]
    summed, batch = ((tuple(axes), tuple(map(shared.index, axes))) for axes in own)
    operands = [made, v]
    if rng.random() < 0.5:
        operands, summed, batch = [v, made], summed[::-1], batch[::-1]
    graph.set_outputs([
        build(graph, "contract", operands, contracting=summed, batch=batch, dtype=f32)
    ])  # fmt: skip
    draw = np.random.default_rng(seed)
    args = [draw.standard_normal(x.shape).astype(np.float32) for x in (m, v)]
    (expected,) = interpret(graph, args)
    applied = run_steps(graph, (STEP,), Options(verify=True))
    assert [decision.applied for decision in applied] == [m.type.size >= sums.FEWEST_PRODUCTS]
    (found,) = interpret(graph, args)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    check_graph(graph, args)
