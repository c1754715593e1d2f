"""A call frame and a pool of our own, for the run-time support functions through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import support
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


class Crew:
    """A pointer to the state that helpers share, as a call has it on its stack."""

    def __init__(self) -> None:
        self._state = ctypes.c_void_p()
        self.at = ctypes.addressof(self._state)

    def dismiss(self) -> None:
        function("sj_dismiss", None, ctypes.c_void_p)(self.at)
