"""fold-pads, of windows: the rule, each guard, values by definition, on against off."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import LocalStep, run_steps
from stagejit.rewrites.moving.windows import pad_into_window
from tests.expected import windows
from tests.rewrites.text_in_out import reasons, rewritten


def padded(
    fn: str = "max", border: str = "-inf", *, strides: str = "", size: int = 2, shape: int = 9,
    stride: int = 1, result: str = "f32", more: str = "",
) -> str:  # fmt: skip
    count = (shape - size) // stride + 1
    return f"""
    graph @f(%x: f32[4]) {{
      %0: f32[] = const {border}
      %1: f32[{shape}] = fill %0
      %2: f32[{shape}] = insert_slice %x into %1 at (1){strides}
      %3: {result}[{count}] = window {fn} %2 dilation=(1) padding=((0, 0)) sizes=({size}) strides=({stride})
      return %3{more}
    }}"""  # noqa: E501


def test_a_pad_joins_the_window_that_reads_it() -> None:
    dims = "dilation=(1) padding=((1, 4)) sizes=(2) strides=(1)"
    assert rewritten(pad_into_window, padded()).splitlines()[-2:] == [
        f"%0: f32[8] = window max %x {dims}",
        "return %0",
    ]


def test_windows_over_holes_repeat_those_over_elements() -> None:
    """Elements at 1, 3, 5, 7: windows at 0 and 1 see the first, those at 2 and 3 the second."""
    text = padded("add", "0.0", strides=" strides (2)")
    assert rewritten(pad_into_window, text).splitlines()[-3:] == [
        "%0: f32[4,2] = broadcast %x axes=(0)",
        "%1: f32[8] = reshape %0",
        "return %1",
    ]


@pytest.mark.parametrize("hole", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@pytest.mark.parametrize("low", [-1, 0, 2])
def test_elements_are_those_of_before(hole: int, size: int, offset: int, low: int) -> None:
    count = 14 + low + 1 - size + 1
    graph = parse(f"""
    graph @f(%x: f32[4]) {{
      %0: f32[] = const 0.0
      %1: f32[14] = fill %0
      %2: f32[14] = insert_slice %x into %1 at ({offset}) strides ({hole})
      %3: f32[{count}] = window add %2 dilation=(1) padding=(({low}, 1)) sizes=({size}) strides=(1)
      return %3
    }}""")
    x = np.array([1, 10, 100, 1000], np.float32)
    (before,) = interpret(graph, [x])
    decisions = run_steps(graph, (LocalStep("test", (pad_into_window,)),), Options(verify=True))
    assert any(decision.applied for decision in decisions) == (size % hole == 0)
    np.testing.assert_array_equal(interpret(graph, [x])[0], before)
    assert size % hole or "insert_slice" not in as_text(graph)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (padded(border="0.0"), "max notices the border"),
        (padded("first_max", result="i32"), "first_max notices the border"),
        (padded(more=", %2"), "the pad has other readers"),
        (
            padded("add", "0.0", strides=" strides (2)", size=3),
            "windows see different numbers of elements between the holes",
        ),
        (
            padded("add", "0.0", strides=" strides (2)", stride=2),
            "windows see different numbers of elements between the holes",
        ),
        (
            padded().replace("f32[4])", "f32[4], %v: f32[])").replace("fill %0", "fill %v"),
            "the border is known at run time only",
        ),
    ],
)  # fmt: skip
def test_dont_fold(text: str, reason: str) -> None:
    assert reasons(pad_into_window, text) == [reason]


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gradients_of_sums_on_and_off(sizes: tuple[int, int], padding: str) -> None:
    x = windows.elements(random.Random(0), (2, 9, 12, 5), np.dtype("f4"), special=False)

    def f(x: Any) -> Any:
        window = (1, *sizes, 1), (1, 2, 2, 1), padding
        return (lax.reduce_window(x, 0.0, lax.add, *window) ** 2).sum()

    on = stagejit.jit(jax.grad(f))(x)
    off = stagejit.jit(jax.grad(f), options=Options(disable=("fold-pads",)))(x)
    np.testing.assert_allclose(on, off, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(on, jax.jit(jax.grad(f))(x), rtol=1e-5, atol=1e-5)


def test_a_padded_pooling_reads_its_operand() -> None:
    def f(x: Any) -> Any:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")

    x = np.zeros((2, 8, 8, 3), np.float32)
    assert len(stagejit.jit(f).plan(x).dispatches) == 1
    assert len(stagejit.jit(f, options=Options(disable=("fold-pads",))).plan(x).dispatches) == 2
