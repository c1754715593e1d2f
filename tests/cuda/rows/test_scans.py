"""Running values on a GPU: those of NumPy in f64, whatever lies where and whoever has it."""

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

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.errors import StagejitError
from stagejit.options import Options
from tests.cuda.emulation.emulated import EmulationError
from tests.cuda.machine import compilation_of, run
from tests.cuda.products.random_regions import faults_of
from tests.cuda.rows.any_mapping import any_mapping
from tests.cuda.rows.test_rows import fresh, require, some
from tests.randomness import RNG
from tests.sampling import budget, examples

Array = Any
CASES = examples()
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "add": (lax.cumsum, np.add), "mul": (lax.cumprod, np.multiply),
    "max": (lax.cummax, np.maximum), "min": (lax.cummin, np.minimum),
    "logaddexp": (lax.cumlogsumexp, np.logaddexp),
}  # fmt: skip
TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint8,
         np.int16, np.uint64)  # fmt: skip


def running(fn: str, x: Array, axis: int, reverse: bool = False) -> Array:
    exact = x if x.dtype.kind in "iu" else x.astype(np.float64)
    exact = np.flip(exact, axis) if reverse else exact
    with np.errstate(invalid="ignore"):
        made = FUNCTIONS[fn][1].accumulate(
            exact, axis, **({"dtype": x.dtype} if x.dtype.kind in "iu" else {})
        )
    return np.flip(made, axis) if reverse else made


def check(fn: str, x: Array, axis: int, reverse: bool = False, **options: Any) -> None:
    with jax.enable_x64(True):
        (found,) = run(lambda x: FUNCTIONS[fn][0](x, axis, reverse), x, resources=True, **options)
    floats = x.dtype.kind not in "iu"
    eps = float(ml_dtypes.finfo(x.dtype).eps) * 4 if floats else 0
    scale = np.abs(x.astype(np.float64)).sum(axis, keepdims=True) if fn == "add" else 1.0
    require(found, running(fn, x, axis, reverse), eps, scale)


SHAPES = [(1,), (37,), (1, 1), (5, 13, 37), (2, 70, 3), (300, 300), (3, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_axes(shape: tuple[int, ...]) -> None:
    for axis, reverse in itertools.product(range(len(shape)), (False, True)):
        check("add", some(*shape), axis, reverse)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_functions(fn: str, axis: int) -> None:
    x = some(70, 45)
    check(fn, np.abs(x) ** 0.01 if fn == "mul" else x, axis)
    check(fn, np.abs(x) ** 0.01 if fn == "mul" else x, axis, True)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: np.dtype(d).name)
def test_types(dtype: Any, axis: int) -> None:
    for fn in ("add", "max"):
        check(fn, some(20, 80, dtype=dtype), axis)


@settings(max_examples=budget(4, of=10))
@given(st.data())
def test_any_shape_by_any_mapping(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, (3000, 60, 16, 8)[rank - 1])) for _ in range(rank))
    axis, reverse = data.draw(st.integers(0, rank - 1)), data.draw(st.booleans())
    fn = data.draw(st.sampled_from(["add", "max", "min"]))
    order = data.draw(st.permutations(range(rank)))
    x = some(*shape, dtype=np.int32)

    def function(x: Any) -> Any:
        made = FUNCTIONS[fn][0](jnp.transpose(x, order) * 3, axis, reverse)
        return made, made - 1

    wanted = running(fn, np.transpose(x, order) * np.int32(3), axis, reverse)
    with any_mapping(data.draw(st.integers(0, 99))):
        found = fresh(function, x)
    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], wanted - np.int32(1))


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["cheapest", "any"])
def test_random_regions(way: str) -> None:
    with any_mapping(1) if way == "any" else nullcontext():
        for number in range(CASES):
            for job, what in faults_of(9 + (way == "any"), number, ["cumulative"]):
                assert not what, f"case {number}: {job and job.region}: {what}"


@pytest.mark.parametrize("axis", [0, 1])
def test_what_comes_before_and_after(axis: int) -> None:
    x, y = some(21, 50), some(21, 50)

    def function(x: Any, y: Any) -> Any:
        made = lax.cumsum(x * y, axis) / 2 + x
        return made, made > 0, lax.cumsum(x.T, axis).reshape(-1)

    a, b = x.astype(np.float64), y.astype(np.float64)
    made = np.cumsum(a * b, axis) / 2 + a
    found = run(function, x, y, resources=True)
    require(found[0], made, 1e-5)
    np.testing.assert_array_equal(found[1], found[0] > 0)
    require(found[2], np.cumsum(a.T, axis).reshape(-1), 1e-5)


def test_nan_and_infinity() -> None:
    x = some(20, 50)
    x[3, 7], x[5, 9], x[8, 0], x[9, 49] = np.nan, np.inf, -np.inf, np.nan
    for axis, fn in itertools.product((0, 1), ("max", "min", "logaddexp")):
        (found,) = run(lambda x, f=FUNCTIONS[fn][0], a=axis: f(x, a), x)
        require(found, running(fn, x, axis), 1e-5 if fn == "logaddexp" else 0)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("shape", [(1 << 20,), (1 << 18, 3), (3, 1 << 18)], ids=str)
def test_long_sums_are_as_exact_as_short_ones(shape: tuple[int, ...], split: bool) -> None:
    x, axis = RNG.random(shape, np.float32), int(np.argmax(shape))
    options = Options(verify=True, disable=() if split else ("split-scan",))
    (found,) = run(lambda x: lax.cumsum(x, axis), x, options=options)
    wanted = np.cumsum(x, axis, dtype=np.float64)
    assert np.abs(found / wanted - 1).max() < 2e-6


def text_of(function: Callable[..., Any], *shape: int) -> str:
    (made,) = compilation_of(function, some(*shape)).run_until("codegen").kernels.values()
    return made.text[made.text.index("extern") :]


def test_a_warp_goes_along_a_line_by_exchanges_alone() -> None:
    text = text_of(lambda x: lax.cumsum(x, 1), 4096, 128)
    assert "load<4, 4>(&in[" in text
    assert "store<4>(&out[" in text
    assert "__shfl_up_sync" in text
    assert "__syncthreads" not in text


def test_lines_next_to_each_other_are_read_in_whole_sectors() -> None:
    text = text_of(lambda x: lax.cumsum(x, 0), 1024, 4096)
    assert "__shfl" not in text


MUTANTS: dict[str, tuple[str, Any]] = {
    "a barrier": ("barrier", lambda self: None),
    "an exchange": ("exchange", lambda self, kind, value, lane: value),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_threads_tell_each_other_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, instead = MUTANTS[name]
    x = some(8, 5000)
    monkeypatch.setattr(GridBuilder, method, instead)
    try:
        (found,) = fresh(lambda x: lax.cumsum(x, 1), x)
    except (EmulationError, StagejitError):
        return
    assert not np.allclose(found, np.cumsum(x.astype(np.float64), 1), rtol=1e-4, equal_nan=True)
