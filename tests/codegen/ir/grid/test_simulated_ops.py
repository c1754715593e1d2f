"""Ops of blocks of threads, simulated: who one is, exchanges, votes, atomics, ways apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.nodes import I32, I64, Type, Value
from stagejit.errors import VerificationError
from tests.codegen.ir.grid.kernels import launch, shuffled


def test_who_one_is() -> None:
    b = GridBuilder([4, 3, 2])
    y = b.buffer("y", I64)
    block = b.block_id(0) + (b.block_id(1) + b.block_id(2) * 10) * 10
    thread = b.thread_id(0) + (b.thread_id(1) + b.thread_id(2) * 10) * 10
    place = (b.block_id(0) + b.block_id(1) * b.block_count(0)) * 24 + b.thread_of_block()
    count = b.block_count(1) * b.block_count(2) * b.block_size(1)
    b.store((block * 1000 + thread) * 1000 + count, y, place)
    found = np.zeros(2 * 5 * 24, np.int64)
    launch(b, [found], blocks=[2, 5], order=shuffled(10))
    assert list(found) == [
        ((v * 10 + u) * 1000 + (z * 10 + w) * 10 + x) * 1000 + 15
        for v in range(5) for u in range(2) for z in range(2) for w in range(3) for x in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_exchanges(dtype: Any) -> None:
    b = GridBuilder([64])
    elem = Type(f"{'i' if dtype is np.int32 else 'f'}{8 * np.dtype(dtype).itemsize}")
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    mine = b.load(x, b.thread_id())
    ways = [("idx", b.thread_id() * 7), ("xor", 5), ("down", 3), ("up", b.lane() % 3)]
    for k, (kind, lane) in enumerate(ways):
        b.store(b.exchange(kind, mine, lane), y, b.thread_id() + 64 * k)
    values, found = np.random.default_rng(0).permutation(64).astype(dtype), np.zeros(256, dtype)
    launch(b, [values, found], blocks=[1])
    own, warp = np.arange(64) % 32, np.arange(64) // 32 * 32
    lanes = [own + warp] * 4
    for k, lane in enumerate((np.arange(64) * 7 % 32, own ^ 5, own + 3, own - own % 3)):
        lanes[k] = warp + np.where((lane < 0) | (lane > 31), own, lane)
    np.testing.assert_array_equal(found.reshape(4, 64), [values[lane] for lane in lanes])


def test_votes() -> None:
    b = GridBuilder([96])
    y = b.buffer("y", I32)
    odd_warps = b.compare("ne", b.thread_id() % (b.warp() + 1), 0)
    for k, kind in enumerate(("any", "all", "ballot")):
        vote = b.vote(kind, odd_warps)
        vote = vote if kind == "ballot" else b.cast("zext", vote, "i32")
        b.store(vote, y, b.thread_id() + 96 * k)
    found = np.zeros(3 * 96, np.int32)
    launch(b, [found], blocks=[1])
    thread = np.arange(96)
    flags = (thread % (thread // 32 + 1) != 0).reshape(3, 32)
    ballots = [int("".join("01"[int(f)] for f in row[::-1]), 2) for row in flags]
    for row, wanted in zip(
        found.reshape(3, 96), (flags.any(1), flags.all(1), ballots), strict=True
    ):
        np.testing.assert_array_equal(row.view(np.uint32), np.repeat(np.uint32(wanted), 32))


@pytest.mark.parametrize("distance", [1, 32])
@pytest.mark.parametrize("meets", [(True, True), (False, True), (True, False)])
def test_threads_of_a_warp_meet(distance: int, meets: tuple[bool, bool]) -> None:
    """What one of them did alone the others know of behind a barrier of the warp, nobody else."""
    b = GridBuilder([64])
    y, kept, own = b.buffer("y", I64), b.shared("kept", I64, 64), b.thread_of_block()
    b.store(own, kept, own)
    if meets[0]:
        b.warp_barrier()
    other = b.load(kept, own ^ distance)
    if meets[1]:
        b.warp_barrier()
    b.store(other, kept, own)
    b.store(other, y, own)
    found = np.zeros(64, np.int64)
    if distance == 1 and all(meets):
        launch(b, [found], blocks=[1])
        assert list(found) == [thread ^ 1 for thread in range(64)]
    else:
        with pytest.raises(VerificationError, match="a race"):
            launch(b, [found], blocks=[1])


@pytest.mark.parametrize(
    ("opcode", "dtype", "truth"),
    [("add", np.int32, np.sum), ("add", np.int64, np.sum), ("smin", np.int32, np.min),
     ("smax", np.int64, np.max), ("umin", np.int32, lambda x: x.view(np.uint32).min()),
     ("umax", np.int32, lambda x: x.view(np.uint32).max()), ("fadd", np.float32, np.sum),
     ("fminimum", np.float32, np.min), ("fmaximum", np.float32, np.max)],
)  # fmt: skip
@pytest.mark.parametrize("shared", [False, True])
def test_atomics(opcode: str, dtype: Any, truth: Callable[..., Any], *, shared: bool) -> None:
    b = GridBuilder([32])
    kind = np.dtype(dtype)
    elem = Type(f"{kind.kind}{8 * kind.itemsize}")
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    place = b.shared("s", elem, 1) if shared else y
    first = b.compare("eq", b.thread_id(), 0)
    b.store(b.load(x, 0), place, 0, mask=first)
    b.barrier()
    b.atomic(opcode, b.load(x, b.thread_id() + 1), place, 0)
    b.barrier()
    b.store(b.load(place, 0, mask=first), y, 0, mask=first)
    values = np.random.default_rng(0).integers(-99, 99, 33).astype(dtype)
    found = np.zeros(1, dtype)
    launch(b, [values, found], blocks=[1])
    assert found.view(f"u{kind.itemsize}")[0] == np.array([truth(values)]).astype(
        kind if opcode[0] != "u" else f"u{kind.itemsize}"
    ).view(f"u{kind.itemsize}")


def test_one_thread_wins_each_swap() -> None:
    """And the others see what it put there."""
    b = GridBuilder([64])
    y, seen, place = b.buffer("y", I64), b.buffer("s", I64), b.thread_id() % 3
    b.store(b.compare_and_swap(-1, b.thread_id(), y, place), seen, b.thread_id())
    found, before = np.full(3, -1), np.full(64, -5)
    launch(b, [found, before], blocks=[1])
    for at, winner in enumerate(found):
        assert winner % 3 == at
        others = np.arange(64) % 3 == at
        others[winner] = False
        assert before[winner] == -1
        assert (before[others] == winner).all()


def test_threads_go_different_ways() -> None:
    """Conditionals and loops of different lengths, with a stack of each thread's own, against one
    thread after the other."""
    b = GridBuilder([32])
    y, local = b.buffer("y", I64), b.stack("l", I64, 40)
    t = b.thread_id()

    def body(i: Value, total: Value) -> list[Value]:
        def odd() -> list[Value]:
            b.store(total, local, i)
            return list(b.loop(0, i % 4, 1, [total], lambda j, s: [s + j * t]))

        found = b.if_(b.compare("eq", (i + t) % 2, 1), odd, lambda: [total - 1])
        return list(found)

    (total,) = b.loop(t % 5, t, 1, [t * 10], body)
    b.store(total, y, t)
    found = np.zeros(32, np.int64)
    launch(b, [found], blocks=[1])
    for thread in range(32):
        wanted = thread * 10
        for i in range(thread % 5, thread):
            wanted += sum(j * thread for j in range(i % 4)) if (i + thread) % 2 else -1
        assert found[thread] == wanted
