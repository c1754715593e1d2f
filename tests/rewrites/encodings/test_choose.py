"""data-tiling: which products are encoded, and how; which are not, and why."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.rewrites.driver import GraphStep
from stagejit.rewrites.encodings import choose
from stagejit.rewrites.encodings.products import encodings_of, refuse
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten

STEP = GraphStep(choose.NAME, choose.encode_products)


def product(lhs: str, rhs: str, result: str) -> str:
    return f"""graph @f(%x: f32[{lhs}], %w: f32[{rhs}]) {{
      %0: f32[{result}] = contract %x, %w batch=((), ()) contracting=((1), (0))
      return %0
    }}"""


def test_both_operands_and_the_result() -> None:
    assert rewritten(STEP, product("8,16", "16,8", "8,8")).splitlines() == [
        "%0: f32[8,16]{lhs:mk:f32:f32:f32:n} = set_encoding %x",
        "%1: f32[16,8]{rhs:kn:f32:f32:f32:n} = set_encoding %w",
        "%2: f32[8,8] = contract %0, %1 batch=((), ()) contracting=((1), (0))",
        "%3: f32[8,8]{result:mn:f32:f32:f32:n} = set_encoding %2",
        "%4: f32[8,8] = unset_encoding %3",
        "return %4",
    ]


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "reason"),
    [
        ("7,16", "16,9", "7,9", "its parallel size is 63, under 64"),
        ("1,16", "16,90", "1,90", "a product of a matrix and a vector"),
        ("90,16", "16,1", "90,1", "a product of a matrix and a vector"),
        ("n,16", "16,90", "n,90", "its sizes are symbols"),
    ],
)
def test_which_are_not(lhs: str, rhs: str, result: str, reason: str) -> None:
    (found,) = reasons(STEP, product(lhs, rhs, result))
    assert reason in found


@pytest.mark.parametrize(("kind", "packed"), [(" bound", True), ("", False)])
def test_a_vector_reads_tiles_of_a_matrix_that_is_there_before_calls(
    kind: str, packed: bool
) -> None:
    text = product("1,16", "16,90", "1,90").replace("f32[16,90])", f"f32[16,90]{kind})")
    assert ("set_encoding %w" in rewritten(STEP, text)) == packed


def test_the_vector_may_be_the_weight() -> None:
    text = product("1,16", "16,90", "1,90").replace("f32[1,16],", "f32[1,16] bound,")
    (found,) = reasons(STEP, text)
    assert "a product of a matrix and a vector" in found


def the_product(fn: Any, *shapes: tuple[int, ...]) -> Any:
    graph: Graph = graph_of(fn, *(np.ones(shape, np.float32) for shape in shapes))
    (op,) = (op for op in graph.ops() if op.definition.is_product)
    return op


def test_axes_of_batches_and_of_several_dimensions() -> None:
    op = the_product(lambda x, w: jnp.einsum("bijk,bknm->bijnm", x, w), (2, 3, 4, 5), (2, 5, 6, 7))
    found = encodings_of(op)
    assert [e.axes for e in found.operands if e is not None] == ["bmmk", "bknn"]
    assert (found.result.axes, found.result.minor) == ("bmmnn", "n")


def conv(spec: tuple[str, str, str], **params: Any) -> Any:
    return lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=spec, **params
    )


def test_the_weights_of_a_convolution_have_tiles_and_its_windows_have_none() -> None:
    op = the_product(conv(("NHWC", "HWIO", "NHWC")), (1, 9, 9, 4), (3, 3, 4, 8))
    found = encodings_of(op)
    assert found.operands[0] is None
    assert found.operands[1] is not None
    assert found.operands[1].axes == "kkkn"
    assert (found.result.axes, found.result.minor) == ("mmmn", "n")
    op = the_product(conv(("NCHW", "OIHW", "NCHW")), (1, 4, 9, 9), (8, 4, 3, 3))
    assert encodings_of(op).result.minor == "m"
    assert refuse(op) == ""


def test_groups_of_a_convolution() -> None:
    spec = ("NHWC", "HWIO", "NHWC")
    op = the_product(conv(spec, feature_group_count=4), (1, 9, 9, 4), (3, 3, 1, 8))
    assert "do not share their weights" in refuse(op)
