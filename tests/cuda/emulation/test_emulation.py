"""What the emulation finds, beside wrong results."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import stagejit
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import M16N8K8_TF32
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import F32, I64, Function
from tests.codegen.ir.grid.kernels import block_sum, histogram, product
from tests.codegen.ir.grid.test_simulated_faults import (
    barrier_in_a_loop_of_some,
    barrier_in_an_arm,
    exchange_in_half_a_warp,
    outside_shared_memory,
)
from tests.cuda.emulation.checked import Array, require_same
from tests.cuda.emulation.emulated import ORDERS, EmulationError, emulate

# -------------------------------------------------------------------- mutations: a barrier less


def sum_of_64() -> tuple[Function, list[Array], list[int]]:
    return block_sum(64).finish(), [np.ones(64, np.float32), np.zeros(1, np.float32)], [64]


def tiled_product() -> tuple[Function, list[Array], list[int]]:
    tile, rng = M16N8K8_TF32, np.random.default_rng(0)
    shapes = ((2 * tile.m, 3 * tile.k), (3 * tile.k, 2 * tile.n), (2 * tile.m, 2 * tile.n))
    arrays = [rng.integers(-8, 8, shape).astype(np.float32) for shape in shapes]
    return product(tile, 3 * tile.k).finish(), arrays, [2 * tile.n]


def histogram_of_7() -> tuple[Function, list[Array], list[int]]:
    numbers = np.arange(64, dtype=np.int32) % 7
    return histogram(7).finish(), [numbers, np.zeros(7, np.int32), np.zeros(64, np.int32)], [64]


def rotation() -> tuple[Function, list[Array], list[int]]:
    """Reads, then writes what others have read."""
    b = GridBuilder([64])
    y, shared = b.buffer("y", I64), b.shared("s", I64, 64)
    b.store(b.thread_id(), shared, b.thread_id())
    b.barrier()
    value = b.load(shared, (b.thread_id() + 1) % 64)
    b.barrier()
    b.store(value, shared, b.thread_id())
    b.barrier()
    b.store(b.load(shared, (b.thread_id() + 1) % 64), y, b.thread_id())
    return b.finish(), [np.zeros(64, np.int64)], []


KERNELS = [(sum_of_64, 0), (tiled_product, 0), (tiled_product, 1), (histogram_of_7, 0),
           (histogram_of_7, 1), (rotation, 0), (rotation, 1), (rotation, 2)]  # fmt: skip


@pytest.mark.parametrize(("build", "which"), KERNELS)
def test_a_missing_barrier_is_found(
    build: Callable[[], tuple[Function, list[Array], list[int]]], which: int
) -> None:
    """In one order of the threads or another the results are wrong."""
    function, arrays, params = build()
    wanted = [array.copy() for array in arrays]
    simulate(function, wanted, params, blocks=[1])
    parents = [op.blocks[0] for op in function.walk() if op.opcode == "for"]
    barriers = [(block, op) for block in (function.body, *parents) for op in block.ops
                if op.opcode == "barrier"]  # fmt: skip
    block, barrier = barriers[which]
    block.ops.remove(barrier)
    wrong = []
    for threads in ORDERS:
        found = [array.copy() for array in arrays]
        emulate(function, found, params, blocks=[1], threads=threads)
        try:
            require_same(function, found, wanted)
        except AssertionError:
            wrong.append(threads)
    assert wrong


# -------------------------------------------------------------------- blocks


def shift(by: int) -> Function:
    """Each block moves an element in place; another block moves the one that it reads."""
    b = GridBuilder([32])
    y = b.buffer("y", I64)
    value = b.load(y, b.block_id() + max(by, 0))
    first = b.compare("eq", b.thread_id(), 0)
    b.if_(first, lambda: b.store(value + 1, y, b.block_id() + max(-by, 0)))
    return b.finish()


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("blocks", [2, 3, 4, 7, 40])
def test_blocks_that_wait_for_each_other_are_found(by: int, blocks: int) -> None:
    results = []
    for threads in ORDERS:
        found = np.arange(blocks + 1) * 100
        emulate(shift(by), [found], blocks=[blocks], threads=threads)
        results.append(found.tolist())
    assert any(result != results[0] for result in results)


@pytest.mark.parametrize("threads", ORDERS)
@pytest.mark.parametrize("grid", [[1], [2], [6], [35], [3, 4], [5, 2, 3]])
def test_each_block_runs_once(grid: list[int], threads: str) -> None:
    b = GridBuilder([32])
    y, one = b.buffer("y", I64), b.const(1, I64)
    at = (b.block_id(2) * grid[1] if len(grid) > 2 else b.const(0)) + (
        b.block_id(1) if len(grid) > 1 else b.const(0)
    )
    at = at * grid[0] + b.block_id(0)
    b.if_(b.compare("eq", b.thread_id(), 0), lambda: b.store(b.load(y, at) + one, y, at))
    found = np.zeros(math.prod(grid), np.int64)
    emulate(b.finish(), [found], blocks=grid, threads=threads)
    assert (found == 1).all()


# -------------------------------------------------------------------- numbers


def test_denormal_numbers_are_those_of_a_gpu() -> None:
    """On a thread of XLA's, too, where they count as zeros."""
    x = np.array([1e-45, -1e-45, 1e-40, 1e-38, 1e38], np.float32)
    for y in (np.float32(1e-40), np.float32(0.25), np.float32(3)):
        found = stagejit.jit(lambda x, y: (x * y, x / y, x + y, x < y), backend="cuda-emulated")(
            x, y
        )
        with np.errstate(all="ignore"):
            for one, wanted in zip(found, (x * y, x / y, x + y, x < y), strict=True):
                np.testing.assert_array_equal(np.asarray(one), wanted)


# -------------------------------------------------------------------- faults


def outside_an_array(b: GridBuilder) -> None:
    y = b.buffer("y", F32)
    b.store(b.const(1.0, F32), y, b.thread_id() * 64)


def before_an_array(b: GridBuilder) -> None:
    y = b.buffer("y", F32)
    b.store(b.const(1.0, F32), y, b.thread_id() - 8)


def just_behind_an_array(b: GridBuilder) -> None:
    y = b.buffer("y", F32)
    b.store(b.const(1.0, F32), y, b.thread_id() + 38)


def outside_a_table(b: GridBuilder) -> None:
    y, table = b.buffer("y", F32), b.table("t", F32, [1.0, 2.0])
    b.store(b.load(table, b.thread_id()), y, b.thread_id() % 2)


def between_accesses(b: GridBuilder) -> None:
    y = b.buffer("y", F32)
    b.store(b.const(1.0, F32.with_lanes(4)), y, b.thread_id() % 8 + 8, alignment=16)


FAULTS: list[tuple[Callable[[GridBuilder], None], str]] = [
    (barrier_in_an_arm, "a barrier that not all threads come to"),
    (barrier_in_a_loop_of_some, "a barrier that not all threads come to"),
    (exchange_in_half_a_warp, "an exchange that not all threads come to"),
    (outside_shared_memory, "an index outside an array .* thread 63 0 0"),
    (outside_a_table, "an index outside an array .* thread 2 0 0"),
    (outside_an_array, "an access outside the arrays of the kernel"),
    (before_an_array, "a store beside an array"),
    (between_accesses, "an access that is not aligned to its size .* thread 1 0 0"),
    (just_behind_an_array, "outside the arrays of the kernel|a store beside an array"),
]


@pytest.mark.parametrize(("build", "message"), FAULTS, ids=[build.__name__ for build, _ in FAULTS])
def test_a_fault_is_found(build: Callable[[GridBuilder], None], message: str) -> None:
    b = GridBuilder([64])
    build(b)
    arrays = [np.zeros(101, np.float32)]
    with pytest.raises(EmulationError, match=message):
        emulate(b.finish(), arrays, blocks=[1])


def test_shared_memory_is_full_of_nan_at_first() -> None:
    """Before each block, whatever the one before it left there."""
    b = GridBuilder([32])
    y, shared = b.buffer("y", F32), b.shared("s", F32, 32)
    b.store(b.load(shared, b.thread_id()), y, b.block_id() * 32 + b.thread_id())
    b.store(b.const(1.0, F32), shared, b.thread_id())
    found = np.zeros(64, np.float32)
    emulate(b.finish(), [found], blocks=[2])
    assert np.isnan(found).all()
