"""data-tiling: which products are encoded, and how; which are not, and why."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import Options
from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.encodings import choose
from stagejit.rewrites.encodings.products import encodings_of, refuse
from stagejit.trace.translate import graph_of
from tests.randomness import RNG
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
        ("7,16", "16,9", "7,9", "it has 63 results, under 64, too few for tiles"),
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


@pytest.mark.parametrize(("columns", "packed"), [(16, True), (15, False)])
def test_a_weight_on_the_left_stays_as_it_is_for_few_columns(columns: int, packed: bool) -> None:
    text = product("90,16", f"16,{columns}", f"90,{columns}")
    bound = text.replace("f32[90,16],", "f32[90,16] bound,")
    assert ("set_encoding %x" in rewritten(STEP, bound)) == packed
    decisions = run_steps(parse(bound), [STEP], Options())
    assert any("fewer than 16 columns" in d.reason for d in decisions) != packed
    assert "set_encoding %x" in rewritten(STEP, text)  # no weight


def test_parts_of_several_lengths() -> None:
    """Nobody but the sum knows where the last part ends: none of it is stored anew."""
    text = """graph @f(%x: f32[9,32], %w: f32[32,9]) {{
      %0: f32[{parts},9,{of}] = split_axis %x axis=1 fill=0.0
      %1: f32[{parts},{of},9] = split_axis %w axis=0 fill=0.0
      %2: f32[{parts},9,9] = contract %0, %1 batch=((0), (0)) contracting=((2), (1))
      return %2
    }}"""
    assert "set_encoding %1" not in rewritten(STEP, text.format(parts=3, of=11))
    assert "set_encoding %1" in rewritten(STEP, text.format(parts=4, of=8))


@pytest.mark.some(2)
@pytest.mark.parametrize("parts", [2, 3, 5, 7])
@pytest.mark.parametrize("sides", ["mk,kn", "km,kn", "mk,nk", "km,nk", "bmk,bkn", "mk,bnk"])
def test_split_sums_of_which_packs_are_stored(sides: str, parts: int) -> None:
    options = Options(split={"contract": parts}, disable=("elide-packs",))
    sizes = {"b": 3, "m": 40, "k": 130, "n": 50}
    x, w = (RNG.normal(size=[sizes[axis] for axis in side]) for side in sides.split(","))
    result = sides + ("->bnm" if "bm" in sides else "->nmb" if "b" in sides else "->nm")
    f = stagejit.jit(lambda x, w: jnp.einsum(result, x, w), options=options)
    np.testing.assert_allclose(f(np.float32(x), np.float32(w)), np.einsum(result, x, w), atol=1e-4)


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
