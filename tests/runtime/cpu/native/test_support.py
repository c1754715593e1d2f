"""The run-time support functions, called through ctypes with a frame and a pool of our own."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from stagejit.codegen.target import Target
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import crew, entry, support
from stagejit.runtime.objects.engine import engine

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
API_CALL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

# Adds 1 to counts[item] and remembers in owners[chunk's first item] the offset of its scratch.
COUNTING_KERNEL = """
define void @test_support_count(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch) nounwind {
entry:
  %counts = load ptr, ptr %bufs
  %second = getelementptr ptr, ptr %bufs, i64 1
  %owners = load ptr, ptr %second
  %owner = getelementptr i64, ptr %owners, i64 %lo
  %s = ptrtoint ptr %scratch to i64
  store i64 %s, ptr %owner
  br label %loop
loop:
  %i = phi i64 [%lo, %entry], [%next, %loop]
  %p = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %p, i64 1 monotonic
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""


class Pool:
    """A call frame with the part of XLA's API that sj_pfor uses. Tasks are run by the test."""

    def __init__(
        self,
        threads: int,
        *,
        start: Callable[[Callable[[], None]], None] | None = None,
        refuse: bool = False,
        no_pool: bool = False,
    ) -> None:
        self.threads, self.start, self.refuse, self.no_pool = threads, start, refuse, no_pool
        self.pending: list[Callable[[], None]] = []
        self.errors_destroyed = 0
        self._calls = [API_CALL(self._schedule), API_CALL(self._count), API_CALL(self._destroy)]
        self._api = (ctypes.c_void_p * 32)()
        for offset, call in zip(
            (abi.API_POOL_SCHEDULE, abi.API_POOL_NUM_THREADS, abi.API_ERROR_DESTROY),
            self._calls,
            strict=True,
        ):
            self._api[offset // 8] = ctypes.cast(call, ctypes.c_void_p).value
        self._frame = (ctypes.c_void_p * 16)()
        self._frame[abi.FRAME_API // 8] = ctypes.addressof(self._api)
        self.frame = ctypes.addressof(self._frame)

    def _schedule(self, args: int) -> int | None:
        if self.refuse:
            return 0xDEAD
        task, data = (ctypes.c_void_p * 2).from_address(args + 24)
        run = TASK(task or 0)
        self.pending.append(lambda: run(data))
        if self.start is not None:
            self.start(self.pending.pop())
        return None

    def _count(self, args: int) -> int | None:
        if self.no_pool:
            return 0xDEAD
        out = ctypes.c_void_p.from_address(args + 24).value
        assert out is not None
        ctypes.c_int64.from_address(out).value = self.threads
        return None

    def _destroy(self, args: int) -> None:
        assert ctypes.c_void_p.from_address(args + 16).value == 0xDEAD
        self.errors_destroyed += 1


def function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(support.addresses()[name])


def run(
    pool: Pool, sizes: list[tuple[int, int]], workers: int, crew: int | None = None
) -> tuple[list[np.ndarray], list[Any]]:
    """sj_pfor over jobs of (total, grain); returns the counts and scratch offsets of each job.
    crew: address of the pointer to its state; None for one that ends with the loop."""
    kernel = engine().load({"test_support_count": COUNTING_KERNEL})["test_support_count"]
    counts = [np.zeros(total, np.int64) for total, _ in sizes]
    owners = [np.full(total, -1, np.int64) for total, _ in sizes]
    bufs = [
        (ctypes.c_void_p * 2)(c.ctypes.data, o.ctypes.data)
        for c, o in zip(counts, owners, strict=True)
    ]
    table, first = np.zeros((len(sizes) + 1, 6), np.int64), 0
    for row, (total, grain), pointers in zip(table, sizes, bufs, strict=False):
        row[:] = kernel, ctypes.addressof(pointers), 0, total, grain, first
        first += -(-total // grain)
    table[-1, 5] = first
    pfor = function(
        "sj_pfor",
        None,
        *[ctypes.c_void_p] * 3,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    pfor(pool.frame, table.ctypes.data, 0, first, workers, 0, 128, crew)
    return counts, owners


def run_all(tasks: list[Callable[[], None]]) -> None:
    while tasks:
        tasks.pop()()


@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 1)],
        [(10, 3)],
        [(100, 100)],
        [(7, 1), (20, 6), (1, 5)],
        [(5, 2)] * 9,
    ],
)
@pytest.mark.parametrize("workers", [1, 2, 3, 64])
def test_each_item_runs_once(sizes: list[tuple[int, int]], workers: int) -> None:
    pool = Pool(workers, start=lambda task: threading.Thread(target=task).start())
    counts, _ = run(pool, sizes, workers)
    assert all((count == 1).all() for count in counts)


def test_workers_that_come_too_late_find_nothing() -> None:
    pool = Pool(8)
    for _ in range(50):
        counts, owners = run(pool, [(64, 4)], 8)
        assert (counts[0] == 1).all()
        assert set(owners[0][::4]) == {0}
    assert len(pool.pending) == 50 * 7
    run_all(pool.pending)
    assert (counts[0] == 1).all()


def test_scratch_of_workers_is_apart() -> None:
    pool = Pool(4, start=lambda task: task())  # a helper that runs at once takes every chunk
    counts, owners = run(pool, [(64, 4)], 4)
    assert (counts[0] == 1).all()
    assert set(owners[0][::4]) == {128}
    started: list[threading.Thread] = []

    def start(task: Callable[[], None]) -> None:
        started.append(threading.Thread(target=task))
        started[-1].start()

    _, owners = run(Pool(4, start=start), [(20_000, 1)], 4)
    assert set(owners[0]) <= {0, 128, 256, 384}
    for thread in started:
        thread.join()


class Crew:
    """A pointer to the state that helpers share, as a call has it on its stack."""

    def __init__(self) -> None:
        self._state = ctypes.c_void_p()
        self.at = ctypes.addressof(self._state)

    def dismiss(self) -> None:
        function("sj_dismiss", None, ctypes.c_void_p)(self.at)


def test_a_crew_goes_from_loop_to_loop() -> None:
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    for _ in range(20):
        pool, crew = Pool(4, start=start), Crew()
        for turn in range(200):  # other jobs each time: who is late must not run old ones
            sizes = [(turn % 7 + 1, 1), (300 - turn, 3)][turn % 2 :]
            counts, owners = run(pool, sizes, 4, crew.at)
            assert all((count == 1).all() for count in counts)
            assert {owner for each in owners for owner in each} <= {-1, 0, 128, 256, 384}
        crew.dismiss()
        for thread in threads:
            thread.join()
        threads.clear()


def test_a_helper_that_was_asked_for_is_not_asked_again() -> None:
    pool, crew = Pool(4), Crew()
    for _ in range(10):
        counts, _ = run(pool, [(64, 4)], 4, crew.at)
        assert (counts[0] == 1).all()
    assert len(pool.pending) == 3
    pool.pending.pop()()  # finds nothing, and goes
    run(pool, [(64, 4)], 4, crew.at)
    assert len(pool.pending) == 3
    crew.dismiss()
    run_all(pool.pending)


def test_helpers_that_a_small_loop_does_not_want_are_asked_for_later() -> None:
    pool, crew = Pool(4), Crew()
    for chunks, asked in ((1, 0), (2, 1), (3, 2), (2, 2), (50, 3)):
        run(pool, [(chunks, 1)], 4, crew.at)
        assert len(pool.pending) == asked
    crew.dismiss()
    run_all(pool.pending)


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has helpers linger, and sit where that pays, for so many nanoseconds."""

    def stay(nanoseconds: int, sitting: int | None = None) -> None:
        monkeypatch.setattr(crew, "_LINGERING", nanoseconds)
        monkeypatch.setattr(crew, "_SITTING", nanoseconds if sitting is None else sitting)
        text = support.support_ir.__wrapped__()
        monkeypatch.setattr(support, "support_ir", lambda: text)

    return stay


@pytest.mark.parametrize("linger", [1_000, 1_000_000_000])
def test_a_helper_whose_call_has_ended_is_there_for_the_next_one(
    lingering: Callable[..., None], linger: int
) -> None:
    """At once, or after one that came too late for a helper that did not sit for long."""
    lingering(linger, 1_000_000_000)
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    pool, deadline = Pool(2, start=start), time.monotonic() + 60
    asked = -1
    while asked != len(threads):  # until somebody sits, the pool is asked
        assert time.monotonic() < deadline
        asked = len(threads)
        counts, _ = run(pool, [(64, 4)], 2)
        assert (counts[0] == 1).all()
    for thread in threads:  # who waits in vain goes
        thread.join(60)
        assert not thread.is_alive()
    run(pool, [(64, 4)], 2)
    assert len(threads) == asked + 1


def test_a_child_does_not_take_its_parents_helpers(lingering: Callable[..., None]) -> None:
    lingering(1_000_000_000)
    threads = list[threading.Thread]()

    def start(task: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=task))
        threads[-1].start()

    pool, asked = Pool(2, start=start), -1
    while asked != len(threads):
        asked = len(threads)
        run(pool, [(64, 4)], 2)
    time.sleep(0.01)  # the helper sits again
    with warnings.catch_warnings():  # JAX's, of threads that a child has not
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        alone = Pool(2)
        counts, _ = run(alone, [(64, 4)], 2)
        os._exit(0 if len(alone.pending) == 1 and (counts[0] == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("nanoseconds", [500, 5_000, 1_000_000])
def test_helpers_go_from_call_to_call(lingering: Callable[..., None], nanoseconds: int) -> None:
    """Several callers, who take helpers from the same seats while these rise."""
    lingering(nanoseconds)
    helpers, wrong = list[threading.Thread](), list[int]()

    def start(task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task)
        thread.start()
        helpers.append(thread)

    def calls(seed: int) -> None:
        pool = Pool(3, start=start)
        for turn in range(150):
            counts, owners = run(pool, [((turn * seed) % 50 + 2, 1)], 3)
            known = {owner for each in owners for owner in each} <= {-1, 0, 128, 256}
            if not known or not all((count == 1).all() for count in counts):
                wrong.append(turn)

    callers = [threading.Thread(target=calls, args=(seed,)) for seed in (3, 5, 7)]
    for caller in callers:
        caller.start()
    for thread in callers:
        thread.join(120)
        assert not thread.is_alive()
    for thread in helpers:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_a_crew_that_nobody_joins() -> None:
    pool, crew = Pool(4, refuse=True), Crew()
    for _ in range(3):
        counts, _ = run(pool, [(64, 4)], 4, crew.at)
        assert (counts[0] == 1).all()
    assert pool.errors_destroyed == 9
    crew.dismiss()


def test_no_more_helpers_than_chunks() -> None:
    pool = Pool(16)
    run(pool, [(8, 4)], 16)
    assert len(pool.pending) == 1
    run_all(pool.pending)


def test_refused_tasks_are_done_by_the_caller() -> None:
    pool = Pool(4, refuse=True)
    counts, _ = run(pool, [(64, 4)], 4)
    assert (counts[0] == 1).all()
    assert pool.errors_destroyed == 3


def test_workers() -> None:
    workers = function("sj_workers", ctypes.c_int64, ctypes.c_void_p)
    assert workers(Pool(6).frame) == 6
    assert workers(Pool(0).frame) == 1
    broken = Pool(6, no_pool=True)
    assert workers(broken.frame) == 1
    assert broken.errors_destroyed == 1


def test_arenas_are_reused_and_grow() -> None:
    claim = function("sj_arena_claim", ctypes.c_void_p, ctypes.c_int64)
    release = function("sj_arena_release", None, ctypes.c_void_p)
    trim = function("sj_arena_trim", None)
    trim()
    first, second = claim(1000), claim(1000)
    assert first != second
    assert first % 64 == 0
    assert second % 64 == 0
    release(first)
    release(second)
    assert claim(1000) == first
    assert claim(900) == second
    release(first)
    release(second)
    grown = claim(100_000)
    ctypes.memset(grown, 1, 100_000)
    release(grown)
    assert claim(10) == grown
    release(grown)
    big = claim(5 << 20)
    ctypes.memset(big, 1, 5 << 20)
    assert big % 64 == 0
    release(big)
    blocks = [claim(64) for _ in range(100)]  # more than there are slots
    assert len(set(blocks)) == 100
    for block in blocks:
        release(block)
    trim()


def test_an_arena_that_cannot_be_had_is_null() -> None:
    claim = function("sj_arena_claim", ctypes.c_void_p, ctypes.c_int64)
    assert claim(1 << 60) is None


def test_advice_is_for_whole_huge_pages() -> None:
    advise = function("sj_advise", None, ctypes.c_void_p, ctypes.c_int64)
    data = np.zeros(9 << 20, np.uint8)
    data[:] = 7
    advise(data.ctypes.data + 5, data.nbytes - 5)
    advise(data.ctypes.data, 100)  # holds no whole huge page
    assert (data == 7).all()


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"])
def test_other_architectures_compile_it(triple: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    host = replace(Target.host(), triple=triple)
    monkeypatch.setattr(Target, "host", lambda: host)
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic")
    for text in (support.support_ir.__wrapped__(), entry.entry_ir()):
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple, module.data_layout = triple, str(machine.target_data)
        assembly = machine.emit_assembly(module)
        assert ".globl" in assembly
        if "sj_run:" in assembly:
            assert ("\tyield" if "aarch64" in triple else "\tpause") in assembly


def test_text_is_stable() -> None:
    assert support.support_ir.__wrapped__() == support.support_ir()
