"""split-reduce: what is split, what is not and why, and that results stay."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.graph.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites import split
from stagejit.rewrites.driver import LocalStep, run_steps
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = LocalStep("split", (split.split_reduce,))


def test_a_long_sum() -> None:
    assert rewritten(split.split_reduce, """\
        graph @f(%x: f32[1048576]) {
          %0: f32[] = reduce add %x axes=(0)
          return %0
        }""") == "\n".join([
            "%0: f32[16,65536] = reshape %x",
            "%1: f32[16] = reduce add %0 axes=(1)",
            "%2: f32[] = reduce add %1 axes=(0)",
            "return %2",
        ])  # fmt: skip


def test_a_remainder_is_joined() -> None:
    text = rewritten(split.split_reduce, """\
        graph @f(%x: f32[1000003]) {
          %0: f32[] = reduce max %x axes=(0)
          return %0
        }""")  # fmt: skip
    assert "f32[10,100000] = reshape" in text
    assert "f32[3] = extract_slice" in text
    assert "map max" in text


def test_dont_split_many_rows() -> None:
    assert unchanged(split.split_reduce, """\
        graph @f(%x: f32[8,1048576]) {
          %0: f32[8] = reduce add %x axes=(1)
          return %0
        }""")  # fmt: skip


def test_dont_split_wide_columns() -> None:
    assert unchanged(split.split_reduce, """\
        graph @f(%x: f32[4096,1024]) {
          %0: f32[1024] = reduce add %x axes=(0)
          return %0
        }""")  # fmt: skip


def test_dont_split_what_is_small() -> None:
    assert reasons(split.split_reduce, """\
        graph @f(%x: f32[100000]) {
          %0: f32[] = reduce add %x axes=(0)
          return %0
        }""") == ["100000 elements are too few to share out"]  # fmt: skip


def test_dont_cut_short_axes() -> None:
    assert reasons(split.split_reduce, """\
        graph @f(%x: f32[1,1,262144]) {
          %0: f32[1,262144] = reduce add %x axes=(0)
          %1: f32[1,262144] = map neg %0
          return %1
        }""") == []  # fmt: skip


def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, np.dtype[Any]]:
    rng = np.random.default_rng(0)
    if np.dtype(dtype) == np.bool_:
        return rng.random(shape) > 0.99999
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


CASES = [
    (lambda x: jnp.argmax(x), (300007,), np.float32),
    (lambda x: jnp.argmin(x), (262144,), np.float32),
    (lambda x: jnp.argmax(x), (300007,), np.bool_),
    (lambda x: jnp.argmax(x), (300007,), np.uint8),
    (lambda x: jnp.argmax(x, 0), (100000, 3), np.int32),
    (lambda x: jnp.argmin(x, 1), (3, 200003), np.float32),
    (lambda x: x.sum(0), (100003, 3), np.float32),
    (lambda x: x.sum((0, 2)), (3, 2, 50000), np.int32),
    (lambda x: x.sum(), (67, 5000), np.float32),
    (lambda x: x.sum(), (319, 1000), ml_dtypes.bfloat16),
    (lambda x: x.any(), (300007,), np.bool_),
    (lambda x: (x.max(), x.min()), (300007,), np.int16),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_stay(number: int) -> None:
    fn, shape, dtype = CASES[number]
    x = array(shape, dtype)
    plain, parts = graph_of(fn, x), graph_of(fn, x)
    decisions = run_steps(parts, (STEP,), Options(verify=True))
    assert any(decision.applied for decision in decisions)
    for want, found in zip(interpret(plain, [x]), interpret(parts, [x]), strict=True):
        if np.issubdtype(want.dtype, np.integer) or want.dtype == np.bool_:
            np.testing.assert_array_equal(found, want)
        else:
            np.testing.assert_allclose(
                found.astype(np.float64),
                want.astype(np.float64),
                rtol=1e-5 if want.dtype == np.float32 else 1e-2,
            )


@pytest.mark.parametrize("places", [(5, 5), (5, 299000), (299999, 300006), (300006, 300006)])
@pytest.mark.parametrize("value", [np.nan, np.inf, 100.0])
def test_the_first_of_equals(places: tuple[int, int], value: float) -> None:
    x = array((300007,), np.float32)
    x[list(places)] = value
    graph = graph_of(lambda x: jnp.argmax(x), x)
    run_steps(graph, (STEP,), Options(verify=True))
    assert int(interpret(graph, [x])[0]) == places[0]


def test_it_ends() -> None:
    """Parts of parts are not split again."""
    for shape in ((1 << 18,), (1 << 24,), (3, 1 << 20), (1 << 20, 5), (2, 7, 1 << 17)):
        graph = graph_of(lambda x: x.sum(), np.zeros(shape, np.int8))
        decisions = run_steps(graph, (STEP,), Options(verify=True))
        assert sum(decision.applied for decision in decisions) <= 2
