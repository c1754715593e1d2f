"""What this machine can do, measured: multiply-add rate and memory bandwidth.

Input: nothing but the machine. Output: `Peaks`. Invariant: both figures are the best of several
runs of two small kernels written for nothing else, so that a floor computed from them is a floor:
f32 fused multiply-adds on independent registers, and a triad `a = b + s*c` over arrays far larger
than any cache, with streaming stores (12 bytes move for an element, no line is read to be
overwritten).
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from stagejit.base.machine import floor_seconds
from stagejit.base.records import record
from stagejit.base.threads.locks import new_lock
from stagejit.codegen.target import Target
from stagejit.runtime.objects.engine import engine
from stagejit.schedule.memory.host import new_memory

_ACCUMULATORS = 12  # latency 4 on two pipes needs 8; 12 and two constants still fit 16 registers
_TRIAD_ELEMENTS = 16 << 20
_PAGE = 4096
_MEASUREMENTS = 5  # of a process
_APART_SECONDS = 5.0
_AGAIN_SECONDS = 0.3


@record
class Peaks:
    """Of all cores that this process may use, and of one. Rates in 1e9 a second."""

    cores: int
    gflops: float
    gflops_one_core: float
    gbytes: float
    gbytes_one_core: float
    vector_bits: int

    def floor_seconds(self, flops: int, nbytes: int) -> float:
        """The least time for so much work, unless the data stays in a cache."""
        return floor_seconds(flops, nbytes, self.gflops * 1e9, self.gbytes * 1e9)

    def or_better(self, other: Peaks) -> Peaks:
        """The larger of each rate, of two measurements of one machine."""
        rates = ("gflops", "gflops_one_core", "gbytes", "gbytes_one_core")
        return replace(self, **{n: max(getattr(self, n), getattr(other, n)) for n in rates})


def measure(seconds: float = 1.0) -> Peaks:
    """Runs both kernels on one core and on all, for about `seconds` altogether."""
    kernels = _kernels()
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        flops = {n: _fma_rate(kernels, pool, n, seconds / 4) for n in {1, cores}}
        nbytes = {n: _triad_rate(kernels, pool, n, seconds / 4) for n in {1, cores}}
    return Peaks(
        cores,
        flops[cores] / 1e9,
        flops[1] / 1e9,
        # A single core can saturate the memory of a small machine.
        max(nbytes.values()) / 1e9,
        nbytes[1] / 1e9,
        kernels.lanes * 32,
    )


def of_this_machine() -> Peaks:
    """The best of all measurements of the process: a moment in which others use the machine tells
    too little of it. Whoever asks first measures for about a second; who asks later measures for
    a fraction of one, up to `_MEASUREMENTS` times and not in the same moment as before."""
    return _known.peaks()


class _Known:
    """What this process has measured up to now."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.best: Peaks | None = None
        self.count, self.at = 0, 0.0

    def peaks(self) -> Peaks:
        with self.lock:
            if self.best is None:
                self._add(measure())
            elif self.count < _MEASUREMENTS and time.monotonic() - self.at > _APART_SECONDS:
                self._add(measure(_AGAIN_SECONDS))
            assert self.best is not None
            return self.best

    def _add(self, found: Peaks) -> None:
        self.best = found if self.best is None else self.best.or_better(found)
        self.count, self.at = self.count + 1, time.monotonic()


_known = _Known()


@record
class _Kernels:
    lanes: int
    fma: Callable[[int, int], None]  # (iterations, address of two vectors: factor, result)
    triad: Callable[[int, int, int, int], None]  # (a, b, c, elements)


def _fma_rate(kernels: _Kernels, pool: ThreadPoolExecutor, threads: int, seconds: float) -> float:
    iterations = 200_000
    flops = 2 * _ACCUMULATORS * kernels.lanes * iterations * threads
    sinks = [_aligned(2 * kernels.lanes) for _ in range(threads)]
    return flops / _best(
        pool,
        [functools.partial(kernels.fma, iterations, sink.ctypes.data) for sink in sinks],
        seconds,
    )


def _triad_rate(kernels: _Kernels, pool: ThreadPoolExecutor, threads: int, seconds: float) -> float:
    share = _TRIAD_ELEMENTS // threads // (_PAGE // 4) * (_PAGE // 4)
    a, b, c = (_aligned(_TRIAD_ELEMENTS) for _ in range(3))
    jobs = [
        functools.partial(
            kernels.triad,
            a[i * share :].ctypes.data,
            b[i * share :].ctypes.data,
            c[i * share :].ctypes.data,
            share,
        )
        for i in range(threads)
    ]
    return 3 * 4 * share * threads / _best(pool, jobs, seconds)


def _best(pool: ThreadPoolExecutor, jobs: Sequence[Callable[[], None]], seconds: float) -> float:
    """The shortest time in which all jobs ran side by side; ctypes calls release the GIL."""
    best, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline or best == float("inf"):
        started = time.perf_counter()
        for future in [pool.submit(job) for job in jobs]:
            future.result()
        best = min(best, time.perf_counter() - started)
    return best


def _aligned(elements: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Ones in f32 that start on a page."""
    made = new_memory(4 * elements, _PAGE).view(np.float32)
    made[...] = 1
    return made


@functools.cache
def _kernels() -> _Kernels:
    host = Target.host()
    lanes = 16 if host.has_avx512 else 8 if host.has("avx2") else 4
    found = engine().load({"fma": _module(lanes)})
    fma = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
    triad = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    return _Kernels(lanes, fma(found["fma"]), triad(found["triad"]))


def _module(lanes: int) -> str:
    vector, numbers = f"<{lanes} x float>", range(_ACCUMULATORS)
    phis = "\n".join(f"  %a{i} = phi {vector} [%x, %entry], [%b{i}, %loop]" for i in numbers)
    fmas = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{i}, {vector} %x, {vector} %x)"
        for i in numbers
    )
    sums = "\n".join(
        f"  %s{i + 1} = fadd {vector} {f'%s{i}' if i else '%x'}, %b{i}" for i in numbers
    )
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})

define void @fma(i64 %n, ptr %sink) {{
entry:
  %x = load {vector}, ptr %sink, align 64
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{fmas}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{sums}
  %result = getelementptr {vector}, ptr %sink, i64 1
  store volatile {vector} %s{_ACCUMULATORS}, ptr %result, align 64
  ret void
}}

define void @triad(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %pb = getelementptr float, ptr %b, i64 %i
  %pc = getelementptr float, ptr %c, i64 %i
  %pa = getelementptr float, ptr %a, i64 %i
  %vb = load {vector}, ptr %pb, align {lanes * 4}
  %vc = load {vector}, ptr %pc, align {lanes * 4}
  %scaled = fadd {vector} %vc, %vc
  %sum = fadd {vector} %vb, %scaled
  store {vector} %sum, ptr %pa, align {lanes * 4}, !nontemporal !0
  %next = add i64 %i, {lanes}
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  fence seq_cst
  ret void
}}

!0 = !{{i32 1}}
"""
