"""Kernels of reduce regions against the interpreter, on every target that this machine can run."""

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
from stagejit.trace.translate import graph_of
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
TARGETS = {"host": Target.host, "avx2": Target.avx2, "sse2": Target.sse2}
SHAPES = [(13, 137), (130, 37), (1, 1000), (1000, 1), (3, 3), (5, 64), (64, 5), (257, 16),
          (300, 300)]  # fmt: skip


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, np.dtype[Any]]:
    if np.dtype(dtype) == np.bool_:
        return RNG.random(shape) > 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


def name_of(dtype: Any) -> str:
    return np.dtype(dtype).name


def normalized(x: Any, axis: int) -> Any:
    """The structure of a softmax: a maximum, a sum of a function of it, a quotient."""
    e = (x - x.max(axis, keepdims=True)) ** 2
    return e / e.sum(axis, keepdims=True)


def layernorm(x: Any, axis: int) -> Any:
    mean = x.mean(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(axis, keepdims=True) + 1e-5)


ROW_CASES: dict[str, Callable[[Any], Any]] = {
    "sum 0": lambda x: x.sum(0),
    "sum 1": lambda x: x.sum(1),
    "sum all": lambda x: (x * x).sum(),
    "mean and variance": lambda x: (x.mean(-1), x.var(-1)),
    "mean and variance of columns": lambda x: (x.mean(0), x.var(0)),
    "max": lambda x: x.max(-1),
    "min of columns": lambda x: x.min(0),
    "argmax": lambda x: jnp.argmax(x, -1),
    "argmin of columns": lambda x: jnp.argmin(x, 0),
    "max and argmax": lambda x: (x.max(-1), jnp.argmax(x, -1)),
    "any": lambda x: (x > 2).any(-1),
    "all of columns": lambda x: (x > -2).all(0),
    "normalized rows": lambda x: normalized(x, 1),
    "normalized columns": lambda x: normalized(x, 0),
    "layernorm": lambda x: layernorm(x, 1),
    "layernorm of columns": lambda x: layernorm(x, 0),
    "epilogue": lambda x: jnp.sqrt(jnp.abs(x.sum(1) * 2 + 1)),
    "epilogue over rows": lambda x: x.sum(1)[:, None] * 2 + x,
    "row and kept stores": lambda x: (x - x.max(1, keepdims=True), x.max(1) * 2),
    "transposed": lambda x: x.T.sum(0),
    "reversed": lambda x: jnp.argmax(x[:, ::-1], 1),
    "count": lambda x: (x > 0).astype(np.int32).sum(1),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ROW_CASES)
def test_rows(host: Runner, name: str, shape: tuple[int, ...]) -> None:
    host.check(ROW_CASES[name], array(*shape), rtol=1e-4)


@pytest.mark.parametrize("target", ["avx2", "sse2"])
@pytest.mark.parametrize("name", ROW_CASES)
def test_other_targets(compile_kernel: Any, name: str, target: str) -> None:
    runner = Runner(compile_kernel, TARGETS[target]())
    runner.check(ROW_CASES[name], array(37, 45), rtol=1e-4)


DEEP_CASES: dict[str, Callable[[Any], Any]] = {
    "first": lambda x: x.sum(0),
    "middle": lambda x: x.sum(1),
    "last": lambda x: x.sum(2),
    "outer two": lambda x: x.sum((0, 1)),
    "inner two": lambda x: x.sum((1, 2)),
    "around": lambda x: x.sum((0, 2)),
    "all": lambda x: x.max(),
    "argmax in the middle": lambda x: jnp.argmax(x, 1),
    "normalized middle": lambda x: normalized(x, 1),
    "batch norm": lambda x: (
        (x - x.mean((0, 2), keepdims=True)) / (1 + x.var((0, 2), keepdims=True))
    ),
    "of a reshape": lambda x: x.reshape(x.shape[0], -1).sum(1),
    "of a transpose": lambda x: jnp.transpose(x, (2, 0, 1)).sum(1),
    "of a slice": lambda x: x[:, ::2, ::2].sum(1),
    "of a broadcast": lambda x: (x * x[:, :1]).sum(1),
}


@pytest.mark.parametrize("shape", [(5, 13, 37), (2, 3, 4), (3, 1, 130), (7, 20, 3)], ids=str)
@pytest.mark.parametrize("name", DEEP_CASES)
def test_three_dimensions(host: Runner, name: str, shape: tuple[int, ...]) -> None:
    host.check(DEEP_CASES[name], array(*shape), rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_floats(runner: Runner, dtype: Any, axis: int) -> None:
    x = array(37, 67, dtype=dtype)
    runner.check(
        lambda x: (lax.reduce_sum_p.bind(x, axes=(axis,), out_sharding=None), x.max(axis)),
        x,
        rtol=0.02 if np.dtype(dtype).itemsize == 2 else None,
    )
    runner.check(lambda x: jnp.argmin(x, axis), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("axis", [0, 1])
def test_integers(host: Runner, dtype: Any, axis: int) -> None:
    x = array(33, 70, dtype=dtype)
    host.check(
        lambda x: (
            lax.reduce_max_p.bind(x, axes=(axis,), out_sharding=None),
            lax.reduce_and_p.bind(x, axes=(axis,)),
        ),
        x,
    )
    host.check(
        lambda x: (
            lax.reduce_prod_p.bind(x, axes=(axis,), out_sharding=None),
            lax.reduce_xor_p.bind(x, axes=(axis,)),
        ),
        x,
    )
    host.check(lambda x: (jnp.argmax(x, axis), lax.reduce_or_p.bind(x, axes=(axis,))), x)
    host.check(lambda x: x.sum(axis), x)


def test_bools(runner: Runner) -> None:
    x = array(33, 70, dtype=np.bool_)
    runner.check(lambda x: (x.any(0), x.all(0), jnp.argmax(x, 0)), x)
    runner.check(lambda x: (x.any(1), x.all(1), x.sum(1)), x)


@pytest.mark.parametrize("index", [np.int8, np.uint8, np.int32, np.int64])
def test_index_types(host: Runner, index: Any) -> None:
    host.check(lambda x: lax.argmax(x, 1, index), array(30, 100))
    host.check(lambda x: lax.argmin(x, 0, index), array(100, 30))


def test_ties_give_the_first(runner: Runner) -> None:
    x = np.round(array(5, 137))
    runner.check(lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)), x)
    runner.check(lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 0)), x)
    runner.check(lambda x: jnp.argmax(x, 1), np.zeros((3, 70), np.float32))


@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinity(runner: Runner, axis: int) -> None:
    x = array(40, 50)
    x[3, 7], x[20, 7], x[3, 30] = np.nan, np.nan, np.inf
    x[:, 12], x[9, :] = -np.inf, np.inf
    runner.check(lambda x: (x.max(axis), x.min(axis)), x)
    runner.check(lambda x: (jnp.argmax(x, axis), jnp.argmin(x, axis)), x)
    runner.check(lambda x: x.sum(axis), x)
    runner.check(lambda x: jnp.argmax(x, axis), np.full((20, 21), -np.inf, np.float32))


def test_half_sums_round_once(host: Runner) -> None:
    x = np.full((3, 5000), 0.1, ml_dtypes.bfloat16)
    host.check(lambda x: x.sum(1), x, rtol=4e-3)
    host.check(lambda x: x.sum(0), x.T.copy(), rtol=4e-3)


@pytest.mark.parametrize(("shape", "axes"), [
    ((3, 300000), (1,)), ((300000, 3), (0,)), ((2000, 5, 300), (0, 2)), ((300, 1500, 9), (0, 1)),
    ((40000, 2, 17), (0,)), ((20, 70, 200), (0, 1)),
])  # fmt: skip
def test_long_sums_stay_accurate(
    host: Runner, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = RNG.random(shape, dtype=np.float32)
    host.check(lambda x: x.sum(axes), x, rtol=1e-6, atol=0)
    host.check(lambda x: (x.max(axes), x.sum(axes)), x, rtol=1e-6, atol=0)


def test_expensive_values_are_kept(host: Runner) -> None:
    """Passes share what costs much: the values are in scratch, and still right."""
    fn = lambda x: (lambda e: e / e.sum(1, keepdims=True))(  # noqa: E731
        jnp.exp(x - x.max(1, keepdims=True))
    )
    kernel = host.check(fn, array(20, 300))
    assert kernel.function.scratch_nbytes >= 300 * 4
    host.check(lambda x: fn(x.T), array(300, 70))
    host.check(fn, array(20, 3))


def test_prologue_reads(host: Runner) -> None:
    indices = RNG.integers(0, 50, 20).astype(np.int32)
    host.check(lambda x, i: x[i].sum(1), array(50, 37), indices)
    host.check(lambda x, i: x[i].sum(0), array(50, 37), indices)
    host.check(lambda x: (x * jnp.arange(37)).sum(1), array(20, 37))
    host.check(lambda x: (x > jnp.arange(20)[:, None]).sum(0), array(20, 37))


def test_two_row_inputs(runner: Runner) -> None:
    runner.check(lambda x, y: ((x * y).sum(1), (x - y).max(1)), array(21, 60), array(21, 60))
    runner.check(lambda x, g, b: layernorm(x, 1) * g + b, array(21, 60), array(60), array(60))


def test_item_chunks_do_not_change_bits(host: Runner) -> None:
    """The same kernel in one call and in pieces."""
    x = array(3, 5, 4099)
    graph = graph_of(lambda x: x.sum((0, 2)), x)
    region = region_of(graph)
    kernel = host.generate(region)
    first = host.run(graph, region, kernel, [x])[0]
    call = host.compile(kernel.function, host.target)
    whole = np.zeros_like(first)
    call([x, whole], [], 0, kernel.total)
    np.testing.assert_array_equal(first, whole)


EXTENTS = st.integers(1, 35)


@given(st.lists(EXTENTS, min_size=1, max_size=3), st.data())
def test_random_reductions(shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    order = data.draw(st.permutations(range(len(shape))))
    fn = data.draw(st.sampled_from([jnp.sum, jnp.max, jnp.mean]))
    target = data.draw(st.sampled_from(sorted(TARGETS)))
    keep = data.draw(st.booleans())

    def program(x: Any) -> Any:
        y = jnp.transpose(x, order)
        row = fn(y, tuple(axes), keepdims=True)
        return y - row if keep else row * 2

    runner = Runner(_COMPILE[0], TARGETS[target]())
    runner.check(program, array(*shape), rtol=1e-4)


_COMPILE: list[Any] = []


@pytest.fixture(autouse=True)
def _remember(compile_kernel: Any) -> None:
    """Hypothesis tests take no function-scoped fixtures."""
    _COMPILE[:] = [compile_kernel]
