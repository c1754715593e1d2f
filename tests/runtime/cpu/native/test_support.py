"""The run-time support functions, called through ctypes with a frame and a pool of our own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from stagejit.codegen.target import Target
from stagejit.runtime.cpu.native import entry, support
from tests.runtime.cpu.native.pools import Pool, function, run, run_all


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
