"""split-reduce: what is split, into how many parts, what is not and why, and that results stay."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.machine import Machine
from stagejit.codegen.cuda.device import device_named
from stagejit.errors import OptionsError, VerificationError
from stagejit.graph.functions import REDUCE_FUNCTIONS
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import infer
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.split import reductions as split
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, f32
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = split.STEP


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


def decision(shape: tuple[int, ...], axes: Any, **options: Any) -> str:
    graph = graph_of(lambda x: x.sum(axes), np.zeros(shape, np.float32))
    (made,) = run_steps(graph, (STEP,), Options(verify=True, **options))
    assert made.applied
    return made.reason


def test_fewer_parts_within_the_memory_budget() -> None:
    assert decision((1000, 6), 0, split={"reduce": 77}, memory_budget=24 * 10) == (
        "10 parts of 100: 77 asked for, no more are within the memory budget of 240 bytes"
    )


def test_no_part_is_empty() -> None:
    assert decision((10,), 0, split={"reduce": 7}) == "5 parts of 2: 7 asked for"
    assert decision((4099,), 0, split={"reduce": 64}) == (
        "64 parts of 65, the last of 4: 64 asked for"
    )
    assert decision((3, 2), 0, split={"reduce": 77}) == "3 parts of 1: 77 asked for"


def test_the_outer_axis_that_is_long_enough() -> None:
    for shape, parts, expected in (
        ((40, 50), 7, "7 parts of 6, the last of 4"),
        ((4, 50), 7, "7 parts of 8, the last of 2"),
        ((6, 5), 7, "6 parts of 1"),
    ):
        reason = decision(shape, None, split={"reduce": parts})
        assert reason == f"{expected}: {parts} asked for"


def test_more_cores_more_parts() -> None:
    x = np.zeros(1 << 24, np.float32)
    counts = []
    for cores in (1, 2, 64):
        graph = graph_of(lambda x: x.sum(), x)
        (made,) = run_steps(graph, (STEP,), Options(verify=True), Machine(cores=cores))
        counts.append(int(made.reason.split()[0]))
    assert counts == [16, 32, 258]  # of 64 MiB in parts of at least 6.5 us of reading


@pytest.mark.parametrize(("rows", "parts"), [(512, False), (132, False), (64, True), (3, True)])
def test_rows_of_a_gpu_are_shared_by_the_threads_of_a_block(rows: int, parts: bool) -> None:
    """A block for each multiprocessor is enough: no row of more is read in parts."""
    graph = graph_of(lambda x: x.sum(1), np.zeros((rows, 50_257), np.float32))
    decisions = run_steps(graph, (STEP,), Options(verify=True), device_named("H200"))
    assert any(made.applied for made in decisions) == parts


def product(cores: int, m: int, k: int, n: int) -> str:
    """The reason of a decision; empty where it is not split."""
    graph = graph_of(jnp.dot, np.zeros((m, k), np.float32), np.zeros((k, n), np.float32))
    machine = Machine(cores=cores, bandwidth=min(20e9 * cores, 45e9 + 10e9 * cores))
    decisions = run_steps(graph, (STEP,), Options(verify=True), machine)
    return next((made.reason for made in decisions if made.applied), "")


def test_products_that_are_split() -> None:
    """Those with few results; those of which cores would read the same again and again."""
    for k in (51234, 51229):
        assert product(2, 123, k, 456).startswith("10 parts of ")
        assert product(64, 123, k, 456).startswith("64 parts of ")
    assert product(2, 123, 51234, 456) == (
        "10 parts of 5124, the last of 5118: as it is, 496764864 bytes are read for 118657944"
    )
    assert product(2, 1, 1 << 20, 1) == ("32 parts of 32768: 1 block of results for 2 cores")
    assert product(2, 64, 32768, 64) == (
        "8 parts of 4096: as it is, 142606336 bytes are read for 16777216"
    )


@pytest.mark.parametrize(("kind", "options", "parts"), [
    (" bound", {}, False), ("", {}, True), (" bound", {"disable": ("data-tiling",)}, True),
])  # fmt: skip
def test_dont_split_what_cores_read_in_panels(
    kind: str, options: dict[str, Any], parts: bool
) -> None:
    text = f"""\
        graph @f(%x: f32[1,3072], %w: f32[3072,768]{kind}) {{
          %0: f32[1,768] = contract %x, %w batch=((), ()) contracting=((1), (0))
          return %0
        }}"""
    assert ("split_axis %w" in rewritten(STEP, text, **options)) == parts


def test_longer_sums_have_more_parts() -> None:
    """What all parts make is written and read again; a late core costs a share of a part."""
    counts = [int(product(2, 64, k, 64).split()[0]) for k in (1 << 15, 1 << 17, 1 << 19)]
    assert counts == sorted(set(counts))
    assert all(count % 2 == 0 for count in counts)


def test_products_that_are_not_split() -> None:
    """Two cores spend their time on arithmetic where 64 would on reading."""
    for m, k, n in ((256, 4096, 256), (100, 200, 300), (1024, 1024, 1024), (4096, 4096, 4096),
                    (1, 4096, 4096), (4096, 4096, 1), (128, 1024, 16), (64, 64, 64)):  # fmt: skip
        assert not product(2, m, k, n)


def test_what_split_may_say() -> None:
    assert Options(split={"reduce": 3}) == Options(split=(("reduce", 3),))
    assert hash(Options(split={"b.py:3": 3, "a.py:1": 2})) is not None
    chosen = Options(split={"reduce": 3, "reduce max": 4, "b.py:12": 5, "conv": 6})
    assert chosen.asked_parts("reduce", "add", "/a/b.py:1") == 3
    assert chosen.asked_parts("reduce", "max", "/a/b.py:1") == 4
    assert chosen.asked_parts("reduce", "max", "/a/b.py:12") == 5
    assert chosen.asked_parts("reduce", "max", "/a/bb.py:12") == 4
    assert chosen.asked_parts("contract", "", "/a/b.py:1") is None
    assert Options(split={"my model.py:3": 3}).asked_parts("reduce", "max", "/my model.py:3") == 3
    for wrong in ({"reduce": 0}, {"reduce": True}, {3: 3}, 7):
        with pytest.raises(OptionsError, match="split is"):
            Options(split=wrong)  # type: ignore[arg-type]


def test_what_split_names_exists() -> None:
    """A key that nothing can match is a mistake."""
    for fn in REDUCE_FUNCTIONS:
        assert Options(split={f"reduce {fn}": 3}).asked_parts("reduce", fn, "a.py:1") == 3
    words = ["", "reduce", "contract", "conv", "dot", "cumulative", "add", "max", "bogus", "sum"]
    words += ["a.py", "12", "0", "x:y"]
    known = {"reduce", "contract", "conv", *(f"reduce {fn}" for fn in REDUCE_FUNCTIONS)}
    for first, second, by in itertools.product(words, words, " :\t"):
        for key in {first, first + by, by + first, first + by + second}:
            if key in known or (":12" in key and key[0] != ":"):
                Options(split={key: 3})
                continue
            with pytest.raises(OptionsError, match=r"unknown .* in Options"):
                Options(split={key: 3})
    with pytest.raises(OptionsError, match=r"unknown 'reduce maxx' in Options"):
        Options(split={"reduce maxx": 3})


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


def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, np.dtype[Any]]:
    rng = np.random.default_rng(0)
    if np.dtype(dtype) == np.bool_:
        return rng.random(shape) > 0.9999
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def weights(x: Any) -> Any:
    """The gradient of the weights of a convolution."""
    w = jnp.zeros((x.shape[1], x.shape[1], 3, 3), x.dtype)
    forward = lambda w: lax.conv_general_dilated(x, w, (2, 1), "SAME")  # noqa: E731
    (made,) = jax.linear_transpose(forward, w)(forward(w + 1))
    return made


CASES = [
    (lambda x: jnp.argmax(x), (3007,), np.float32),
    (lambda x: jnp.argmin(x), (2621,), np.float32),
    (lambda x: jnp.argmax(x), (3007,), np.bool_),
    (lambda x: jnp.argmax(x), (3007,), np.uint8),
    (lambda x: jnp.argmax(x, 0), (1000, 3), np.int32),
    (lambda x: jnp.argmin(x, 1), (3, 2003), np.float32),
    (lambda x: x.sum(0), (1003, 3), np.float32),
    (lambda x: x.sum((0, 2)), (3, 2, 500), np.int32),
    (lambda x: x.sum(), (67, 50), np.float32),
    (lambda x: x.sum(), (319, 10), ml_dtypes.bfloat16),
    (lambda x: x.prod(), (319,), np.uint64),
    (lambda x: x.any(), (3007,), np.bool_),
    (lambda x: x.all(), (3007,), np.bool_),
    (lambda x: (x.max(), x.min()), (3007,), np.int16),
    (lambda x: x.T @ x, (1003, 3), np.float16),
    (lambda x: jnp.einsum("abc,abd->cd", x, x), (7, 103, 3), np.int8),
    (lambda x: weights(x), (9, 2, 12, 11), np.float32),
    (lambda x: weights(x), (1, 2, 12, 11), np.int32),
]


@pytest.mark.parametrize("parts", [2, 7, 77])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_stay(number: int, parts: int) -> None:
    fn, shape, dtype = CASES[number]
    x = array(shape, dtype)
    plain, split_up = graph_of(fn, x), graph_of(fn, x)
    options = Options(verify=True, split=dict.fromkeys(("reduce", "contract", "conv"), parts))
    decisions = run_steps(split_up, (STEP,), options)
    assert any(decision.applied for decision in decisions)
    for want, found in zip(interpret(plain, [x]), interpret(split_up, [x]), strict=True):
        if np.issubdtype(want.dtype, np.integer) or want.dtype == np.bool_:
            np.testing.assert_array_equal(found, want)
        else:
            np.testing.assert_allclose(
                found.astype(np.float64),
                want.astype(np.float64),
                rtol=1e-5 if want.dtype == np.float32 else 1e-2,
                atol=1e-5 if want.dtype == np.float32 else 1e-2,
            )


@pytest.mark.parametrize("places", [(5, 5), (5, 2990), (2999, 3006), (3006, 3006)])
@pytest.mark.parametrize("value", [np.nan, np.inf, 100.0])
def test_the_first_of_equals(places: tuple[int, int], value: float) -> None:
    x = array((3007,), np.float32)
    x[list(places)] = value
    graph = graph_of(lambda x: jnp.argmax(x), x)
    run_steps(graph, (STEP,), Options(verify=True, split={"reduce": 7}))
    assert int(interpret(graph, [x])[0]) == places[0]


def test_parts_of_parts_are_not_split_again() -> None:
    for shape in ((1 << 18,), (1 << 24,), (3, 1 << 20), (1 << 20, 5), (2, 7, 1 << 17)):
        graph = graph_of(lambda x: x.sum(), np.zeros(shape, np.int8))
        decisions = run_steps(graph, (STEP,), Options(verify=True))
        assert sum(decision.applied for decision in decisions) <= 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("parts", [7, 77])
def test_places_in_types_that_do_not_hold_them_all(dtype: str, parts: int) -> None:
    """They are added up in a type that does; the one that is found is converted."""
    x = np.random.default_rng(0).integers(0, 3, 1001).astype(np.float32)
    x[700:] = 3.0  # the first of many equals is beyond 127 and 255
    options = stagejit.Options(split={"reduce": parts})
    f = stagejit.jit(lambda x: jax.lax.argmax(x, 0, np.dtype(dtype)), options=options)
    assert len(f.plan(x).dispatches) == 2
    assert int(f(x)) == int(np.asarray(700).astype(dtype))
