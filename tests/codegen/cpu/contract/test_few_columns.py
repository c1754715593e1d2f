"""Products of few columns have vectors that these fill, where they are quicker so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.test_contract import array
from tests.codegen.machine_model.machines import server
from tests.codegen.regions import Runner, region_of

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def widths(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[str]:
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    made = kernel_of(region_of(graph_of(f, *args)), server("znver4", 2))
    return [each.reason for each in made.choices if each.name == "width"]


@pytest.mark.parametrize(("columns", "nbytes"), [(3, 16), (4, 16), (5, 32), (8, 32)])
def test_few_columns_fill_their_vectors(columns: int, nbytes: int) -> None:
    (told,) = widths(jnp.matmul, (100_000, 32), (32, columns))
    assert told.startswith(f"vectors of {nbytes} bytes")
    assert widths(lambda w, a: a @ w.T, (columns, 32), (100_000, 32))


def test_long_rows_beside_few_fill_long_vectors() -> None:
    (told,) = widths(jnp.matmul, (5, 32), (32, 100_000))
    assert told.startswith("vectors of 64 bytes")


def test_few_columns_of_a_convolution() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    (told,) = widths(f, (4, 5000, 8), (3, 8, 4))
    assert told.startswith("vectors of 64 bytes")  # along the axis of the window


def test_rows_that_are_long_have_dot_products() -> None:
    (told,) = widths(jnp.matmul, (20_000, 1024), (1024, 4))
    assert told.startswith("vectors of 64 bytes")


@pytest.mark.parametrize(
    ("f", "shapes", "dtype"),
    [
        (jnp.matmul, [(100_000, 32), (32, 9)], np.float32),
        (jnp.matmul, [(100_000, 32), (32, 2)], np.float32),
        (jnp.matmul, [(100_000, 32), (32,)], np.float32),
        (jnp.matmul, [(100_000, 32), (32, 4)], np.int32),
        (jnp.matmul, [(8, 512, 512), (8, 512, 512)], np.float32),
        (jnp.matmul, [(4, 4), (4, 4)], np.float32),
    ],
)
def test_other_products_have_one_width(
    f: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: Any
) -> None:
    assert not widths(f, *shapes, dtype=dtype)


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("terms", [9, 32, 64])
def test_products_of_few_columns(runner: Runner, columns: int, terms: int) -> None:
    a, w = array(301, terms), array(terms, columns)
    runner.check(lambda a, w: a @ w, a, w)
    runner.check(lambda a, w: jnp.tanh(a @ w * 0.1).T, a, w)
    runner.check(lambda a, w: jnp.maximum(w.T @ a.T, 0) + 1, a, w)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, jnp.bfloat16])
def test_products_of_few_columns_in_other_types(runner: Runner, dtype: Any) -> None:
    a, w = array(301, 40, dtype=dtype), array(40, 4, dtype=dtype)
    runner.check(lambda a, w: lax.dot(a, w, preferred_element_type=np.float32), a, w)
