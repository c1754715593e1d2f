"""sum-to-contract: sums of products as contractions, and the sums that stay what they are."""

from __future__ import annotations

from random import Random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.options import Options
from stagejit.rewrites import products
from stagejit.rewrites.driving.driver import LocalStep, run_steps
from stagejit.types import TensorType, f32
from tests.rewrites.text_in_out import reasons, rewritten, unchanged
from tests.schedule.planning import check

STEP = LocalStep("products", products.RULES)


def text(lhs: str, rhs: str, *, shape: str = "16,8,512", axes: str = "(1)", fn: str = "mul",
         reduce: str = "add", dtype: str = "f32", result: str = "16,512", a: str = "16,8",
         b: str = "8,512", returned: str = "%3") -> str:  # fmt: skip
    return f"""graph @f(%a: {dtype}[{a}], %b: {dtype}[{b}]) {{
      %0: {dtype}[{shape}] = broadcast %a axes={lhs}
      %1: {dtype}[{shape}] = broadcast %b axes={rhs}
      %2: {dtype}[{shape}] = map {fn} %0, %1
      %3: {dtype}[{result}] = reduce {reduce} %2 axes={axes}
      return {returned}
    }}"""


def test_a_matrix_product_in_broadcasts_is_one() -> None:
    assert rewritten(STEP, text("(0, 1)", "(1, 2)")) == (
        "%0: f32[16,8] = reshape %a\n"
        "%1: f32[8,512] = reshape %b\n"
        "%2: f32[16,512] = contract %0, %1 batch=((), ()) contracting=((1), (0))\n"
        "%3: f32[16,512] = reshape %2\n"
        "return %3"
    )


def test_axes_that_both_keep_are_batches_and_results_are_turned() -> None:
    made = rewritten(
        STEP, text("(0, 3, 1)", "(1, 2, 0)", shape="2,8,32,64", a="2,64,8", b="8,32,2",
                   result="2,32,64")
    )  # fmt: skip
    assert made.splitlines()[2:4] == [
        "%2: f32[2,64,32] = contract %0, %1 batch=((0), (2)) contracting=((2), (0))",
        "%3: f32[2,32,64] = transpose %2 permutation=(0, 2, 1)",
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"fn": "add"},
        {"reduce": "max"},
        {"dtype": "i32"},
        {"dtype": "bf16"},  # products would be rounded no more
    ],
)
def test_dont_touch_what_is_no_sum_of_products(other: Any) -> None:
    assert unchanged(STEP, text("(0, 1)", "(1, 2)", **other))


def test_dont_contract_where_a_factor_repeats_nothing() -> None:
    assert unchanged(STEP, text("(0, 1, 2)", "(1, 2)", a="16,8,512"))


def test_dont_contract_where_both_repeat_along_an_axis() -> None:
    both = text("(0, 1)", "(1, 2)", shape="16,8,512,3", result="16,512,3")
    assert unchanged(STEP, both)


def test_dont_contract_an_axis_of_one_factor() -> None:
    assert reasons(STEP, text("(0, 1)", "(1, 2)", axes="(0)", result="8,512")) == [
        "an axis that is summed over is one of a single factor"
    ]


@pytest.mark.parametrize(
    "small",
    [
        {"shape": "15,8,512", "a": "15,8", "result": "15,512"},
        {"shape": "16,8,255", "b": "8,255", "result": "16,255"},
    ],
)
def test_dont_contract_what_is_small(small: Any) -> None:
    assert reasons(STEP, text("(0, 1)", "(1, 2)", **small)) == [
        "the factors are too small for a contraction to be cheaper"
    ]


def test_dont_contract_products_that_are_read_elsewhere() -> None:
    assert reasons(STEP, text("(0, 1)", "(1, 2)", returned="%3, %2")) == [
        "the products are read elsewhere"
    ]


def random_sum(seed: int) -> tuple[Graph, list[Any]]:
    """Factors with axes in any order, some shared, some of one element."""
    random, graph = Random(seed), Graph("f")
    rank = random.randrange(3, 6)
    kinds = [random.choice("lrbk1") for _ in range(rank)]
    kinds[:3] = random.sample(["l", "r", "k"], 3)
    random.shuffle(kinds)
    sizes = {"l": 17, "r": 16, "b": 3, "k": 5, "1": 1}
    shape = tuple(sizes[kind] for kind in kinds)
    factors: list[Value] = []
    for own in ("lbk1", "rbk1"):
        axes = [axis for axis, kind in enumerate(kinds) if kind in own]
        axes = [axis for axis in axes if kinds[axis] != "1" or random.random() < 0.5]
        random.shuffle(axes)
        type = TensorType(f32, tuple(shape[axis] for axis in axes))
        x = graph.add_input(own[0], type)
        factors.append(build(graph, "broadcast", [x], shape=shape, axes=tuple(axes)))
    product = build(graph, "map", factors, fn="mul", dtype=f32)
    axes = tuple(axis for axis, kind in enumerate(kinds) if kind == "k")
    graph.set_outputs([build(graph, "reduce", [product], fn="add", axes=axes)])
    numbers = np.random.default_rng(seed)
    return graph, [numbers.integers(-4, 5, x.shape).astype(np.float32) for x in graph.inputs]


def test_random_sums_keep_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "FEWEST_PRODUCTS", 1)
    applied = 0
    for seed in range(60):
        graph, args = random_sum(seed)
        (before,) = interpret(graph, args)
        applied += any(d.applied for d in run_steps(graph, (STEP,), Options(verify=True)))
        np.testing.assert_array_equal(interpret(graph, args)[0], before)
    assert applied > 50


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x[:, :, None] * y[None]).sum(1),
        lambda x, y: (jnp.exp(x)[:, None, :] * y.T[None]).sum(2) + 1,
        lambda x, y: (y.T[:, None, :] * -x[None]).sum(-1),
    ],
)
def test_compiled_products(f: Any) -> None:
    numbers = np.random.default_rng(0)
    x, y = (numbers.integers(-3, 4, (48, 48)).astype(np.float32) for _ in "xy")
    plan = check(f, x, y)
    assert plan.dispatches[-1].kind == "contract"
    assert {dispatch.kind for dispatch in plan.dispatches} <= {"contract", "map"}  # of exp


def test_zeros_and_what_is_not_finite() -> None:
    x = np.full((32, 40), -0.0, np.float32)
    x[3, 5], x[4, 4], x[5, :] = np.inf, np.nan, 2.0
    y = np.ones((40, 32), np.float32)
    y[5, 7] = 0.0
    check(lambda x, y: (x[:, :, None] * y[None]).sum(1), x, y)
