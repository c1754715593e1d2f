"""Copies that threads start and wait for: simulated, emulated as CUDA C++, compiled for GPUs; and
what is found where a wait or a barrier is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.interpreter.grid import simulate
from stagejit.codegen.ir.nodes import F32, F64, Block, Function, Op, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.errors import VerificationError
from tests.cuda.emulation.checked import checked, require_same
from tests.cuda.emulation.emulated import ORDERS, EmulationError, emulate

Array = np.ndarray[Any, np.dtype[Any]]
THREADS, LANES = 64, 4


def relay(stages: int) -> Function:
    """y[i] is the sum of x[j][i + 4] over tiles j, which are on their way `stages - 1` ahead, the
    places of a tile in a circle."""
    b, size = GridBuilder([THREADS]), THREADS * LANES
    x, y, tiles = b.buffer("x", F32, readonly=True), b.buffer("y", F32), b.param()
    shared = b.shared("tiles", F32, stages * size)
    own, sums = b.thread_id() * LANES, b.stack("sums", F32, LANES)

    def start(tile: Value) -> None:
        b.copy_ahead(x, tile * size + own, shared, tile % stages * size + own)

    for lane in range(LANES):
        b.store(b.const(0.0, F32), sums, lane)
    for number in range(stages - 1):
        b.if_(b.compare("lt", b.const(number), tiles), lambda n=number: start(b.const(n)))  # type: ignore[misc]
        b.commit_copies()
    b.wait_for_copies(stages - 2)
    b.barrier()

    def turn(tile: Value) -> tuple[Value, ...]:
        later = tile + (stages - 1)
        b.if_(b.compare("lt", later, tiles), lambda: start(later))
        b.commit_copies()
        for lane in range(LANES):
            got = b.load(shared, tile % stages * size + (own + (LANES + lane)) % size)
            b.store(b.load(sums, lane) + got, sums, lane)
        b.wait_for_copies(stages - 2)
        b.barrier()
        return ()

    b.loop(0, tiles, 1, (), turn)
    for lane in range(LANES):
        b.store(b.load(sums, lane), y, own + lane)
    return b.finish()


def given(tiles: int) -> list[Array]:
    x = np.random.default_rng(0).integers(-9, 9, (tiles, THREADS * LANES)).astype(np.float32)
    return [x, np.full(THREADS * LANES, np.nan, np.float32)]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("tiles", [1, 2, 7])
def test_a_relay(stages: int, tiles: int) -> None:
    function, (x, y) = relay(stages), given(tiles)
    verify(function)
    checked(function, [x, y], [tiles], blocks=[1])
    np.testing.assert_array_equal(y, np.roll(x.sum(0), -LANES))


def without(function: Function, opcode: str, which: int) -> None:
    """Takes one op away, of those outside of loops and those in one."""
    parents = [op.blocks[0] for op in function.walk() if op.opcode == "for"]
    found: list[tuple[Block, Op]] = [
        (block, op)
        for block in (function.body, *parents)
        for op in block.ops
        if op.opcode == opcode
    ]
    block, op = found[which]
    block.ops.remove(op)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("opcode", "which"), [
    ("wait_for_copies", 0), ("wait_for_copies", 1), ("barrier", 0), ("barrier", 1),
])  # fmt: skip
def test_each_wait_and_each_barrier_is_needed(stages: int, opcode: str, which: int) -> None:
    function, arrays = relay(stages), given(5)
    without(function, opcode, which)
    with pytest.raises(VerificationError, match=r"a race|was not written|have arrived"):
        simulate(function, [array.copy() for array in arrays], [5], blocks=[1])
    wanted = [arrays[0], np.roll(arrays[0].sum(0), -LANES)]
    wrong = 0
    for threads in ORDERS:
        found = [array.copy() for array in arrays]
        try:
            emulate(function, found, [5], blocks=[1], threads=threads)
            require_same(function, found, wanted)
        except (AssertionError, EmulationError):
            wrong += 1
    assert wrong


def test_what_is_not_committed_is_not_waited_for() -> None:
    function, arrays = relay(2), given(3)
    without(function, "commit_copies", -1)
    with pytest.raises(VerificationError, match="was not written"):
        simulate(function, [array.copy() for array in arrays], [3], blocks=[1])
    with pytest.raises(EmulationError, match="ends before its copies have arrived"):
        emulate(function, arrays, [3], blocks=[1])


# -------------------------------------------------------------------- faults


def between_accesses(b: GridBuilder) -> None:
    x, shared = b.buffer("x", F32, readonly=True), b.shared("s", F32, 4 * THREADS)
    b.copy_ahead(x, b.thread_id() * 4 + 1, shared, b.thread_id() * 4)
    b.commit_copies()
    b.wait_for_copies()


def never_waited_for(b: GridBuilder) -> None:
    x, shared = b.buffer("x", F32, readonly=True), b.shared("s", F32, 4 * THREADS)
    b.copy_ahead(x, b.thread_id() * 4, shared, b.thread_id() * 4)


def to_one_place(b: GridBuilder) -> None:
    x, shared = b.buffer("x", F32, readonly=True), b.shared("s", F32, 4 * THREADS)
    b.copy_ahead(x, b.thread_id() * 4, shared, b.thread_id() // 2 * 4)


def committed_by_some(b: GridBuilder) -> None:
    b.buffer("x", F32, readonly=True)
    b.if_(b.compare("lt", b.thread_id(), 7), b.commit_copies)


FAULTS: list[tuple[Callable[[GridBuilder], None], str, str]] = [
    (between_accesses, "is not aligned to 16 bytes", "a copy that is not aligned"),
    (never_waited_for, "before its copies have arrived", "before its copies have arrived"),
    (to_one_place, "a race", ""),
    (committed_by_some, "not all threads of the block come to", ""),
]


@pytest.mark.parametrize(
    ("build", "simulated", "emulated"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_a_fault_is_found(
    build: Callable[[GridBuilder], None], simulated: str, emulated: str
) -> None:
    b, arrays = GridBuilder([THREADS]), [np.zeros(5 * THREADS, np.float32)]
    build(b)
    function = b.finish()
    verify(function)
    with pytest.raises(VerificationError, match=simulated):
        simulate(function, arrays, blocks=[1])
    if emulated:
        with pytest.raises(EmulationError, match=emulated):
            emulate(function, arrays, blocks=[1])


def from_shared_memory(b: GridBuilder) -> None:
    shared = b.shared("s", F32, 64)
    b.copy_ahead(shared, 0, shared, 4)


def to_an_array(b: GridBuilder) -> None:
    b.copy_ahead(b.buffer("x", F32), 0, b.buffer("y", F32), 0)


def of_another_type(b: GridBuilder) -> None:
    b.copy_ahead(b.buffer("x", F64), 0, b.shared("s", F32, 4), 0)


RULES: list[tuple[Callable[[GridBuilder], None], str]] = [
    (from_shared_memory, "not in global memory"),
    (to_an_array, "which threads do not share"),
    (of_another_type, "of f64 to f32"),
]


@pytest.mark.parametrize(("build", "message"), RULES, ids=[build.__name__ for build, _ in RULES])
def test_dont_verify(build: Callable[[GridBuilder], None], message: str) -> None:
    b = GridBuilder([32])
    build(b)
    with pytest.raises(VerificationError, match=message):
        verify(b.finish())
