"""The run-time support functions of all programs, as LLVM IR compiled once per process.

Input: nothing but the platform. Output: addresses of

    i64  sj_workers(cf)                       threads of XLA's intra-op pool (1 without a pool)
    void sj_pfor(cf, jobs, bufs, nchunks, workers, scratch, scratch_stride, crew)
    void sj_dismiss(crew)                     the crew's helpers go
    void sj_forget_helpers()                  nobody waits for a call any more: after a fork
    ptr  sj_arena_claim(nbytes)               64-byte aligned memory, or null
    void sj_arena_release(ptr)
    void sj_arena_trim()                      give idle arenas back to the system
    void sj_advise(ptr, nbytes)               ask for huge pages before the first touch (`arenas`)
    void sj_settle(ptr, nbytes, began)        huge pages for what calls update in place (`held`)
    ptr  sj_error(cf, code, message)          an XLA_FFI_Error
    ptr  sj_call(cf, words, part)             what runs a host program: see `interpreter.py`

and, in a module of its own that is compiled when somebody asks for times, of

    ptr  sj_timed_call(cf, words, record)     the same with stamps: see `stamps.py`
    i64  sj_ticks()                           what its times are counted in
"""

from __future__ import annotations

import ctypes
import functools
import os
import re

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import interpreter, stamps
from stagejit.runtime.cpu.native.arenas import arena_ir
from stagejit.runtime.cpu.native.crew import crew_ir
from stagejit.runtime.cpu.native.held import settle_ir
from stagejit.runtime.cpu.native.parallel_loop import pfor_ir, run_ir
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.linker import libc_address
from stagejit.runtime.objects.object_cache import ObjectCache

_LIBC = (
    "aligned_alloc", "free", "sched_yield", "clock_gettime", "memcpy", "memset", "strlen",
    "madvise",
)  # fmt: skip


def addresses(cache: ObjectCache | None = None) -> dict[str, int]:
    """Address of each support function, and of the C library's functions that they use."""
    libc = {name: libc_address(name) for name in _LIBC}
    found = engine().load({"sj_pfor": support_ir()}, libc, cache=cache)
    _forget_after_fork(found["sj_forget_helpers"])
    return {**found, **libc}


@functools.cache
def _forget_after_fork(address: int) -> None:
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(address))


@functools.cache
def support_ir() -> str:
    """The module's text; the same on every run of a platform."""
    parts = _pool_ir(), *_variant_ir(stamps.plain), arena_ir(), settle_ir(), _error_ir()
    return _DECLARATIONS + "".join(parts)


def _variant_ir(timed: stamps.Timed) -> tuple[str, ...]:
    """What is another one where times are taken."""
    return run_ir(timed), crew_ir(), pfor_ir(timed), interpreter.run_ir(timed)


_SHARED_BY_VARIANTS = """declare ptr @sj_arena_claim(i64)
declare void @sj_arena_release(ptr)
declare void @sj_advise(ptr, i64)
declare void @sj_settle(ptr, i64, i64)
declare ptr @sj_error(ptr, i32, ptr)
"""


@functools.cache
def timed_addresses(cache: ObjectCache | None = None) -> dict[str, int]:
    """Addresses of the timed variant's functions, which is compiled here."""
    known = addresses(cache)
    ours = re.findall(r"@(\w+)\(", _SHARED_BY_VARIANTS)
    imports = {name: known[name] for name in (*ours, *_LIBC)} | stamps.imports()
    imports["sj_plain_call"] = known["sj_call"]
    text = timed_ir(stamps.has_cycle_counter())
    found = engine().load({"sj_timed_call": text}, imports, cache=cache)
    _forget_after_fork(found["sj_forget_helpers"])
    return {**found, **stamps.imports()}


@functools.cache
def timed_ir(counter: bool) -> str:
    """The text of the timed variant's module. counter: see `stamps.stamps_ir`."""
    parts = _pool_ir(), *_variant_ir(stamps.timed), stamps.stamps_ir(counter)
    return _DECLARATIONS + _SHARED_BY_VARIANTS + stamps.DECLARATIONS + "".join(parts)


_DECLARATIONS = """declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @madvise(ptr, i64, i32)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare i64 @strlen(ptr)
"""


def _pool_ir() -> str:
    destroy_args = [(0, "i64", "24"), (8, "ptr", "null"), (16, "ptr", "%error")]
    count_args = [
        (0, "i64", "32"),
        (8, "ptr", "null"),
        (16, "ptr", "%ctx"),
        (24, "ptr", "%threads"),
    ]
    return f"""
define internal void @sj_drop_error(ptr %cf, ptr %error) nounwind {{
  %args = alloca [3 x i64], align 16
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}\
{abi.load("%destroy", "ptr", "%api", abi.API_ERROR_DESTROY)}\
{abi.fill("%args", destroy_args)}\
  call void %destroy(ptr %args)
  ret void
}}

define i64 @sj_workers(ptr %cf) nounwind {{
entry:
  %args = alloca [4 x i64], align 16
  %threads = alloca i64
  store i64 1, ptr %threads
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}\
{abi.load("%ctx", "ptr", "%cf", abi.FRAME_CONTEXT)}\
{abi.load("%count", "ptr", "%api", abi.API_POOL_NUM_THREADS)}\
{abi.fill("%args", count_args)}\
  %error = call ptr %count(ptr %args)
  %ok = icmp eq ptr %error, null
  br i1 %ok, label %known, label %unknown
unknown:
  call void @sj_drop_error(ptr %cf, ptr %error)
  ret i64 1
known:
  %n = load i64, ptr %threads
  %some = icmp sgt i64 %n, 1
  %workers = select i1 %some, i64 %n, i64 1
  ret i64 %workers
}}
"""


def _error_ir() -> str:
    args = [(0, "i64", "28"), (8, "ptr", "null"), (16, "ptr", "%message"), (24, "i32", "%code")]
    return f"""
define ptr @sj_error(ptr %cf, i32 %code, ptr %message) nounwind {{
  %args = alloca [4 x i64], align 16
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}\
{abi.load("%create", "ptr", "%api", abi.API_ERROR_CREATE)}\
{abi.fill("%args", args)}\
  %error = call ptr %create(ptr %args)
  ret ptr %error
}}
"""
