"""Scatters on a GPU: the tests of the CPU's kernels again, and what only threads have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.test_scatter import (  # noqa: F401  collected here once more
    array,
    test_batches,
    test_columns,
    test_dtypes,
    test_elements,
    test_index_types,
    test_long_windows_that_overlap,
    test_nan_and_infinity,
    test_prologue,
    test_promised_unique,
    test_rows,
    test_windows_at_points,
    update,
)
from tests.codegen.regions import region_of
from tests.cuda.machine import run
from tests.cuda.regions import CudaRunner
from tests.randomness import RNG


@pytest.fixture(name="runner")
def _runner() -> CudaRunner:
    return CudaRunner()


@pytest.fixture(name="host")
def _host() -> CudaRunner:
    return CudaRunner()


def scattered(fn: str, x: Any, at: Any, u: Any, *, mode: str = "fill", unique: bool = False) -> Any:
    """Windows of one row each."""
    numbers = lax.ScatterDimensionNumbers(tuple(range(1, x.ndim)), (0,), (0,))
    scatter = {"add": lax.scatter_add, "set": lax.scatter, "max": lax.scatter_max}[fn]
    return scatter(x, at[:, None], u, numbers, mode=mode, unique_indices=unique)


def owners_of(kernel: Kernel) -> str:
    return next(choice.reason for choice in kernel.choices if choice.name == "owners")


@pytest.mark.parametrize(
    ("fn", "dtype", "wanted"),
    [
        ("add", np.int32, "atomics"), ("add", np.uint64, "atomics"), ("max", np.int64, "atomics"),
        ("max", np.float32, "atomics"), ("add", np.float32, "warps own"),
        ("add", np.float64, "warps own"), ("set", np.int32, "warps own"),
        ("add", np.int8, "warps own"), ("max", np.bool_, "warps own"),
    ],
)  # fmt: skip
def test_who_applies_updates(runner: CudaRunner, fn: str, dtype: Any, wanted: str) -> None:
    """Atomics where the order is all the same, else owners of the destination."""
    at = RNG.integers(-5, 110, 131).astype(np.int32)
    kernel = runner.check(
        lambda x, i, u: scattered(fn, x, i, u), array(101, 3, dtype=dtype), at,
        array(131, 3, dtype=dtype), rtol=1e-4,
    )  # fmt: skip
    assert owners_of(kernel).startswith(wanted)


def test_unique_updates_have_a_thread_each(runner: CudaRunner) -> None:
    at = RNG.permutation(101).astype(np.int32)[:70]
    kernel = runner.check(
        lambda x, i, u: scattered("add", x, i, u, unique=True), array(101, 5), at, array(70, 5)
    )
    assert owners_of(kernel).startswith("no two windows")


@pytest.mark.parametrize("columns", [1, 31, 33, 70])
def test_warps_share_long_windows(runner: CudaRunner, columns: int) -> None:
    """Of several axes, too; the last of several that are set stays."""
    at = RNG.integers(-1, 12, 100).astype(np.int32)
    for shape in ((columns,), (3, columns)):
        for fn in ("set", "add"):
            kernel = runner.check(
                lambda x, i, u, fn=fn: scattered(fn, x, i, u), array(11, *shape), at,
                array(100, *shape), rtol=1e-4,
            )  # fmt: skip
            assert owners_of(kernel).startswith("warps own")


def test_threads_own_places_of_large_windows(runner: CudaRunner) -> None:
    at = np.array([1, 6, 1, 9], np.int32)
    kernel = runner.check(
        lambda x, i, u: scattered("add", x, i, u), array(7, 3000), at, array(4, 3000)
    )
    assert owners_of(kernel).startswith("threads own")


def test_one_thread_has_all_of_windows_that_overlap(runner: CudaRunner) -> None:
    """A range is owned of an axis along which they do not."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    at = np.stack([RNG.integers(0, 40, 60), RNG.integers(-1, 12, 60)], 1).astype(np.int32)
    for fn in (lax.scatter, lax.scatter_add):
        kernel = runner.check(
            lambda x, i, u, fn=fn: fn(x, i, u, numbers), array(40, 15), at, array(60, 5), rtol=1e-4
        )
        assert owners_of(kernel).startswith("threads own 40 ranges")


def test_results_do_not_depend_on_the_device(runner: CudaRunner) -> None:
    """Bit for bit: sums are in the order of the index vectors, whoever owns what."""
    x, at, u = array(90, 3), RNG.integers(0, 90, 400).astype(np.int32), array(400, 3)
    graph = graph_of(lambda x, i, u: scattered("add", x, i, u), x, at, u)
    region = region_of(graph)
    found = []
    for device in (runner.target, replace(runner.target, cores=1, threads_a_core=64)):
        kernel = kernel_of(region, device)
        found += CudaRunner(device).run(graph, region, kernel, [x, at, u])
    np.testing.assert_array_equal(*found)
    wanted = x.copy()
    np.add.at(wanted, at, u)
    np.testing.assert_array_equal(found[0], wanted)


def test_in_programs() -> None:
    """Into memory that is reused, and whose operand is made before."""
    rows, values = array(50, 7), array(23, 7)
    at = RNG.integers(0, 50, 23).astype(np.int32)

    def program(x: Any, i: Any, u: Any) -> Any:
        y = jnp.tanh(x).at[i].add(u * 2)
        z = jax.ops.segment_sum(u, i % 5, num_segments=5)
        return y.at[i[:3]].set(0.0), z, jax.grad(lambda x: jnp.sin(x[i]).sum())(x)

    found = run(program, rows, at, values, resources=True)
    for x, y in zip(found, jax.tree.leaves(jax.jit(program)(rows, at, values)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
