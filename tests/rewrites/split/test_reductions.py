"""split-reduce: what is split, what is not and why."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.base.machine import Machine
from stagejit.errors import VerificationError
from stagejit.graph.ops import infer
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, f32
from tests.rewrites.split.reducing import STEP
from tests.rewrites.text_in_out import reasons, rewritten, unchanged


def test_a_long_sum() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: f32[1048576]) {
          %0: f32[] = reduce add %x axes=(0)
          return %0
        }""") == "\n".join([
            "%0: f32[16,65536] = split_axis %x axis=0 fill=-0.0",
            "%1: f32[16] = reduce add %0 axes=(1)",
            "%2: f32[] = reduce add %1 axes=(0)",
            "return %2",
        ])  # fmt: skip


def test_the_last_part_may_be_shorter() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: i32[2,1000003]) {
          %0: i32[2] = reduce max %x axes=(1)
          return %0
        }""") == "\n".join([
            "%0: i32[15,2,66667] = split_axis %x axis=1 fill=-2147483648",
            "%1: i32[15,2] = reduce max %0 axes=(2)",
            "%2: i32[2] = reduce max %1 axes=(0)",
            "return %2",
        ])  # fmt: skip


def test_sixteen_bits_round_once() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: bf16[3,1000003]) {
          %0: bf16[3] = reduce add %x axes=(1)
          return %0
        }""") == "\n".join([
            "%0: f32[3,1000003] = convert %x",
            "%1: f32[7,3,142858] = split_axis %0 axis=1 fill=-0.0",
            "%2: f32[7,3] = reduce add %1 axes=(2)",
            "%3: f32[3] = reduce add %2 axes=(0)",
            "%4: bf16[3] = convert %3",
            "return %4",
        ])  # fmt: skip


def test_a_product() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: f32[2,3,100003], %y: f32[2,100003,5]) {
          %0: f32[2,3,5] = contract %x, %y batch=((0), (0)) contracting=((2), (1))
          return %0
        }""") == "\n".join([
            "%0: f32[24,2,3,4167] = split_axis %x axis=2 fill=-0.0",
            "%1: f32[24,2,4167,5] = split_axis %y axis=1 fill=0.0",
            "%2: f32[24,2,3,5] = contract %0, %1 batch=((0, 1), (0, 1)) contracting=((3), (2))",
            "%3: f32[2,3,5] = reduce add %2 axes=(0)",
            "return %3",
        ])  # fmt: skip


def test_parts_may_be_rounded_as_the_whole_may() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: f32[3,100003], %y: f32[100003,5]) {
          %0: f32[3,5] = contract %x, %y batch=((), ()) contracting=((1), (0)) precision="tf32"
          return %0
        }""").splitlines()[2] == (
            "%2: f32[12,3,5] = contract %0, %1 batch=((0), (0)) contracting=((2), (1)) "
            'precision="tf32"'
        )  # fmt: skip


def test_a_gradient_of_weights() -> None:
    text = rewritten(STEP, """\
        graph @f(%x: f16[64,3,30,40], %y: f16[64,5,30,40]) {
          %0: f16[3,5,3,3] = conv %x, %y batch_groups=1 feature_groups=1 lhs_dilation=(1, 1) \
lhs_spec=(1, 0, 2, 3) out_spec=(0, 1, 2, 3) padding=((1, 1), (1, 1)) rhs_dilation=(1, 1) \
rhs_spec=(1, 0, 2, 3) strides=(1, 1)
          return %0
        }""")  # fmt: skip
    first, *rest = text.splitlines()
    assert first.startswith("%0: f32[6,3,5,3,3] = conv %x, %y batch_groups=1 ")
    assert "split=(0, 11)" in first
    assert rest == [
        "%1: f32[3,5,3,3] = reduce add %0 axes=(0)",
        "%2: f16[3,5,3,3] = convert %1",
        "return %2",
    ]


def test_dont_split_windows_with_holes() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[1,4,30], %y: f32[4,2,9]) {
          %0: f32[1,4,53] = conv %x, %y batch_groups=1 feature_groups=2 lhs_dilation=(2) \
lhs_spec=(0, 1, 2) out_spec=(0, 1, 2) padding=((1, 1)) rhs_dilation=(1) rhs_spec=(0, 1, 2) \
strides=(1)
          return %0
        }""", split={"conv": 3}) == ["no axis that is summed over can be split"]  # fmt: skip


def test_dont_split_many_rows() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[8,1048576]) {
          %0: f32[8] = reduce add %x axes=(1)
          return %0
        }""") == ["its 8 blocks of results are enough for 2 cores"]  # fmt: skip


def test_dont_split_wide_columns() -> None:
    assert unchanged(STEP, """\
        graph @f(%x: f32[4096,1024]) {
          %0: f32[1024] = reduce add %x axes=(0)
          return %0
        }""")  # fmt: skip


def test_dont_split_what_is_small() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[100000]) {
          %0: f32[] = reduce add %x axes=(0)
          return %0
        }""") == ["400000 bytes are too few to share out"]  # fmt: skip


@pytest.mark.parametrize("cores", [2, 8, 64])
@pytest.mark.parametrize("l2_nbytes", [256 << 10, 2 << 20, 64 << 20])
def test_the_size_of_a_cache_does_not_say_what_is_shared(l2_nbytes: int, cores: int) -> None:
    """What takes one core long is: clusters of Apple's share 16 MiB."""
    graph = graph_of(lambda x: x.sum(), np.zeros(5_000_000, np.float32))
    machine = Machine(cores=cores, l2_nbytes=l2_nbytes)
    (made,) = run_steps(graph, (STEP,), Options(), machine)
    assert made.applied
    assert made.reason.startswith(f"{min(16 * cores, 76)} parts")


@pytest.mark.parametrize("cores", [64, 128])
def test_a_long_product_has_as_many_parts_as_give_cores_equal_shares(cores: int) -> None:
    graph = graph_of(jnp.matmul, jax.ShapeDtypeStruct((123, 51234), "float32"),
                     jax.ShapeDtypeStruct((51234, 456), "float32"))  # fmt: skip
    (made,) = run_steps(graph, (STEP,), Options(), Machine(cores=cores, bandwidth=685e9))
    assert made.applied
    assert made.reason.startswith("64 parts")


def test_dont_speak_of_what_is_tiny() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[4,15]) {
          %0: f32[4] = reduce add %x axes=(1)
          return %0
        }""") == []  # fmt: skip


LONG = """\
    graph @f(%x: f32[1000003]) {
      %0: f32[] = reduce add %x axes=(0)
      return %0
    }"""


def test_dont_split_where_one_part_is_asked_for() -> None:
    found = reasons(STEP, LONG, split={"reduce": 1})
    assert found == ["1 asked for: one part is the whole"]


def test_dont_split_over_the_memory_budget() -> None:
    found = reasons(STEP, LONG, memory_budget=7)
    assert found == ["two partial results are over the memory budget of 7 bytes"]


def test_dont_split_an_axis_of_one_element() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[1,300000]) {
          %0: f32[300000] = reduce add %x axes=(0)
          return %0
        }""", split={"reduce add": 4}) == [
            "the axes that are summed over have one element"
        ]  # fmt: skip


def test_dont_split_running_sums() -> None:
    assert reasons(STEP, """\
        graph @f(%x: f32[1000003]) {
          %0: f32[1000003] = cumulative add %x axis=0 reverse=false
          return %0
        }""") == ["each result of cumulative needs those before it"]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [((10,), 1, (5, 2)), ((10,), 0, (6, 2)), ((10,), 0, (4, 2)), ((10,), 0, (10,)),
     ((0,), 0, (0, 1)), ((10, 3), 0, (5, 3, 2))],
)  # fmt: skip
def test_parts_that_are_none(shape: tuple[int, ...], axis: int, parts: tuple[int, ...]) -> None:
    with pytest.raises(VerificationError):
        infer("split_axis", [TensorType(f32, shape)], {"axis": axis, "shape": parts, "fill": 0.0})


@pytest.mark.parametrize(
    "wrong",
    [{"split": (0, 2)}, {"split": (1, 4)}, {"split": (1, 0)}, {"split": (2, 2)},
     {"split": (1, 1), "feature_groups": 2}],
)  # fmt: skip
def test_parts_of_windows_that_are_none(wrong: dict[str, Any]) -> None:
    spec = (0, 1, 2)
    attrs = {
        "lhs_spec": spec, "rhs_spec": spec, "out_spec": spec, "strides": (1,), "dtype": f32,
        "padding": ((0, 0),), "lhs_dilation": (2,), "rhs_dilation": (1,), "feature_groups": 1,
        "batch_groups": 1,
    }  # fmt: skip
    operands = [TensorType(f32, (1, 4, 9)), TensorType(f32, (6, 4, 3))]
    if "feature_groups" in wrong:
        operands[1] = TensorType(f32, (6, 2, 3))
    with pytest.raises(VerificationError):
        infer("conv", operands, {**attrs, **wrong})


def test_parts_of_parts_are_not_split_again() -> None:
    for shape in ((1 << 18,), (1 << 24,), (3, 1 << 20), (1 << 20, 5), (2, 7, 1 << 17)):
        graph = graph_of(lambda x: x.sum(), np.zeros(shape, np.int8))
        decisions = run_steps(graph, (STEP,), Options(verify=True))
        assert sum(decision.applied for decision in decisions) <= 1
