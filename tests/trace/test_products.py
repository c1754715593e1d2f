"""Contractions and convolutions keep JAX's dimension numbers as plain tuples."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.verifier import verify
from stagejit.trace.translate import graph_of
from tests.randomness import RNG


def checked(fn: Any, *args: Any) -> Graph:
    graph = graph_of(fn, *args)
    verify(graph)
    ours, theirs = interpret(graph, args)[0], np.asarray(jax.jit(fn)(*args))
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=1e-2, atol=1e-2
    )
    return graph


def only(graph: Graph, kind: str) -> Any:
    (op,) = [op for op in graph if op.kind == kind]
    return op


def test_batch_and_contracting_dimensions() -> None:
    graph = checked(
        lambda x, y: jnp.einsum("bmk,nbk->bmn", x, y), RNG.random((2, 3, 4), np.float32),
        RNG.random((5, 2, 4), np.float32),
    )  # fmt: skip
    op = only(graph, "contract")
    assert op.attrs["contracting"] == ((2,), (2,))
    assert op.attrs["batch"] == ((0,), (1,))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_integer_products_keep_narrow_operands_and_a_wide_result(dtype: Any) -> None:
    x = RNG.integers(0, 100, (3, 4)).astype(dtype)
    graph = checked(lambda x: lax.dot(x, x.T, preferred_element_type=jnp.int32), x)
    assert only(graph, "contract").operands[0].type.dtype.numpy == dtype


def test_integer_products_wrap() -> None:
    x = np.full((2, 2), 100, np.int8)
    checked(lambda x: lax.dot(x, x), x)


def test_bf16_products_with_an_f32_result() -> None:
    x = RNG.random((3, 4)).astype(jnp.bfloat16)
    graph = checked(lambda x: lax.dot(x, x.T, preferred_element_type=jnp.float32), x)
    assert only(graph, "contract").attrs["dtype"].name == "f32"


def test_mixed_operands_are_converted_to_the_result() -> None:
    x, y = RNG.random((3, 4), np.float32), RNG.integers(0, 9, (4, 2)).astype(np.int8)
    graph = checked(
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())),
                                     preferred_element_type=jnp.float32), x, y,
    )  # fmt: skip
    assert [op.kind for op in graph].count("convert") == 1


TYPES: list[tuple[Any, Any]] = [
    (np.float32, np.float32), (jnp.bfloat16, np.float32), (jnp.bfloat16, jnp.bfloat16),
    (np.float16, jnp.bfloat16), (np.float32, np.float16), (np.int8, np.int32), (np.int8, np.int8),
    (np.int16, np.int32), (np.uint8, np.uint32), (np.bool_, np.bool_), (np.float32, np.int32),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_product_of_one_element_each_is_one_of_elements(seed: int) -> None:
    """Axes in any order: shared ones, and others of one element. It is rounded once, which bits
    show."""
    rng = np.random.default_rng(seed)
    own, wanted = TYPES[seed % len(TYPES)]
    shared, summed = rng.integers(1, 5, rng.integers(0, 3)).tolist(), [1] * rng.integers(0, 3)
    operands, batch, contracting, places = [], [], [], []
    for _ in range(2):
        free = [1] * rng.integers(0, 3)
        sizes = [*shared, *summed, *free]
        order = rng.permutation(len(sizes)).tolist()
        at = [order.index(axis) for axis in range(len(sizes))]
        batch.append(tuple(at[: len(shared)]))
        contracting.append(tuple(at[len(shared) :][: len(summed)]))
        places.append(sorted(at[len(shared) + len(summed) :]))
        values = rng.integers(-120, 120, [sizes[axis] for axis in order]) * 1.37
        operands.append(np.asarray(values).astype(own))
    numbers: Any = tuple(contracting), tuple(batch)
    dot = functools.partial(
        lax.dot_general, dimension_numbers=numbers, preferred_element_type=wanted
    )
    graph = graph_of(dot, *operands)
    verify(graph)
    assert "contract" not in [op.kind for op in graph]
    left, right = (
        np.transpose(x, (*b, *place, *k)).reshape([x.shape[axis] for axis in (*b, *place)])
        for x, b, place, k in zip(operands, batch, places, contracting, strict=True)
    )
    left = np.reshape(left, (*left.shape, *(1 for _ in places[1])))
    right = np.reshape(right, (*shared, *(1 for _ in places[0]), *right.shape[len(shared) :]))
    wide = np.int64 if np.issubdtype(own, np.integer) else np.float64
    expected = left.astype(wide) * right.astype(wide)
    (ours,) = interpret(graph, operands)
    theirs = np.asarray(jax.jit(dot)(*operands))
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape == expected.shape
    if own is np.float32 and wanted is np.int32:
        expected = expected.astype(np.float32)
    np.testing.assert_array_equal(ours, expected.astype(wanted))


@pytest.mark.parametrize("terms", [("i", "k"), ("bik", "ik"), ("i", "ik")])
def test_what_repeats_a_side_stays_a_product(terms: tuple[str, str]) -> None:
    x, y = (RNG.random(["..bik".index(axis) for axis in term], np.float32) for term in terms)
    shared = [axis for axis in terms[0] if axis in terms[1]]
    left, right = (tuple(term.index(axis) for axis in shared) for term in terms)
    dot = functools.partial(lax.dot_general, dimension_numbers=(((), ()), (left, right)))
    only(checked(dot, x, y), "contract")


def test_a_product_of_bools_is_any_of_ands() -> None:
    x = RNG.random((3, 4)) > 0.7
    graph = checked(lambda x: lax.dot(x, x.T), x)
    assert "delegate" not in [op.kind for op in graph]


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
@pytest.mark.parametrize("wanted", [np.int8, np.int32, np.uint32, np.bool_])
def test_sums_of_floats_are_converted_not_their_terms(dtype: Any, wanted: Any) -> None:
    x = (RNG.integers(-3, 9, (4, 7)) / 4).astype(dtype)
    y = np.abs(RNG.integers(-6, 9, (7, 3)) / 4).astype(dtype)
    graph = checked(lambda x, y: lax.dot(x, y, preferred_element_type=wanted), x, y)
    sums = x.astype(np.float64) @ y.astype(np.float64)
    sums = sums if wanted == np.bool_ else np.trunc(np.maximum(sums, np.iinfo(wanted).min))
    np.testing.assert_array_equal(interpret(graph, [x, y])[0], sums.astype(wanted))


def test_dont_cut_small_factors_off_before_a_bool_says_whether_there_are_any() -> None:
    x, y = np.array([[0.25, 0, 1]], np.float32), np.array([[0.5], [0], [0]], np.float16)
    checked(lambda x, y: lax.dot(x, y, preferred_element_type=bool), x, y)


def test_every_precision_is_met() -> None:
    x = RNG.random((3, 4), np.float32)
    for precision in lax.Precision:
        checked(lambda x, p=precision: lax.dot(x, x.T, precision=p), x)


SHORT: list[tuple[Any, Any, bool]] = [
    ("high", np.float32, True), ("tensorfloat32", np.float32, True), (None, np.float32, False),
    ("TF32_TF32_F32", np.float32, True), ("TF32_TF32_F32_X3", np.float32, False),
    ("highest", np.float32, False), ("default", np.float32, False),
    ("F32_F32_F32", np.float32, False), (("high", "highest"), np.float32, False),
    ("high", jnp.bfloat16, False),
]  # fmt: skip


@pytest.mark.parametrize(("precision", "dtype", "is_short"), SHORT, ids=str)
def test_operands_may_be_rounded_where_the_program_says_so(
    precision: Any, dtype: Any, is_short: bool
) -> None:
    x = np.ones((3, 4), dtype)
    graphs = [graph_of(lambda x: lax.dot(x, x.T, precision=precision), x)]
    if precision is None or isinstance(precision, str):
        with jax.default_matmul_precision(precision or "default"):
            graphs.append(graph_of(lambda x: x @ x.T, x))
    for graph in graphs:
        assert only(graph, "contract").attrs.get("precision") == ("tf32" if is_short else None)
        (made,) = interpret(graph, [x])
        np.testing.assert_array_equal(made, x @ x.T)  # a permission, of which nobody makes use


def test_convolutions_and_products_of_complex_numbers_say_so_too() -> None:
    x, z = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 3), np.complex64)
    graph = graph_of(lambda x: lax.conv(x, x, (1, 1), "SAME", precision="high"), x)
    assert only(graph, "conv").attrs["precision"] == "tf32"
    graph = graph_of(lambda z: lax.dot(z, z, precision="high"), z)
    assert only(graph, "contract").attrs["precision"] == "tf32"


ON_A_CPU = (
    "DEFAULT F16_F16_F16 F32_F32_F32 F64_F64_F64 BF16_BF16_F32 BF16_BF16_F32_X3 BF16_BF16_F32_X6"
)


@pytest.mark.parametrize("algorithm", ON_A_CPU.split())
def test_operands_of_a_named_algorithm_are_converted_to_a_type_that_it_takes(
    algorithm: str,
) -> None:
    kinds = (np.float32, jnp.bfloat16, np.float16, np.int32)
    values = RNG.integers(-8, 9, (3, 4)) * (1 + 2.0**-9)  # more bits than bf16 has
    for left, right in zip((*kinds, *kinds[1:]), (*kinds, *kinds), strict=False):
        x, y = values.astype(left), values.T.astype(right)
        checked(functools.partial(lax.dot, precision=algorithm), x, y)
    wide = functools.partial(lax.dot, precision=algorithm, preferred_element_type=np.float32)
    checked(wide, values.astype(np.float16), values.T.astype(np.float16))


def test_an_algorithm_rounds_no_operand_that_it_takes() -> None:
    x = RNG.random((3, 64), np.float32)
    graph = checked(lambda x: lax.dot(x, x.T, precision="BF16_BF16_F32"), x)
    np.testing.assert_allclose(interpret(graph, [x])[0], x @ x.T, rtol=1e-6)


TF32 = "TF32_TF32_F32 TF32_TF32_F32_X3"  # errors for JAX on a CPU, too


@pytest.mark.parametrize(
    "algorithm",
    sorted(set(lax.DotAlgorithmPreset.__members__) - {*ON_A_CPU.split(), *TF32.split()}),
)
def test_dont_translate_an_algorithm_that_is_an_error_on_a_cpu(algorithm: str) -> None:
    x = np.ones((3, 4), np.float32)
    graph = graph_of(lambda x: lax.dot(x, x.T, precision=algorithm), x)
    assert only(graph, "delegate").attrs["reason"].startswith("dot_general: precision")


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (2, 0, 3), (1, 1, 1), (3, 4, 0)])
def test_empty_and_unit_products(m: int, k: int, n: int) -> None:
    checked(lax.dot, np.ones((m, k), np.float32), np.ones((k, n), np.float32))


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"window_strides": (2, 1)},
    "padded": {"padding": ((1, 2), (0, 3))},
    "cropped": {"padding": ((-1, 0), (0, -2))},
    "lhs dilation": {"lhs_dilation": (2, 3), "padding": ((1, 1), (2, 0))},
    "rhs dilation": {"rhs_dilation": (2, 1)},
    "feature groups": {"feature_group_count": 2, "kernel": (6, 2, 3, 2)},
    "depthwise": {"feature_group_count": 4, "kernel": (4, 1, 3, 2)},
    "batch groups": {"batch_group_count": 2, "kernel": (6, 4, 3, 2)},
    "NHWC": {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "image": (2, 6, 5, 4),
             "kernel": (3, 2, 4, 3)},
    "mixed layouts": {"dimension_numbers": ("NCHW", "HWIO", "HWNC"), "kernel": (3, 2, 4, 3)},
    "bf16 to f32": {"preferred_element_type": jnp.float32, "dtype": jnp.bfloat16},
    "empty result": {"padding": ((-4, 0), (0, 0))},
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    params = dict(CONVOLUTIONS[name])
    dtype = params.pop("dtype", np.float32)
    image = RNG.random(params.pop("image", (2, 4, 6, 5))).astype(dtype)
    kernel = RNG.random(params.pop("kernel", (3, 4, 3, 2))).astype(dtype)
    params = {"window_strides": (1, 1), "padding": "VALID"} | params
    graph = checked(lambda x, k: lax.conv_general_dilated(x, k, **params), image, kernel)
    assert [op.kind for op in graph] == ["empty" if name == "empty result" else "conv"]


def test_convolutions_of_one_and_three_dimensions() -> None:
    for rank in (1, 3):
        image = RNG.random((2, 3, *(5,) * rank)).astype(np.float32)
        kernel = RNG.random((4, 3, *(2,) * rank)).astype(np.float32)
        checked(
            lambda x, k, rank=rank: lax.conv_general_dilated(x, k, (2,) * rank, "SAME"),
            image, kernel,
        )  # fmt: skip
