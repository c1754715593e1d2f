"""Kernels of sorts, on every target that this machine can run, against NumPy, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.codegen.closed import closed
from stagejit.codegen.cpu.sorting.radix import Radix
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.graph.meaning.interpreter import interpret
from stagejit.options import Options
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.expected.sorts import DTYPES, array, assert_same, order


def check(runner: Runner, fn: Callable[..., Any], *args: Any) -> None:
    """The kernel of `fn`, and the interpreter, give what `fn` gives with `jnp.sort` and the like
    replaced by the stable order of NumPy: bit for bit the interpreter's, which `test_sorting.py`
    compares with NumPy."""
    with jax.enable_x64(True):
        graph = graph_of(fn, *args)
    region = region_of(graph)
    kernel = runner.generate(region)
    inputs = [np.array(x, order="C") for x in args]
    wanted = interpret(graph, inputs)
    for verify in (False, True) if runner.target == Target.host() else (False,):
        found = runner.run(graph, region, kernel, inputs, verify=verify)
        for ours, theirs in zip(found, wanted, strict=True):
            assert_same(ours, np.asarray(theirs, ours.dtype))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(runner: Runner, dtype: str, ties: bool) -> None:
    for shape in ((3, 30), (2, 600)):
        x = array(shape, dtype, ties=ties)
        check(runner, lambda x: lax.sort(x, dimension=1), x)
        check(runner, lambda x: lax.sort((x, x[:, ::-1]), dimension=1, num_keys=1), x)


@pytest.mark.parametrize("dtype", ["float32", "int16", "float64"])
@pytest.mark.parametrize("shape", [(7, 141), (37, 6), (64, 16), (50, 3)], ids=str)
def test_rows_in_registers(runner: Runner, shape: tuple[int, ...], dtype: str) -> None:
    x = array(shape, dtype)
    check(runner, lambda x: lax.sort(x, dimension=1), x)
    check(runner, lambda x: lax.sort(x, dimension=0), x.T)
    check(runner, lambda x: lax.top_k(x, 2), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "shape", [(5, 13, 37), (1, 2, 1), (3, 1, 16), (2, 70, 3), (9, 2, 300), (2, 5000, 1)], ids=str
)
def test_axes(host: Runner, shape: tuple[int, ...], axis: int) -> None:
    if shape[axis] > 1:
        check(host, lambda x: lax.sort(x, dimension=axis), array(shape, "float32"))
        check(host, lambda x: lax.top_k(x, 1 + shape[axis] // 2, axis=axis), array(shape, "int16"))


@settings(max_examples=40)
@given(
    extent=st.sampled_from([2, 3, 15, 40, 100, 700]), dtype=st.sampled_from(DTYPES),
    other=st.sampled_from(DTYPES),
    keys=st.integers(1, 2), ties=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_several_operands(
    extent: int, dtype: str, other: str, keys: int, ties: bool, seed: int
) -> None:
    x, y = array((2, extent), dtype, seed, ties=ties), array((2, extent), other, seed + 1)
    with jax.enable_x64(True):
        f = stagejit.jit(
            lambda x, y: lax.sort((x, y), dimension=1, num_keys=keys),
            options=Options(delegate=False),
        )
        found = f(x, y)
    by = order([x, y][:keys], 1)
    for ours, operand in zip(found, (x, y), strict=True):
        assert_same(ours, np.take_along_axis(operand, by, 1))


@pytest.mark.parametrize("k", [1, 2, 10, 100, 999])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
def test_the_largest(runner: Runner, dtype: str, k: int) -> None:
    check(runner, lambda x: lax.top_k(x, k), array((4, 999), dtype))
    check(runner, lambda x: lax.top_k(x, k), array((2, 999), dtype, ties=True))


@pytest.mark.parametrize("k", [1, 15, 16, 17, 40])
def test_the_largest_of_rows_in_order(host: Runner, k: int) -> None:
    rows = np.arange(1500, dtype=np.int32)
    check(host, lambda x: lax.top_k(x, k), np.stack([rows, rows[::-1], rows // 100, rows * 0]))


@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("extent", [300, 777])
def test_the_least_of_rows_of_the_last_key(host: Runner, extent: int, k: int) -> None:
    x = np.full((4, extent), np.nan, np.float32)
    x[1, -1], x[2, ::2], x[3, : k - 1] = 1, 2, -np.inf
    check(host, lambda x: lax.approx_min_k(x, k), x)


@pytest.mark.parametrize("special", [np.nan, -np.nan, 0.0, -0.0, np.inf, 1e-42])
def test_rows_of_one_number(host: Runner, special: float) -> None:
    x = np.full((2, 50), special, np.float32)
    check(host, lambda x: lax.sort(x, dimension=1), x)
    x[1, ::3] = -x[1, ::3]
    check(host, lambda x: lax.sort(x, dimension=1), x)


def test_what_is_computed_is_sorted_without_being_stored() -> None:
    x = array((40, 30), "float32")
    f = stagejit.jit(lambda x: jnp.sort(jnp.abs(x).T * 2 + 1, 0), options=Options(verify=True))
    assert [dispatch.kind for dispatch in f.plan(x).dispatches] == ["sort"]
    assert_same(f(x), np.sort(np.abs(x).T * 2 + 1, 0))


def digits(extent: int, dtype: str) -> str:
    region = region_of(graph_of(jnp.sort, np.zeros(extent, dtype)))
    return Radix(Rows(closed(region)), Target.avx2()).name


def test_digits_are_wide_where_rows_are_long() -> None:
    assert digits(1 << 20, "uint32") == "digits of 11 bits"
    assert digits(300, "uint32") in ("digits of 7 bits", "digits of 8 bits")
    assert digits(1 << 20, "bool") == "digits of 1 bits"
