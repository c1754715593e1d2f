"""split-reduce: results stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.trace.translate import graph_of
from tests.rewrites.split.reducing import STEP


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
