"""Monoids of reductions: identities, merges in any order, NaN and ties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stagejit import types
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, I32
from stagejit.codegen.reducers import Reducer, identity_of, merge_all
from stagejit.types import DType, dtype_named

FLOATS = ("f16", "bf16", "f32", "f64")


@pytest.mark.parametrize(("fn", "dtype", "wanted"), [
    ("add", "f32", 0), ("mul", "i8", 1), ("and", "u8", 255), ("and", "i8", -1), ("and", "bool", 1),
    ("or", "bool", 0), ("xor", "i32", 0), ("max", "f32", -math.inf), ("min", "f64", math.inf),
    ("max", "i8", -128), ("min", "i8", 127), ("max", "u8", 0), ("min", "u16", 65535),
    ("argmax", "bool", 0), ("argmin", "bool", 1),
])  # fmt: skip
def test_identities(fn: str, dtype: str, wanted: float) -> None:
    assert identity_of(fn, dtype_named(dtype)) == wanted


@pytest.mark.parametrize("dtype", FLOATS)
def test_narrow_floats_accumulate_in_f32(dtype: str) -> None:
    kept = Reducer("add", dtype_named(dtype)).accumulator_dtype
    assert kept is (types.f64 if dtype == "f64" else types.f32)


def lanes_reduced(run_kernel: Any, fn: str, rows: list[list[float]], masked: int = 0) -> Any:
    """Each row is one vector; vectors are merged, then lanes. `masked`: lanes of the last that
    exist."""
    lanes = len(rows[0])
    is_arg = fn.startswith("arg")
    reducer = Reducer(fn, types.f32, types.i32 if is_arg else None)
    b = Builder()
    source, into = b.buffer("in", F32, readonly=True), b.buffer("out", I32 if is_arg else F32)
    parts = []
    for row in range(len(rows)):
        last = masked and row == len(rows) - 1
        mask = b.active(masked, lanes) if last else None
        place = b.lane_ids(lanes, I32) + row * lanes
        element = b.load(source, row * lanes, lanes, mask=mask)
        parts.append(reducer.lift(b, element, place if is_arg else None, lanes, mask))
    whole = reducer.across_lanes(b, merge_all(b, reducer, parts))
    b.store(reducer.result(b, whole), into, 0)
    found = np.zeros(1, np.int32 if is_arg else np.float32)
    run_kernel(b.finish(), [np.array(rows, np.float32), found], (), 0, 1)
    return found[0]


NAN = math.nan


@pytest.mark.parametrize(("rows", "wanted"), [
    ([[1, 5, 2, 5]], 1),
    ([[1, 2, 3, 4], [4, 4, 4, 4]], 3),
    ([[1, 2, 3, 4], [9, 0, 0, 9], [9, 9, 9, 9]], 4),
    ([[1, 2, NAN, 4], [NAN, 9, 9, 9]], 2),
    ([[math.inf, 2, 3, NAN]], 3),
    ([[-math.inf] * 4, [-math.inf] * 4], 0),
    ([[0.0, -0.0, 0.0, -0.0]], 0),
])  # fmt: skip
def test_argmax_takes_the_first(run_kernel: Any, rows: list[list[float]], wanted: int) -> None:
    assert lanes_reduced(run_kernel, "argmax", rows) == wanted
    assert np.argmax(np.array(rows, np.float32)) == wanted


def test_masked_lanes_are_neutral(run_kernel: Any) -> None:
    rows = [[-3.0, -2.0, -5.0, -4.0], [-7.0, -1.0, 100.0, 100.0]]
    kept = np.array([-3, -2, -5, -4, -7, -1], np.float32)
    assert lanes_reduced(run_kernel, "max", rows, 2) == kept.max()
    assert lanes_reduced(run_kernel, "add", rows, 2) == kept.sum()
    assert lanes_reduced(run_kernel, "mul", rows, 2) == kept.prod()
    assert lanes_reduced(run_kernel, "argmax", rows, 2) == kept.argmax()
    assert lanes_reduced(run_kernel, "argmin", rows, 2) == kept.argmin()


@pytest.mark.parametrize("fn", ["max", "min", "add"])
def test_nan_propagates(run_kernel: Any, fn: str) -> None:
    for place in range(8):
        rows = np.ones(8)
        rows[place] = NAN
        assert np.isnan(lanes_reduced(run_kernel, fn, rows.reshape(2, 4).tolist()))


def test_sums_are_trees(run_kernel: Any) -> None:
    """0.1 summed 4096 times: an error of a few ulp, not of hundreds."""
    rows = [[0.1] * 4 for _ in range(1024)]
    found = lanes_reduced(run_kernel, "add", rows)
    assert abs(found - 4096 * np.float64(np.float32(0.1))) < 1e-7 * found * 4


def index_reducer(dtype: DType) -> Reducer:
    return Reducer("argmax", types.f32, dtype)


def test_positions_are_narrow_where_they_fit() -> None:
    assert index_reducer(types.i8).narrow_index
    assert index_reducer(types.u32).narrow_index
    assert not index_reducer(types.i64).narrow_index
