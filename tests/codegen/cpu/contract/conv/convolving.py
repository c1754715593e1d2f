"""Convolutions that are compared to the interpreter."""

from __future__ import annotations

from typing import Any

from jax import lax

from stagejit.graph.ir import Graph
from stagejit.graph.ops import build
from tests.codegen.regions import Runner

NCHW = ("NCHW", "OIHW", "NCHW")
NHWC = ("NHWC", "HWIO", "NHWC")


def check(
    runner: Runner,
    x: Any,
    w: Any,
    numbers: Any = NCHW,
    *,
    strides: Any = (1, 1),
    padding: Any = "SAME",
    border: Any = 0,
    **rest: Any,
) -> None:
    runner.check(
        lambda x, w: lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=numbers, **rest
        ),
        x,
        w,
        change=bordered(border) if border != 0 else lambda graph: None,
    )


def bordered(value: Any) -> Any:
    """Gives every convolution of a graph a border of this value."""

    def change(graph: Graph) -> None:
        for op in [op for op in graph if op.kind == "conv"]:
            new = build(graph, "conv", op.operands, op.loc, **op.attrs, border=value)
            graph.replace_uses(op.result, new)
            graph.erase(op)

    return change
