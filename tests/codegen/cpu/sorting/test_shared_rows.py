"""Rows that several cores share: every kernel, for machines of any number of cores, against NumPy,
bit for bit; which rows they are; programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.cpu.sorting import shared_radix
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.options import Options
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.sorting.test_sorts import check
from tests.codegen.regions import Runner, region_of
from tests.expected.sorts import DTYPES, array, assert_same

CORES = (2, 8)
EXTENTS = (260, 960)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are shared, however short they are."""
    for name in ("_MOVE", "_BIN", "FORK_SECONDS", "HOT_FORK_SECONDS"):
        monkeypatch.setattr(shared_radix, name, 0)


def shared(runner: Runner, cores: int, fn: Any, *args: Any) -> None:
    with jax.enable_x64(True):
        region = region_of(graph_of(fn, *args))
    target = replace(runner.target, cores=cores)
    assert len(kernel_of(region, target).passes) > 1
    for each in {target, replace(Target.host(), cores=cores)} & {target}:
        check(Runner(runner.compile, each), fn, *args)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(runner: Runner, dtype: str, cores: int) -> None:
    for extent, ties in zip(EXTENTS, (False, True), strict=True):
        x = array((1, extent), dtype, extent, ties=ties)
        shared(runner, cores, lambda x: lax.sort(x, dimension=1), x)
        shared(runner, cores, lambda x: lax.sort((x, x[:, ::-1]), dimension=1, num_keys=1), x)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("cores", CORES)
def test_several_keys_and_rows(runner: Runner, cores: int) -> None:
    x, y = array((2, 600), "int16", ties=True), array((2, 600), "float32", 1, ties=True)
    shared(runner, cores, lambda x, y: lax.sort((x, y), dimension=1, num_keys=2), x, y)
    shared(runner, cores, lambda x, y: lax.sort((y, x, x), dimension=1, num_keys=1), x, y)
    shared(runner, cores, lambda x, y: lax.sort((y, x), dimension=0, num_keys=2), x.T, y.T)
    shared(runner, cores, lambda x: lax.sort((x * 2, x), dimension=1, num_keys=1), y)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("k", [3, 64, 65, 333, 599])
def test_the_largest(runner: Runner, k: int) -> None:
    for dtype in ("float32", "int8"):
        shared(runner, 4, lambda x: lax.top_k(x, k), array((1, 600), dtype, ties=True))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("number", [0.0, -0.0, np.nan, 7.0])
def test_rows_of_few_numbers(runner: Runner, number: float) -> None:
    """Digits that are the same all over the row; what keys do not tell, in one chunk or several."""
    x = np.full((2, 500), number, np.float32)
    shared(runner, 3, lambda x: lax.sort(x, dimension=1), x)
    x[0, 77] = -number
    x[1, ::3] = -number
    shared(runner, 3, lambda x: lax.sort(x, dimension=1), x)
    shared(runner, 3, lambda x: lax.sort((x, x + 1), dimension=1, num_keys=1), x)


def sort_of(shape: tuple[int, ...], cores: int, dtype: str = "float32") -> Kernel:
    x = jax.ShapeDtypeStruct(shape, dtype)
    region = region_of(graph_of(lambda x: lax.sort(x, dimension=len(shape) - 1), x))
    return kernel_of(region, replace(Target.avx512(), cores=cores))


@pytest.mark.parametrize("cores", [2, 8, 64, 128])
def test_each_core_has_a_chunk_of_a_long_row(cores: int) -> None:
    assert sort_of((1 << 24,), cores).total == cores
    assert sort_of((4, 1 << 24), 64).total == 64


def test_short_rows_and_many_are_not_shared() -> None:
    assert sort_of((1 << 16,), 2).total == 1
    assert sort_of((64, 1 << 16), 8).passes == ((),)
    assert sort_of((1 << 24,), 1).passes == ((),)


def test_few_rows_are_shared_where_cores_would_idle() -> None:
    assert sort_of((8, 1 << 20), 64).total == 64
    assert sort_of((8, 1 << 20), 8).total == 8


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("verify", [False, True])
def test_programs(monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    """On the machine itself; beside another sort, and in a loop whose iterations threads share."""
    target = replace(Target.host(), cores=4)
    monkeypatch.setattr(Target, "host", lambda: target)
    options = Options(verify=verify, delegate=False)
    x = array((1 << 19,), "float32")

    @stagejit.jit(options=options)
    def both(x: jax.Array) -> Any:
        rows = x.reshape(4, -1)
        return jnp.sort(x), jnp.argsort(x + 1), lax.map(jnp.sort, jnp.concatenate([rows, rows], 1))

    nbytes = both.lower(x).compile().memory_analysis()["workspace_nbytes"]
    assert nbytes >= 2 * 2 * x.nbytes  # two halves of keys, and of places
    sorted_, places, rows = both(x)
    assert_same(sorted_, np.sort(x, kind="stable"))
    assert_same(places, np.argsort(x + 1, kind="stable").astype(np.int32))
    assert_same(rows, np.sort(np.concatenate([x.reshape(4, -1)] * 2, 1), 1, kind="stable"))
