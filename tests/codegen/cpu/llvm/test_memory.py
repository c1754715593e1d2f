"""Memory ops: masks, gathers, scatters, streaming stores, and checked accesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.cpu.llvm.shadow import with_shadows
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import BF16, F16, F32, F64, I8, I16, I32, I64, Function, Type
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target

Run = Callable[..., None]
TARGETS = [Target.host(), Target.avx2(), Target.sse2()]
ELEMENTS: list[tuple[Type, Any]] = [
    (I8, np.int8), (I16, np.int16), (I32, np.int32), (I64, np.int64), (F16, np.float16),
    (BF16, ml_dtypes.bfloat16), (F32, np.float32), (F64, np.float64),
]  # fmt: skip
by_element = pytest.mark.parametrize(("elem", "dtype"), ELEMENTS, ids=[str(e) for e, _ in ELEMENTS])
by_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


@by_target
@by_element
def test_masked_moves_touch_nothing_else(
    run_kernel: Run, elem: Type, dtype: Any, target: Target
) -> None:
    """The last lanes lie beyond the arrays: reading them could fault, writing them would show."""
    b = Builder()
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    limit = b.param()
    mask = b.mask_below(0, limit, 16)
    b.store(b.load(x, 0, 16, mask=mask), y, 0, mask=mask)
    b.store(b.load(x, 0, 16, mask=mask), y, 16)
    source, out = np.arange(1, 12).astype(dtype), np.full(32, 9).astype(dtype)
    run_kernel(b.finish(), [source, out], [11], target=target)
    expected = [*source, *[9] * 5, *source, *[0] * 5]
    np.testing.assert_array_equal(out.astype(np.float64), np.array(expected, np.float64))


NARROWED = [
    ("i16", "i8"),
    ("i32", "i8"),
    ("i32", "i16"),
    ("i64", "i8"),
    ("i64", "i16"),
    ("i64", "i32"),
]


@by_target
@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize(("wide", "narrow"), NARROWED)
def test_one_lane_of_what_was_wider_is_stored_alone(
    run_kernel: Run, wide: str, narrow: str, lanes: int, target: Target
) -> None:
    """However LLVM finds out that a mask has one lane only, and which."""
    source = np.arange(1, lanes + 1).astype(f"int{wide[1:]}")
    for lane in (None, 0, 1, lanes // 2, lanes - 1):
        b = Builder()
        x, y = b.buffer("x", Type(wide), readonly=True), b.buffer("y", Type(narrow))
        row, first = b.param(), b.active(1, lanes)
        if lane is None:
            mask = b.mask_below(row, row + 1, lanes)
        else:
            mask = b.shuffle(first, None, [abs(at - lane) for at in range(lanes)])
        b.store(b.cast("trunc", b.load(x, 0, lanes), narrow), y, 0, mask=mask)
        out = np.full(2 * lanes, 99).astype(f"int{narrow[1:]}")
        expected = out.copy()
        expected[lane or 0] = source[lane or 0]
        run_kernel(b.finish(), [source, out], [7], target=target)
        np.testing.assert_array_equal(out, expected)


@by_target
def test_scalar_masks_guard_scalar_moves(run_kernel: Run, target: Target) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    on = b.param()
    mask = b.compare("ne", on, 0)
    b.store(b.load(x, 0, mask=mask), y, 0)
    b.store(b.const(5.0, F32), y, 1, mask=mask)
    for flag, expected in ((0, [0, 9]), (1, [3, 5])):
        out = np.full(2, 9, np.float32)
        source = np.array([3], np.float32)
        run_kernel(b.finish(), [source if flag else 0, out], [flag], target=target)
        assert list(out) == expected


@by_target
@pytest.mark.parametrize("index", [I32, I64], ids=str)
@by_element
def test_gather_and_scatter(
    run_kernel: Run, elem: Type, dtype: Any, index: Type, target: Target
) -> None:
    b = Builder()
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    at = b.buffer("i", index, readonly=True)
    indices = b.load(at, 0, 8)
    mask = b.active(6, 8)
    b.scatter(b.gather(x, indices, mask=mask), y, indices, mask=mask)
    b.store(b.gather(x, indices, mask=mask), y, 40)
    source, out = np.arange(100, 132).astype(dtype), np.zeros(48).astype(dtype)
    order = np.array([31, 2, 9, -0, 17, 5, 10**6, -(10**6)], f"int{index.bits}")
    run_kernel(b.finish(), [source, out, order], target=target)
    expected = np.zeros(48).astype(dtype)
    expected[order[:6]] = source[order[:6]]
    expected[40:46] = source[order[:6]]
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))


@by_target
def test_negative_indices_reach_back(run_kernel: Run, target: Target) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.store(b.gather(x, b.lane_ids(4, I32) - 2), y, 0)
    values, out = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    run_kernel(b.finish(), [values.ctypes.data + 16, out], target=target)
    assert list(out) == [2, 3, 4, 5]


@by_target
def test_scatter_stores_in_lane_order(run_kernel: Run, target: Target) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    b.scatter(b.lane_ids(8, F32), y, b.splat(b.const(1, I32), 8))
    out = np.zeros(4, np.float32)
    run_kernel(b.finish(), [out], target=target)
    assert list(out) == [0, 7, 0, 0]


def test_scalar_gather_is_a_load(run_kernel: Run) -> None:
    b = Builder()
    x, y = b.buffer("x", F64, readonly=True), b.buffer("y", F64)
    b.scatter(b.gather(x, b.const(2, I32)), y, b.const(1, I32))
    out = np.zeros(2)
    run_kernel(b.finish(), [np.arange(5.0), out])
    assert list(out) == [0, 2]


@pytest.mark.parametrize("target", [*TARGETS, Target.neon()], ids=lambda t: t.name)
def test_streaming_stores_end_with_a_fence(
    assembly: Callable[[Function, Target], str], target: Target
) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    b.loop(b.lo, b.hi, 16, [],
           lambda i: b.store(b.const(1.0, F32.with_lanes(16)), y, i, alignment=64,
                             nontemporal=True))  # fmt: skip
    verify(b.finish())
    text = assembly(b.finish(), target)
    if target.is_x86:
        assert "movntps" in text
        assert "sfence" in text
    else:
        assert "dmb" in text


def test_prefetches(assembly: Callable[[Function, Target], str], run_kernel: Run) -> None:
    b = Builder()
    x = b.buffer("x", F32, readonly=True)
    for locality in (3, 2, 0):
        b.prefetch(x, 1 << 40, locality=locality)
    b.prefetch(x, 0, write=True)
    text = assembly(b.finish(), Target.host())
    assert text.count("prefetch") == 4
    run_kernel(b.finish(), [np.zeros(4, np.float32)])  # a hint never faults


# -------------------------------------------------------------------- checked accesses


def checked(run_kernel: Run, function: Function, arrays: list[Any], sizes: list[int], base: int = 0,
            lo: int = 0, hi: int = 0) -> int:  # fmt: skip
    """Runs with bounds checks; the fault word afterwards."""
    fault = np.zeros(1, np.int64)
    run_kernel(function, [*arrays, fault], [*sizes, base], lo, hi, verify=True)
    return int(fault[0])


def copy_kernel(lanes: int) -> Function:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.loop(b.lo, b.hi, max(lanes, 1), [], lambda i: b.store(b.load(x, i, lanes), y, i))
    return b.finish()


@pytest.mark.parametrize("lanes", [0, 8])
def test_accesses_inside_are_no_faults(run_kernel: Run, lanes: int) -> None:
    x, y = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    assert checked(run_kernel, copy_kernel(lanes), [x, y], [16, 16], 40, 0, 16) == 0
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("lanes", [0, 8])
def test_a_load_beyond_the_end_is_a_fault(run_kernel: Run, lanes: int) -> None:
    x, y = np.arange(16, dtype=np.float32), np.full(16, 9, np.float32)
    assert checked(run_kernel, copy_kernel(lanes), [x, y], [13, 16], 40, 0, 16) == 41
    np.testing.assert_array_equal(y, [*range(13), 0, 0, 0])


@pytest.mark.parametrize("lanes", [0, 8])
def test_a_store_before_the_start_is_a_fault(run_kernel: Run, lanes: int) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    step = max(lanes, 1)
    value = b.const(1.0, F32.with_lanes(lanes))
    b.loop(0, 16, step, [], lambda i: b.store(value, y, i - 3))
    memory = np.zeros(32, np.float32)
    inner = memory.ctypes.data + 4 * 8
    assert checked(run_kernel, b.finish(), [inner], [16]) == 1
    np.testing.assert_array_equal(memory[:8], 0)
    np.testing.assert_array_equal(memory[8:21], 1)


def test_masked_lanes_are_no_faults(run_kernel: Run) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    mask = b.active(5, 8)
    b.store(b.load(x, 0, 8, mask=mask), y, 0, mask=mask)
    x5, y5 = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    assert checked(run_kernel, b.finish(), [x5, y5], [5, 5]) == 0
    np.testing.assert_array_equal(x5, y5)


def test_gathers_and_scatters_are_checked(run_kernel: Run) -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    indices = b.lane_ids(8, I32) * 3
    b.scatter(b.gather(x, indices), y, indices)
    x24, y24 = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    assert checked(run_kernel, b.finish(), [x24, y24], [24, 24]) == 0
    assert checked(run_kernel, b.finish(), [x24, y24], [24, 20]) == 2
    assert checked(run_kernel, b.finish(), [x24, y24], [20, 24]) == 1


def test_tables_are_not_checked() -> None:
    b = Builder()
    y = b.buffer("y", F32)
    b.store(b.load(b.table("t", F32, [1.0, 2.0]), 1), y, 0)
    assert lower(b.finish(), "k", Target.host(), verify=True).count("store atomic") == 1


@pytest.mark.parametrize(("at", "faulty"), [(0, False), (12, False), (13, True), (-1, True)])
@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("reads", [False, True])
def test_scratch_is_checked(
    run_kernel: Run, at: int, lanes: int, *, faulty: bool, reads: bool
) -> None:
    b = Builder()
    y = b.buffer("y", F32)
    spare = b.scratch("s", F32, 16 if lanes else 13)
    index = b.binary("smin", b.lo, at)  # not a constant to LLVM
    if reads:
        b.store(b.load(spare, index, lanes), y, 0)
    else:
        b.store(b.const(1.0, F32.with_lanes(lanes)), spare, index)
        b.store(b.const(1.0, F32), y, 0)
    found = checked(run_kernel, b.finish(), [np.zeros(4, np.float32)], [4], lo=99)
    assert found == (2 if faulty else 0)  # one more than there are arguments


def test_masked_lanes_may_reach_over_the_end_of_scratch(run_kernel: Run) -> None:
    for used, faulty in ((3, False), (4, True)):
        b = Builder()
        y, spare = b.buffer("y", F32), b.scratch("s", F32, 13)
        mask = b.mask_below(0, b.binary("smin", b.lo, used), 4)
        b.store(b.const(1.0, F32.with_lanes(4)), spare, 10, mask=mask)
        b.store(b.const(1.0, F32), y, 0)
        found = checked(run_kernel, b.finish(), [np.zeros(1, np.float32)], [1], lo=99)
        assert found == (2 if faulty else 0)


def once_kernel(*, forgets: int = 1, writes: int = 1, written: int = 8, read: int = 8) -> Function:
    """Writes the first elements of a `once` buffer, and reads the first ones."""
    b = Builder()
    y, kept = b.buffer("y", F32), b.scratch("kept", F32, 40, once=True)
    for _ in range(forgets):
        b.forget(kept)
        for _ in range(writes):
            b.store(b.const(3.0, F32.with_lanes(8)), kept, 0, mask=b.active(written, 8))
        b.store(b.load(kept, 0, 8, mask=b.active(read, 8)), y, 0)
    function = b.finish()
    verify(function)
    return function


@pytest.mark.parametrize(
    ("options", "faulty"),
    [
        ({}, False),
        ({"forgets": 2}, False),
        ({"written": 5, "read": 5}, False),
        ({"written": 5, "read": 6}, True),
        ({"writes": 0}, True),
        ({"writes": 2}, True),
    ],
    ids=str,
)
def test_elements_are_written_once_and_then_read(
    run_kernel: Run, options: dict[str, int], *, faulty: bool
) -> None:
    y = np.zeros(8, np.float32)
    assert checked(run_kernel, once_kernel(**options), [y], [8]) == (2 if faulty else 0)


def test_marks_cost_nothing_without_verify() -> None:
    function = once_kernel()
    assert "x i8>" not in lower(function, "k", Target.host())
    assert "x i8>" in lower(function, "k", Target.host(), verify=True)
    assert with_shadows(function).scratch_nbytes > function.scratch_nbytes
