"""Sums that are neighbours are stored together, and read as they were stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.codegen.cpu.contract.joining import joined
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32
from stagejit.codegen.nest.tree import pieces_of
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.test_contract import array
from tests.codegen.regions import Runner, region_of

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
ROWS = [1, 2, 3, 5, 7, 8, 9, 11, 13, 15, 16, 17, 21, 31, 40]


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ([0], [(0, 0)]),
        ([0, 1, 2, 3, 4], [(0, 4), (4, 0)]),
        ([4, 3, 2, 1, 0], [(0, 4), (4, 0)]),
        ([0, 2, 4], [(0, 0), (2, 0), (4, 0)]),
        ([7, 0, 1, 6, 2, 3, 9], [(0, 4), (6, 2), (9, 0)]),
        (list(range(11)), [(0, 8), (8, 2), (10, 0)]),
        (list(range(20)), [(0, 8), (8, 8), (16, 4)]),
    ],
)
@pytest.mark.parametrize("across", [False, True])
def test_neighbours_are_together(
    places: list[int], wanted: list[tuple[int, int]], across: bool
) -> None:
    b = Builder()
    source = b.buffer("in", F32, readonly=True)
    lanes = 8 if across else 0
    sums = [(place, b.load(source, place * 8, lanes)) for place in places]
    found = list(joined(b, sums, 8, across=across))
    assert [(place, total.type.lanes) for place, total in found] == wanted


def stores(f: Callable[..., Any], *args: Any) -> int:
    function = kernel_of(region_of(graph_of(f, *args)), Target.avx2()).function
    return sum(op.opcode == "store" for op in function.walk())


@pytest.mark.parametrize("rows", [2, 3, 5, 7, 8])
@pytest.mark.parametrize("terms", [5, 64])
def test_few_sums_are_stored_by_as_many_stores_as_have_them(rows: int, terms: int) -> None:
    args = array(rows, terms), array(terms)
    assert stores(lambda a, x: a @ x, *args) - packed(*args) == pieces_of(rows, 8, 2)


def packed(a: Any, x: Any) -> int:
    """Stores that pack an operand."""
    text = kernel_of(region_of(graph_of(lambda a, x: a @ x, a, x)), Target.avx2()).loops
    return text.count("pack\n") // 2


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("terms", [1, 3, 9, 16, 33, 200])
def test_products_of_rows(runner: Runner, rows: int, terms: int) -> None:
    a, x = array(rows, terms), array(terms)
    runner.check(lambda a, x: a @ x, a, x)
    runner.check(lambda a, x: jnp.tanh(a @ x * 0.1 + 1), a, x)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int8])
@pytest.mark.parametrize("rows", [3, 8, 13])
def test_products_of_rows_in_other_types(runner: Runner, rows: int, dtype: Any) -> None:
    a, x = array(rows, 37, dtype=dtype), array(37, dtype=dtype)
    runner.check(lambda a, x: a @ x, a, x)
    runner.check(lambda a, x: jnp.maximum(a @ x, 1) * 2, a, x)


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_products_of_few_columns(runner: Runner, columns: int) -> None:
    a, w = array(7, 100), array(columns, 100)
    runner.check(lambda a, w: a @ w.T, a, w)
    runner.check(lambda a, w: jnp.maximum(w @ a.T, 0) + 1, a, w)
    runner.check(lambda a, w: (a @ w.T).T * 2, a, w)


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_sums_that_are_stored_twice_or_elsewhere(rows: int) -> None:
    def f(a: Any, x: Any) -> Any:
        y = a @ x
        return y, jnp.flip(y), jnp.pad(y, (1, 2)), y[::-1] * jnp.arange(rows, dtype=np.float32)

    args = array(rows, 50), array(50)
    found = stagejit.jit(f, options=stagejit.Options(verify=True))(*args)
    for ours, theirs in zip(found, f(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
