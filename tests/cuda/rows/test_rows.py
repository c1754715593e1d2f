"""Reductions on a GPU: the values of NumPy in f64, whatever lies where and whoever has it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.codegen.generate import KernelCache
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.errors import VerificationError
from stagejit.options import Options
from stagejit.pipeline import Compilation
from tests.cuda.machine import GPU, compilation_of, run
from tests.cuda.products.random_regions import faults_of
from tests.cuda.rows.any_mapping import any_mapping
from tests.expected import rounding
from tests.randomness import RNG
from tests.sampling import budget, examples

Array = Any
CASES = examples()
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int32, np.int64, np.uint8, np.int8, np.int16, np.uint16, np.uint32, np.uint64)
AXES = [axes for count in (1, 2, 3) for axes in itertools.combinations(range(3), count)]


def some(*shape: int, dtype: Any = np.float32) -> Array:
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


def require(found: Any, wanted: Any, eps: float, scale: Any = 1.0) -> None:
    """Floats agree to some eps of `scale`, all else is equal, as are NaN and infinity."""
    assert found.shape == np.shape(wanted)
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, wanted)
        return
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    with np.errstate(invalid="ignore"):  # infinity less itself
        apart = np.where(found == wanted, 0, np.abs(found - wanted))
        limit = np.where(np.isinf(wanted), 0, eps * (np.abs(wanted) + scale))
    assert np.all((apart <= limit) | np.isnan(wanted)), np.nanmax(apart / limit)


def all_of(x: Any, axes: tuple[int, ...]) -> tuple[Any, ...]:
    """Every reduction of a type over the same rows: one kernel."""
    add = lax.reduce(x, np.zeros((), x.dtype), lax.add, axes)
    found = [add, x.max(axes), x.min(axes)]
    if x.dtype.kind in "iu":
        found.append(lax.reduce(x, np.ones((), x.dtype), lax.mul, axes))
        found.append(lax.reduce(x, np.zeros((), x.dtype), lax.bitwise_xor, axes))
    if len(axes) == 1:
        found += [lax.argmax(x, axes[0], np.int32), lax.argmin(x, axes[0], np.int32)]
    return tuple(found)


def wanted_of(x: Any, axes: tuple[int, ...]) -> list[Any]:
    kind = x.dtype.kind if x.dtype != ml_dtypes.bfloat16 else "f"
    exact = x.astype(np.float64) if kind == "f" else x
    found = [exact.sum(axes, dtype=x.dtype if kind in "iu" else None)]
    found += [exact.max(axes), exact.min(axes)]
    if kind in "iu":
        found.append(np.prod(x, axes, dtype=x.dtype))
        found.append(np.bitwise_xor.reduce(x, axes))
    if len(axes) == 1:
        found += [np.argmax(exact, axes[0]), np.argmin(exact, axes[0])]
    return found


def check_all(x: Any, axes: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        found = run(lambda x: all_of(x, axes), x, resources=True)
    floats = x.dtype in FLOATS
    eps = float(ml_dtypes.finfo(x.dtype).eps) if floats else 0
    scale = np.abs(x.astype(np.float64)).sum(axes) if floats else 1
    for one, wanted in zip(found, wanted_of(x, axes), strict=True):
        require(one, wanted, eps, scale)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_axes(axes: tuple[int, ...]) -> None:
    check_all(some(7, 33, 20), axes)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
def test_types(dtype: Any) -> None:
    check_all(some(5, 37, 8, dtype=dtype), ((1,), (2,), (0,), (0, 2))[np.dtype(dtype).num % 4])


SHAPES = [(1,), (97,), (1000,), (1, 1), (1, 5000), (300, 3), (257, 64), (40, 1024),
          (2, 1, 3, 1, 5)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = some(*shape)
    for axes in {(0,), (len(shape) - 1,)}:
        check_all(x, axes)


@settings(max_examples=budget(4, of=10))
@given(st.data())
def test_any_shape_by_any_mapping(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, (3000, 60, 16, 8)[rank - 1])) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    order = data.draw(st.permutations(range(rank)))
    x = some(*shape, dtype=data.draw(st.sampled_from([np.float32, np.float64, np.int32])))

    def function(x: Any) -> Any:
        y = jnp.transpose(x, order)
        return y - y.max(axes, keepdims=True), y.max(axes), y.min(axes)

    y = np.transpose(x, order)
    most = y.max(axes, keepdims=True)
    with any_mapping(data.draw(st.integers(0, 99))), jax.enable_x64(True):
        found = fresh(function, x)
    for one, wanted in zip(found, (y - most, y.max(axes), y.min(axes)), strict=True):
        np.testing.assert_array_equal(one, wanted)


def fresh(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Results by kernels that nobody has made before."""
    with pytest.MonkeyPatch.context() as patch:
        caches: dict[Any, KernelCache] = {}

        def cache(target: Any, *, verify: bool) -> KernelCache:
            return caches.setdefault(target, KernelCache(target, verify=verify))

        for module in ("stagejit.pipeline", "tests.cuda.machine"):
            patch.setattr(f"{module}.kernel_cache", cache)
        return run(function, *args)


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["cheapest", "any"])
def test_random_regions(way: str) -> None:
    with any_mapping(1) if way == "any" else nullcontext():
        for number in range(CASES):
            for job, what in faults_of(7 + (way == "any"), number, ["reduce"]):
                assert not what, f"case {number}: {job and job.region}: {what}"


# -------------------------------------------------------------------- several stages and stores


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalized(m: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / m.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5), mean[..., 0]


def log_sum(m: Any, x: Any) -> Any:
    most = x.max(-1, keepdims=True)
    return (m.log(m.exp(x - most).sum(-1)) + most[..., 0],)


def nearest(m: Any, x: Any) -> Any:
    """A reduction of what another one found, and an index."""
    far = (x - x.mean(-1, keepdims=True)) ** 2
    return far.argmax(-1), far.max(-1), x - x.min(-1, keepdims=True)


STAGES: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda m, x: (jax.nn.softmax(x) if m is jnp else softmax(x),),
    "softmax of columns": lambda m, x: (jax.nn.softmax(x, 0) if m is jnp else softmax(x, 0),),
    "normalized": normalized,
    "logarithm of a sum": log_sum,
    "nearest": nearest,
    "variance of columns": lambda m, x: (x.var(0), x.mean(0)),
}
ROWS = [(5, 7), (33, 100), (9, 1000), (4, 4096), (2, 20000)]


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("name", STAGES)
def test_stages(name: str, shape: tuple[int, int]) -> None:
    x, function = some(*shape), STAGES[name]
    found = run(lambda x: function(jnp, x), x, resources=True)
    for one, wanted in zip(found, function(np, x.astype(np.float64)), strict=True):
        require(one, wanted, 2e-6)


@pytest.mark.parametrize("shape", [(3, 5), (40, 300), (3, 40000)], ids=str)
def test_masks(shape: tuple[int, int]) -> None:
    x = RNG.random(shape) < 1 / shape[1]
    found = run(lambda x: (x.any(1), (~x).all(1), jnp.argmax(x, 1), x.sum(0)), x, resources=True)
    for one, wanted in zip(found, (x.any(1), (~x).all(1), x.argmax(1), x.sum(0)), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("shape", [(8, 5), (8, 100), (8, 3000), (3000, 8)], ids=str)
def test_nan_is_the_maximum_and_the_first_of_them_wins(shape: tuple[int, int]) -> None:
    x = some(*shape)
    x[2, 3] = x[2, 1] = x[5, 4] = np.nan
    x[7] = 1.0
    for axis in (0, 1):
        found = run(lambda x, a=axis: (x.max(a), jnp.argmax(x, a), jnp.argmin(x, a)), x)
        wanted = x.max(axis), x.argmax(axis), x.argmin(axis)
        for one, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, want)


def test_nothing_is_reduced() -> None:
    x = np.zeros((3, 0), np.float32)
    found = run(lambda x: (x.sum(1), x.sum(0), (x > 0).all(1)), x)
    for one, wanted in zip(found, (x.sum(1), x.sum(0), (x > 0).all(1)), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize(
    "shape", [(1 << 20,), (1 << 20, 3), (3, 1 << 20), (1 << 13, 2, 128)], ids=str
)
@pytest.mark.parametrize("split", [True, False])
def test_long_sums_are_as_exact_as_short_ones(shape: tuple[int, ...], split: bool) -> None:
    x = RNG.random(shape, np.float32)
    axes = tuple(axis for axis, extent in enumerate(shape) if extent > 3)
    options = Options(verify=True, disable=() if split else ("split-reduce",))
    (found,) = run(lambda x: x.sum(axes), x, options=options)
    wanted = x.sum(axes, dtype=np.float64)
    assert np.abs(found / wanted - 1).max() < rounding.of_sum(1 << 20, np.float32)


# -------------------------------------------------------------------- what a reader sees


def texts_of(compilation: Compilation) -> list[str]:
    kernels = compilation.run_until("codegen").kernels.values()
    return [made.text[made.text.index("extern") :] for made in kernels]


def text_of(function: Callable[..., Any], *shape: int) -> str:
    (text,) = texts_of(compilation_of(function, some(*shape)))
    return text


def test_a_warp_reads_a_row_in_accesses_of_16_bytes_and_needs_no_barrier() -> None:
    text = text_of(lambda x: x.max(1), 4096, 1024)
    assert text.count("load<4, 4>(&in[") == 8
    assert "__syncthreads" not in text
    assert text.count("__shfl_xor_sync") == 5


def test_a_row_is_read_once_by_all_passes() -> None:
    text = text_of(lambda x: jax.nn.softmax(x), 4096, 1024)
    assert text.count("load<4, 4>(&in[") == text.count("store<4>(&out[") == 8


def test_columns_meet_in_shared_memory_behind_one_barrier() -> None:
    text = text_of(lambda x: x.max(0), 40, 2048)
    assert "__shfl" not in text


def test_a_warp_meets_before_results_take_the_place_of_what_it_reads() -> None:
    def f(x: Any, m: Any) -> Any:
        most = x.max(1)
        return x - most[:, None] * m[:, None], most + m

    jitted = stagejit.jit(f, options=Options(verify=True), donate_argnums=(0, 1))
    request = jitted.trace(some(4000, 24), some(4000)).compilation.request
    (text,) = texts_of(Compilation(request, target=GPU))
    assert "__syncwarp();" in text
    assert "__syncthreads" not in text


def test_choices_say_why() -> None:
    (made,) = (
        compilation_of(lambda x: x.sum(1), some(64, 1000)).run_until("codegen").kernels.values()
    )
    (choice,) = [c for c in made.kernel.choices if c.name == "rows"]
    assert "threads a row" in choice.reason or "a row, neighbours" in choice.reason


# -------------------------------------------------------------------- mutations


MUTANTS: dict[str, tuple[type, str, Any]] = {
    "a barrier": (GridBuilder, "barrier", lambda self: None),
    "an exchange": (GridBuilder, "exchange", lambda self, kind, value, lane: value),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_threads_tell_each_other_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, instead = MUTANTS[name]
    x = some(40, 5000)
    monkeypatch.setattr(owner, method, instead)
    try:
        (found,) = fresh(lambda x: jax.nn.softmax(x), x)
    except (AssertionError, VerificationError, RuntimeError):
        return
    assert not np.allclose(found, softmax(x.astype(np.float64)), rtol=1e-4)
