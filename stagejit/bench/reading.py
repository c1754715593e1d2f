"""How long all cores take to read so many bytes once: what no call that reads its weights can beat.

Input: bytes. Output: a `Reader`, which is timed among the contenders, since what memory gives
changes from minute to minute where others have a part of it. Invariant: each byte is loaded once,
by one core, in four streams of neighbouring lines, as fast as we know how to.

The triad of `peaks.py` is no such bound: it writes a third of its bytes, by a way of their own (on
two cores of Zen 4 the triad moves 45 GB/s while memory gives 35 to read).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stagejit.codegen.target import Target
from stagejit.runtime.cpu.huge_pages import put_on_huge_pages
from stagejit.runtime.objects.engine import engine

_STREAMS = 4
_UNROLLED = 2  # vectors of each stream in a turn
_PAGE = 4096


class Reader:
    """A call reads `nbytes`, up to some pages, of memory that nobody else has."""

    def __init__(self, nbytes: int) -> None:
        cores = len(os.sched_getaffinity(0))
        each = max(nbytes // (cores * _STREAMS * _PAGE), 1) * _PAGE
        self.nbytes = each * _STREAMS * cores
        self._memory = np.ones(self.nbytes + _PAGE, np.uint8)
        put_on_huge_pages([self._memory])
        start = -(-self._memory.ctypes.data // _PAGE) * _PAGE
        self._pool = ThreadPoolExecutor(max(cores - 1, 1))
        self._sinks = np.zeros((cores, 64), np.float32)
        self._jobs = [
            functools.partial(
                _kernel(), start + core * each * _STREAMS, each, self._sinks[core].ctypes.data
            )
            for core in range(cores)
        ]

    def __call__(self) -> None:
        mine, *others = self._jobs
        running = [self._pool.submit(job) for job in others]
        mine()
        for job in running:
            job.result()


def reader_of(nbytes: int) -> Reader | None:
    """None of what the caches of cores hold from call to call. One that cores share may be shared
    with others than we know of: a machine of two cores was told of 480 MiB."""
    host = Target.host()
    return Reader(nbytes) if nbytes > 2 * host.cores * host.l2_nbytes else None


@functools.cache
def _kernel() -> Callable[[int, int, int], Any]:
    """(address, bytes of a stream, where the sums go). ctypes lets others run meanwhile."""
    host = Target.host()
    lanes = 16 if host.has_avx512 else 8 if host.has("avx2") else 4
    found = engine().load({"read": _module(lanes)})
    kernel: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    read: Callable[[int, int, int], Any] = kernel(found["read"])
    return read


def _module(lanes: int) -> str:
    vector, nbytes = f"<{lanes} x float>", 4 * lanes
    loads = [(stream, at) for at in range(_UNROLLED) for stream in range(_STREAMS)]
    numbers = range(len(loads))
    phis = "\n".join(
        f"  %a{n} = phi {vector} [zeroinitializer, %entry], [%b{n}, %loop]" for n in numbers
    )
    starts = "\n".join(
        f"  %n{s} = mul i64 %nbytes, {s}\n  %s{s} = getelementptr i8, ptr %memory, i64 %n{s}"
        for s in range(_STREAMS)
    )
    adds = "\n".join(
        f"  %o{n} = add i64 %i, {at * nbytes}\n"
        f"  %p{n} = getelementptr i8, ptr %s{stream}, i64 %o{n}\n"
        f"  %v{n} = load {vector}, ptr %p{n}, align {nbytes}\n"
        f"  %b{n} = fadd {vector} %a{n}, %v{n}"
        for n, (stream, at) in enumerate(loads)
    )
    sums = "\n".join(
        f"  %t{n + 1} = fadd {vector} {f'%t{n}' if n else 'zeroinitializer'}, %b{n}"
        for n in numbers
    )
    return f"""
define void @read(ptr %memory, i64 %nbytes, ptr %sink) {{
entry:
{starts}
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{adds}
  %next = add i64 %i, {_UNROLLED * nbytes}
  %more = icmp slt i64 %next, %nbytes
  br i1 %more, label %loop, label %done
done:
{sums}
  store volatile {vector} %t{len(loads)}, ptr %sink, align 4
  ret void
}}
"""
