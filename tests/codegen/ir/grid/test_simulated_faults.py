"""Kernels for blocks of threads, simulated: the faults that are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.grid.matrix_tiles import M8N8K4_F64
from stagejit.codegen.ir.nodes import F32, F64, I32, I64, Value
from stagejit.codegen.target import Target
from stagejit.errors import InternalError, VerificationError
from tests.codegen.ir.grid.kernels import block_sum, launch


def barrier_in_an_arm(b: GridBuilder) -> None:
    b.if_(b.compare("lt", b.thread_id(), 40), b.barrier)


def barrier_in_a_loop_of_some(b: GridBuilder) -> None:
    b.loop(0, b.thread_id(), 1, [], lambda i: b.barrier())


def exchange_in_half_a_warp(b: GridBuilder) -> None:
    def exchanged() -> None:
        b.exchange("xor", b.thread_id(), 1)

    b.if_(b.compare("lt", b.thread_id(), 40), exchanged)


def one_place_for_all(b: GridBuilder) -> None:
    b.store(b.thread_id(), b.shared("s", I64, 64), 0)


def read_of_a_neighbour(b: GridBuilder) -> None:
    shared = b.shared("s", I64, 65)
    b.store(b.thread_id(), shared, b.thread_id())
    b.load(shared, b.thread_id() ^ 1)


def write_after_read(b: GridBuilder) -> None:
    shared = b.shared("s", I64, 65)
    b.store(b.thread_id(), shared, b.thread_id())
    b.barrier()
    value = b.load(shared, b.thread_id() ^ 1)
    b.store(value, shared, b.thread_id())


def change_beside_a_read(b: GridBuilder) -> None:
    shared = b.shared("s", I32, 1)
    b.store(b.const(0, I32), shared, 0, mask=b.compare("eq", b.thread_id(), 0))
    b.barrier()
    b.atomic("add", 1, shared, 0)
    b.load(shared, 0)


def unwritten_shared_memory(b: GridBuilder) -> None:
    b.load(b.shared("s", F32, 64), b.thread_id())


def outside_shared_memory(b: GridBuilder) -> None:
    b.store(b.thread_id(), b.shared("s", I64, 63), b.thread_id())


def tiles_at_several_places(b: GridBuilder) -> None:
    x = b.buffer("x", F64, readonly=True)
    b.tile_load(M8N8K4_F64, "a", x, b.thread_id(), (4, 1))


def one_result_for_all(b: GridBuilder) -> None:
    b.store(b.const(1.0, F64), b.buffer("y", F64), b.thread_id() % 63)


def result_read_by_a_neighbour(b: GridBuilder) -> None:
    y = b.buffer("y", F64)
    b.store(b.const(1.0, F64), y, b.thread_id())
    b.load(y, b.thread_id() ^ 1)


def one_result_for_two_blocks(b: GridBuilder) -> None:
    b.store(b.const(1.0, F64), b.buffer("y", F64), b.block_id() * 63 + b.thread_id())


def result_of_another_block(b: GridBuilder) -> None:
    y = b.buffer("y", F64)
    b.barrier()
    b.load(y, (1 - b.block_id()) * 64 + b.thread_id())
    b.barrier()
    b.store(b.const(1.0, F64), y, b.block_id() * 64 + b.thread_id())


FAULTS: list[tuple[Callable[[GridBuilder], None], str]] = [
    (barrier_in_an_arm, "a barrier that not all threads of the block come to"),
    (barrier_in_a_loop_of_some, "a barrier that not all threads"),
    (exchange_in_half_a_warp, "`exchange` that not all threads of a warp come to"),
    (one_place_for_all, "a race: element 0 of @s.b0 is written by thread 0, and written"),
    (read_of_a_neighbour, "a race: element 1 of @s.b0 is read by thread 0, and written"),
    (write_after_read, "a race: element 0 of @s.b0 is written by thread 0, and read"),
    (change_beside_a_read, "a race: element 0 of @s.b0 is read by thread 0, and changed"),
    (one_result_for_all, "a race: element 0 of @y.0 is written by thread 0, and written"),
    (result_read_by_a_neighbour, "a race: element 1 of @y.0 is read by thread 0, and written"),
    (one_result_for_two_blocks, "a race: element 63 of @y.0 is written by block 1, and written"),
    (result_of_another_block, "a race: element 0 of @y.0 is read by block 1, and written"),
    (unwritten_shared_memory, "element 0 of @s.b0 is read, and was not written"),
    (outside_shared_memory, "element 63 of @s.b0, which has 63"),
    (tiles_at_several_places, "the threads of a warp name different places"),
]


@pytest.mark.parametrize(("build", "message"), FAULTS, ids=[build.__name__ for build, _ in FAULTS])
def test_fault(build: Callable[[GridBuilder], None], message: str) -> None:
    b = GridBuilder([64])
    build(b)
    with pytest.raises(VerificationError, match=message):
        launch(b, [np.zeros(256)], blocks=[2])


def test_whole_warps_may_go_different_ways() -> None:
    b = GridBuilder([64])
    y = b.buffer("y", I64)
    first = b.compare("eq", b.warp(), 0)
    b.if_(first, lambda: b.store(b.exchange("xor", b.thread_id(), 1), y, b.thread_id()))
    found = np.zeros(64, np.int64)
    launch(b, [found], blocks=[1])
    np.testing.assert_array_equal(found, [*(np.arange(32) ^ 1), *[0] * 32])


def test_barriers_are_where_all_threads_go() -> None:
    """A conditional and a loop whose ways all threads go together."""
    b = GridBuilder([64])
    y, shared, count = b.buffer("y", I64), b.shared("s", I64, 64), b.param()
    b.store(b.thread_id(), shared, b.thread_id())

    def rotate(i: Value) -> None:
        b.barrier()
        value = b.load(shared, (b.thread_id() + 1) % 64)
        b.if_(b.compare("ge", count, 0), b.barrier)
        b.store(value, shared, b.thread_id())

    b.loop(0, count, 1, [], rotate)
    b.store(b.load(shared, b.thread_id()), y, b.thread_id())
    found = np.zeros(64, np.int64)
    launch(b, [found], [5], blocks=[1])
    np.testing.assert_array_equal(found, (np.arange(64) + 5) % 64)


def test_no_code_for_a_cpu() -> None:
    with pytest.raises(InternalError, match="cannot be lowered for a CPU"):
        lower(block_sum(64).finish(), "k", Target.host())
