"""Kernels of cumulative regions against the interpreter, on every target that this machine can
run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.codegen.target import Target
from tests.codegen.regions import Runner
from tests.randomness import RNG

TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lax.cumsum, "mul": lax.cumprod, "max": lax.cummax, "min": lax.cummin,
    "logaddexp": lax.cumlogsumexp,
}  # fmt: skip


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(0, 100, shape).astype(dtype)
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "shape", [(5, 13, 37), (1, 1, 1), (3, 1, 16), (2, 70, 3), (9, 2, 300)], ids=str
)
def test_axes(host: Runner, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    host.check(lambda x: lax.cumsum(x, axis, reverse), array(*shape), rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_functions(runner: Runner, fn: str, axis: int) -> None:
    runner.check(lambda x: FUNCTIONS[fn](x, axis), array(37, 45), rtol=1e-4)
    runner.check(lambda x: FUNCTIONS[fn](x, axis, True), array(37, 45), rtol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.uint16, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float64],
    ids=lambda d: np.dtype(d).name,
)
@pytest.mark.parametrize("axis", [0, 1])
def test_dtypes(host: Runner, axis: int, dtype: Any) -> None:
    rtol = 0.02 if np.dtype(dtype).itemsize == 2 else None
    for fn in ("add", "max"):
        host.check(lambda x, fn=fn: FUNCTIONS[fn](x, axis), array(37, 45, dtype=dtype), rtol=rtol)


@pytest.mark.parametrize("axis", [0, 1])
def test_prologue_and_epilogue(runner: Runner, axis: int) -> None:
    x, y = array(21, 50), array(21, 50)
    runner.check(lambda x, y: lax.cumsum(x * y, axis) / 2 + x, x, y, rtol=1e-4)
    runner.check(
        lambda x, y: (lambda c: (c * 2, c.reshape(-1)))(lax.cumsum(x.T, axis)), x, y, rtol=1e-4
    )
    runner.check(lambda x, y: lax.cumsum(x.reshape(7, 150), axis) * 2, x, y, rtol=1e-4)
    zeros = np.zeros((60, 60), np.float32)
    runner.check(
        lambda x, z: lax.dynamic_update_slice(z, lax.cumsum(x, axis), (3, 5)), x, zeros, rtol=1e-4
    )


def test_nan_and_infinity(runner: Runner) -> None:
    x = array(20, 50)
    x[3, 7], x[5, 9], x[8, 0], x[9, 49] = np.nan, np.inf, -np.inf, np.nan
    for axis in (0, 1):
        for fn in ("add", "max", "min", "logaddexp"):
            runner.check(lambda x, fn=fn, axis=axis: FUNCTIONS[fn](x, axis), x, rtol=1e-4)
    runner.check(lambda x: lax.cumlogsumexp(x, 1), np.full((3, 40), -np.inf, np.float32))


def test_a_long_sum_stays_accurate(host: Runner) -> None:
    x = RNG.random(1 << 20).astype(np.float32)
    host.check(lambda x: lax.cumsum(x, 0), x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_long_sums_side_by_side_stay_accurate(host: Runner, reverse: bool) -> None:
    x = RNG.random((1 << 18, 3)).astype(np.float32)
    host.check(lambda x: lax.cumsum(x, 0, reverse), x, rtol=2e-6, atol=0)
    x = RNG.random((2, 1 << 15, 5)).astype(np.float32)
    host.check(lambda x: lax.cumsum(x[:, ::-1] + 0, 1, reverse), x, rtol=2e-6, atol=0)


@pytest.mark.parametrize("shape", [(1 << 16, 3), (1 << 17, 1)], ids=str)
def test_long_sums_of_exponentials_stay_accurate(host: Runner, shape: tuple[int, int]) -> None:
    x = RNG.random(shape).astype(np.float32)
    host.check(lambda x: lax.cumlogsumexp(x, 0), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [255, 256, 257, 511, 512, 515, 1027])
@pytest.mark.parametrize("columns", [1, 3, 16, 37, 300])
def test_rows_around_a_run(runner: Runner, rows: int, columns: int) -> None:
    runner.check(lambda x: lax.cumsum(x, 0) * 2, array(rows, columns), rtol=1e-4)
    runner.check(lambda x: lax.cumlogsumexp(x, 0, True), array(rows, columns), rtol=1e-4)


def test_half_sums_are_kept_in_f32(host: Runner) -> None:
    host.check(lambda x: lax.cumsum(x, 1), np.full((2, 3000), 0.1, ml_dtypes.bfloat16), rtol=4e-3)
    host.check(lambda x: lax.cumsum(x, 0), np.full((3000, 2), 0.1, ml_dtypes.bfloat16), rtol=4e-3)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_random(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    reverse, target = data.draw(st.booleans()), data.draw(st.sampled_from(sorted(TARGETS)))
    runner = Runner(_COMPILE[0], TARGETS[target]())
    runner.check(
        lambda x: lax.cumsum(jnp.transpose(x, order), axis, reverse) + 1, array(*shape), rtol=1e-4
    )


_COMPILE: list[Any] = []


@pytest.fixture(autouse=True)
def _remember(compile_kernel: Any) -> None:
    """Hypothesis tests take no function-scoped fixtures."""
    _COMPILE[:] = [compile_kernel]
