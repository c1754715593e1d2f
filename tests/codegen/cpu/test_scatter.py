"""Kernels of scatter regions against the interpreter, on every target that this machine can run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
MODES = ["clip", "fill", "promise_in_bounds"]
INDICES = np.array([3, 4, 19, 3, 0, 7, 70, -60, 3, 20], np.int32)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    if np.dtype(dtype) == np.bool_:
        return RNG.random(shape) > 0.5
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(0, 100, shape).astype(dtype)
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


def update(x: Any, fn: str, indices: Any, updates: Any, mode: str = "fill", axis: int = 0) -> Any:
    """`x.at[indices].fn(updates)` along an axis, without JAX's treatment of negative indices."""
    window = tuple(k for k in range(x.ndim) if k != axis)
    numbers = lax.ScatterDimensionNumbers(window, (axis,), (axis,))
    scatter = {
        "set": lax.scatter,
        "add": lax.scatter_add,
        "mul": lax.scatter_mul,
        "min": lax.scatter_min,
        "max": lax.scatter_max,
    }[fn]
    return scatter(x, indices[:, None], updates, numbers, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", ["set", "add", "mul", "min", "max"])
def test_rows(runner: Runner, fn: str, mode: str) -> None:
    indices = INDICES % 20 if mode == "promise_in_bounds" else INDICES
    runner.check(lambda x, i, u: update(x, fn, i, u, mode), array(20, 37), indices, array(10, 37))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", ["set", "add"])
def test_elements(runner: Runner, fn: str, mode: str) -> None:
    indices = RNG.integers(0, 20, 1000).astype(np.int32)
    if mode != "promise_in_bounds":
        indices[:5] = -3, 20, 1000, -1000, 19
    runner.check(
        lambda x, i, u: update(x, fn, i, u, mode), array(20), indices, array(1000), rtol=1e-4
    )


def test_columns(runner: Runner) -> None:
    """The updates' last axis is that of the index vectors."""
    numbers = lax.ScatterDimensionNumbers((0,), (1,), (1,))
    runner.check(
        lambda x, i, u: lax.scatter_add(x, i[:, None], u, numbers),
        array(37, 20),
        INDICES % 20,
        array(37, 10),
    )


def test_windows_at_points(runner: Runner) -> None:
    """Windows that move along two axes and overlap."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    at = np.array([[0, 0], [3, 5], [4, 6], [17, 30], [18, 30], [-1, 3]], np.int32)
    for mode in ("clip", "fill"):
        runner.check(
            lambda x, i, u, mode=mode: lax.scatter_add(x, i, u, numbers, mode=mode),
            array(20, 37),
            at,
            array(6, 3, 7),
        )
    points = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
    runner.check(lambda x, i, u: lax.scatter(x, i, u, points), array(20, 37), at, array(6))


@pytest.mark.parametrize("fn", ["set", "add"])
def test_long_windows_that_overlap(runner: Runner, fn: str) -> None:
    """Who applies one element of a window has to apply what other windows have there, in order:
    the last of those that are set stays."""
    scatter = lax.scatter if fn == "set" else lax.scatter_add
    cases = [
        (lax.ScatterDimensionNumbers((1,), (), (0,)), (1000,), (3, 700)),
        (lax.ScatterDimensionNumbers((1, 2), (), (0,)), (60, 18), (3, 40, 18)),
        (lax.ScatterDimensionNumbers((1, 2), (), (1,)), (18, 400), (3, 18, 300)),
        (lax.ScatterDimensionNumbers((0, 2), (), (0,)), (60, 400), (50, 3, 400)),
    ]
    for numbers, shape, updates in cases:
        runner.check(
            lambda x, i, u, numbers=numbers: scatter(x, i, u, numbers),
            array(*shape),
            np.array([[0], [10], [4]], np.int32),
            array(*updates),
        )
    both = lax.ScatterDimensionNumbers((1, 2), (), (0, 1), (), ())
    at = np.array([[0, 0], [3, 5], [4, 6]], np.int32)
    runner.check(lambda x, i, u: scatter(x, i, u, both), array(40, 300), at, array(3, 30, 280))


def test_batches(runner: Runner) -> None:
    """Index vectors that belong to rows of the destination."""
    numbers = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))
    at = RNG.integers(-2, 22, (6, 15, 1)).astype(np.int32)
    runner.check(
        lambda x, i, u: lax.scatter_add(x, i, u, numbers, mode="fill"),
        array(6, 20),
        at,
        array(6, 15),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_promised_unique(host: Runner, dtype: Any) -> None:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    at = RNG.permutation(100)[:60].astype(np.int32)[:, None]
    host.check(
        lambda x, i, u: lax.scatter_add(x, i, u, numbers, unique_indices=True),
        array(100, 20, dtype=dtype),
        at,
        array(60, 20, dtype=dtype),
        rtol=0.03 if np.dtype(dtype).itemsize == 2 else None,
    )


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.int8, np.uint16, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float64],
    ids=lambda d: np.dtype(d).name,
)
def test_dtypes(host: Runner, dtype: Any) -> None:
    x, u = array(20, 37, dtype=dtype), array(10, 37, dtype=dtype)
    # Sums are tested elsewhere: see trace/moving/wide_scatters.py.
    no_sums = dtype in (np.bool_, np.float16, ml_dtypes.bfloat16)
    for fn in ("set", "max") if no_sums else ("set", "add", "max"):
        host.check(lambda x, i, u, fn=fn: update(x, fn, i, u), x, INDICES, u)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_index_types(host: Runner, dtype: Any, mode: str) -> None:
    top = np.iinfo(dtype).max
    at = np.array([0, 5, 19, 20, 7, top, top - 1], dtype)
    host.check(lambda x, i, u: update(x, "add", i, u, mode), array(20, 9), at, array(7, 9))


def test_prologue(runner: Runner) -> None:
    runner.check(
        lambda x, i, u: update(x, "add", i * 2 + 1, u.T * 3),
        array(20, 37),
        INDICES % 9,
        array(37, 10),
    )
    runner.check(
        lambda x, i, u: update(x, "add", i, u[:, None] + np.zeros((10, 37), np.float32)),
        array(20, 37),
        INDICES % 9,
        array(10),
    )
    runner.check(
        lambda i, u: update(np.zeros((20, 37), np.float32), "add", i, u), INDICES % 9, array(10, 37)
    )


def test_nan_and_infinity(runner: Runner) -> None:
    x, u = array(20, 37), array(10, 37)
    x[3, 4], u[0, 5], u[1, 6] = np.nan, np.nan, np.inf
    for fn in ("add", "max", "min"):
        runner.check(lambda x, i, u, fn=fn: update(x, fn, i, u), x, INDICES, u)


def test_owned_ranges(host: Runner) -> None:
    """Small windows in a destination that is in no cache of a core: items own ranges of it, of
    several blocks of index vectors, and bits do not change."""
    many = Runner(host.compile, replace(host.target, cores=16, l2_nbytes=1 << 10))
    x, at, u = array(301, 18), RNG.integers(-5, 310, 2000).astype(np.int32), array(2000, 18)
    kernel = many.check(lambda x, i, u: update(x, "add", i, u), x, at, u, rtol=1e-4)
    assert kernel.total >= 16
    assert owners_of(kernel).startswith("16 ranges")
    graph = graph_of(lambda x, i, u: update(x, "add", i, u), x, at, u)
    region = region_of(graph)
    found = [
        runner.run(graph, region, kernel_of(region, runner.target), [x, at, u])[0]
        for runner in (host, many)
    ]
    np.testing.assert_array_equal(*found)


def owners_of(kernel: Kernel) -> str:
    return next(choice.reason for choice in kernel.choices if choice.name == "owners")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", ["set", "add", "min"])
def test_lists_of_own_windows(runner: Runner, fn: str, mode: str) -> None:
    """More index vectors than a list has room for, along one axis or two; of several components."""
    many = Runner(runner.compile, replace(runner.target, cores=16, l2_nbytes=1 << 10))
    at = RNG.integers(0, 500, 700).astype(np.int32)
    if mode != "promise_in_bounds":
        at[:4] = -1, 500, 1 << 30, -(1 << 30)
    kernel = many.check(
        lambda x, i, u: update(x, fn, i, u, mode), array(500, 3), at, array(700, 3), rtol=1e-4
    )
    assert "ranges" in owners_of(kernel).split(":")[0]
    numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
    places = np.stack([at, at[::-1] % 3], -1).reshape(2, 350, 2)
    many.check(
        lambda x, i, u: lax.scatter_max(x, i, u, numbers, mode=mode),
        array(500, 3),
        places,
        array(2, 350),
    )


def test_parts_of_windows(runner: Runner) -> None:
    """Long windows in a large destination: each core has some vectors of all of them."""
    many = Runner(runner.compile, replace(runner.target, cores=3, l2_nbytes=64))
    kernel = many.check(
        lambda x, i, u: update(x, "add", i, u), array(40, 301), INDICES, array(10, 301)
    )
    assert owners_of(kernel).startswith("3 parts of windows")


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("fn", ["set", "max"])
def test_short_windows(runner: Runner, fn: str, dtype: Any) -> None:
    """What is left of a window is shorter vectors and single elements, or a masked vector."""
    for size in (1, 2, 3, 4, 6, 7, 9, 15, 31, 33, 67):
        x, u = array(20, size, dtype=dtype), array(10, size, dtype=dtype)
        runner.check(lambda x, i, u: update(x, fn, i, u), x, INDICES, u)


def test_which_windows_are_masked(host: Runner) -> None:
    def tail(fn: str, size: int) -> str:
        x, u = array(20, size), array(10, size)
        kernel = kernel_of(region_of(graph_of(lambda x, i, u: update(x, fn, i, u), x, INDICES, u)),
                           Target.avx512())  # fmt: skip
        return next((c.reason for c in kernel.choices if c.name == "tail"), "")

    assert tail("add", 16) == ""
    assert tail("add", 20).startswith("1 shorter vectors")
    assert tail("add", 15).startswith("4 shorter vectors")
    assert tail("set", 15).startswith("a masked vector")
    assert tail("set", 24).startswith("1 shorter vectors")


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 50), st.data())
def test_random(rows: int, columns: int, count: int, data: st.DataObject) -> None:
    fn = data.draw(st.sampled_from(["set", "add", "max"]))
    mode = data.draw(st.sampled_from(["clip", "fill"]))
    at = data.draw(st.lists(st.integers(-3, rows + 3), min_size=count, max_size=count))
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)))]()
    cores = data.draw(st.sampled_from([1, 2, 16]))
    runner = Runner(_COMPILE[0], replace(target, cores=cores))
    runner.check(
        lambda x, i, u: update(x, fn, i, u, mode),
        array(rows, columns),
        np.array(at, np.int64),
        array(count, columns),
        rtol=1e-4,
    )


_COMPILE: list[Any] = []


@pytest.fixture(autouse=True)
def _remember(compile_kernel: Any) -> None:
    """Hypothesis tests take no function-scoped fixtures."""
    _COMPILE[:] = [compile_kernel]
