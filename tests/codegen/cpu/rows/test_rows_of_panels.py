"""Columns that are reduced: how many rows a panel reads at once, and how wide it is."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.choices import BY_ROWS
from stagejit.codegen.target import Target, _make
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.tiling.test_asked_ahead import lines, traffic
from tests.codegen.regions import Compile, Runner, kernel_of, region_of
from tests.expected import rounding
from tests.randomness import RNG


def cpu(name: str, last_nbytes: int = 32 << 20) -> Target:
    host = Target.host()
    caches = {1: 32 << 10, 2: min(1 << 20, last_nbytes), 3: last_nbytes}
    return _make(host.name, host.triple, name, host.features, caches, cores=2)


def reasons(fn: Any, shape: tuple[int, ...], target: Target, dtype: Any = np.float32) -> list[str]:
    with jax.enable_x64(True):
        kernel = kernel_of(region_of(graph_of(fn, np.zeros(shape, dtype))), target)
    return [choice.reason for choice in kernel.choices if choice.name == "order"]


def columns(x: Any) -> Any:
    """In parts, as sums of many rows are split."""
    return x.reshape(8, -1, x.shape[-1]).max(1)


@pytest.mark.parametrize(("rows", "width", "dtype", "one_by_one"), [
    (1 << 18, 64, np.float32, True), (1 << 16, 300, np.float32, True),
    (1 << 15, 512, np.float32, True), (1 << 16, 256, np.float64, True),
    (1 << 20, 16, np.float32, False),  # a line is in order anyway
    (1 << 14, 1024, np.float32, False),  # rows have pages of their own
    (1 << 15, 512, np.float64, False),
    (1 << 12, 64, np.float32, False),  # a cache holds all
])  # fmt: skip
def test_rows_that_share_a_page_of_memory_are_read_one_by_one(
    rows: int, width: int, dtype: Any, *, one_by_one: bool
) -> None:
    found = reasons(columns, (rows, width), cpu("znver4"), dtype)
    assert found == ([BY_ROWS] if one_by_one else [])


def test_cores_that_ask_for_lines_ahead_read_several_rows_at_once() -> None:
    assert reasons(columns, (1 << 16, 256), cpu("znver4"))
    assert not reasons(columns, (1 << 16, 256), cpu("cascadelake"))


def test_panels_that_are_parts_of_rows_take_several_at_once() -> None:
    """There are too few parts for all cores to have whole rows."""

    def all_rows(x: Any) -> Any:
        return x.max(0)

    assert not reasons(all_rows, (1 << 16, 300), cpu("znver4"))


def test_a_large_array_and_a_small_one() -> None:
    """Only what comes from memory counts."""

    def weighted(x: Any, y: Any) -> Any:
        return columns(x * y[:, :1])

    args = np.zeros((1 << 16, 300), np.float32), np.zeros((1 << 16, 1), np.float32)
    kernel = kernel_of(region_of(graph_of(weighted, *args)), cpu("znver4"))
    assert BY_ROWS in [choice.reason for choice in kernel.choices]


@pytest.mark.parametrize("width", [48, 64, 100, 500])
def test_lines_are_read_in_the_order_of_memory(width: int) -> None:
    x = np.ones((40_000 // width * 8, width), np.float32)
    read = lines(traffic(columns, x, of=0, cpu="znver4"), "load")
    assert len(set(read)) == -(-x.size // 16)
    assert all(later >= line - 1 for line, later in itertools.pairwise(read))


@pytest.mark.parametrize("fn", [
    lambda x: x.sum(1), lambda x: x.max(1), lambda x: jnp.argmin(x, 1), lambda x: x.var(1),
    lambda x: (x.sum(1), (x * x).max(1)), lambda x: x[..., 1:].sum(1),
    lambda x: jnp.exp(x - x.max(1, keepdims=True)), lambda x: x[:, ::-1].sum(1),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(1000, 33), (2345, 64), (130, 301), (15, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values(compile_kernel: Compile, fn: Any, shape: tuple[int, int], dtype: Any) -> None:
    """On a machine whose caches are so small that all of this is far away."""
    x = RNG.standard_normal((5, shape[0] // 5, shape[1])).astype(dtype)
    Runner(compile_kernel, cpu("znver4", 4 << 10)).check(fn, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [40, 500])
def test_sums_of_single_rows_are_in_runs(compile_kernel: Compile, width: int) -> None:
    """So that they are as exact as those of eight at once."""
    x = RNG.random((4, 1 << 14, width), np.float32)
    runner = Runner(compile_kernel, cpu("znver4", 4 << 10))
    graph = graph_of(lambda x: x.sum(1), x)
    region = region_of(graph)
    kernel = kernel_of(region, runner.target)
    assert BY_ROWS in [choice.reason for choice in kernel.choices]
    (found,) = runner.run(graph, region, kernel, [x])
    off = np.abs(found / x.sum(1, dtype=np.float64) - 1).max()
    assert off < rounding.of_sum(x.shape[1], np.float32)
