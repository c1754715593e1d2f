"""FFI targets that begin and end a snapshot of all weights, as LLVM IR: see `cpu/snapshots.py`.

Input: nothing but XLA's FFI. Output: addresses of

    ptr  sj_snapshot_begin(cf), sj_snapshot_end(cf)   what is registered with XLA
    void sj_give_back(ticket, call)                   a ticket, if a call still has it
    sj_snapshots                                      the variable
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.cpu.native import entry
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.linker import libc_address
from stagejit.runtime.objects.object_cache import ObjectCache

BEGIN, END, VARIABLE = "sj_snapshot_begin", "sj_snapshot_end", "sj_snapshots"
GIVE_BACK = "sj_give_back"
_THREAD = "PyGILState_GetThisThreadState"  # null for one of XLA's
_NO_MEMORY = "stagejit: no memory for a snapshot of weights"


def addresses(support: Mapping[str, int], cache: ObjectCache | None = None) -> dict[str, int]:
    """Of all functions, and of the variable."""
    imports = {
        "calloc": libc_address("calloc"),
        "sj_error": support["sj_error"],
        _THREAD: ctypes.cast(getattr(ctypes.pythonapi, _THREAD), ctypes.c_void_p).value or 0,
    }
    return engine().load({BEGIN: snapshots_ir()}, imports, cache=cache)


def given_back_ir(snapshot: str) -> str:
    """Instructions: the call that has a snapshot has ended, or failed."""
    return f"""\
{abi.load("%ticket", "ptr", snapshot, snapshots.TICKET)}\
{abi.load("%own.call", "i64", snapshot, snapshots.NUMBER)}\
  %was.own = cmpxchg ptr %ticket, i64 %own.call, i64 0 seq_cst seq_cst
"""


@functools.cache
def snapshots_ir() -> str:
    """The module's text; the same on every run of a platform."""
    begin = f"""\
{abi.load("%results", "ptr", "%cf", abi.FRAME_RESULTS)}{abi.load("%result", "ptr", "%results", 0)}\
{abi.load("%given", "ptr", "%result", abi.BUFFER_DATA)}\
{abi.field("%taking", "@sj_snapshots", snapshots.TAKING)}\
  %before.us = atomicrmw add ptr %taking, i64 1 seq_cst
  %moment = load atomic i64, ptr @sj_snapshots seq_cst, align 8
{abi.field("%calls", "@sj_snapshots", snapshots.CALLS)}\
  %others = atomicrmw add ptr %calls, i64 1 seq_cst
  %number = add i64 %others, 1
{abi.field("%list", "@sj_snapshots", snapshots.TICKETS)}\
  %newest = load atomic ptr, ptr %list seq_cst, align 8
  br label %choose
choose:
  %free = phi ptr [%newest, %work], [%free.next, %taken]
  %free.end = icmp eq ptr %free, null
  br i1 %free.end, label %make, label %claim
claim:
  %claimed = cmpxchg ptr %free, i64 0, i64 {snapshots.TAKEN} seq_cst seq_cst
  %is.ours = extractvalue {{ i64, i1 }} %claimed, 1
  br i1 %is.ours, label %take, label %taken
taken:
{abi.load("%free.next", "ptr", "%free", snapshots.NEXT)}\
  br label %choose
make:
  %made = call ptr @calloc(i64 1, i64 {snapshots.TICKET_NBYTES})
  %refused = icmp eq ptr %made, null
  br i1 %refused, label %no.memory, label %push
push:
  store i64 {snapshots.TAKEN}, ptr %made
  %first = load atomic ptr, ptr %list seq_cst, align 8
{abi.store("ptr", "%first", "%made", snapshots.NEXT, "%made.next")}\
  %pushed = cmpxchg ptr %list, ptr %first, ptr %made seq_cst seq_cst
  %is.first = extractvalue {{ ptr, i1 }} %pushed, 1
  br i1 %is.first, label %take, label %push
take:
  %ticket = phi ptr [%free, %claim], [%made, %push]
{abi.store("i64", "%moment", "%ticket", snapshots.MOMENT, "%ticket.moment")}\
{abi.store("i64", "0", "%ticket", snapshots.FRAME, "%ticket.frame")}\
{abi.load("%note", "ptr", "@sj_snapshots", snapshots.NOTE)}\
  %thread = call ptr @{_THREAD}()
  %is.xlas = icmp eq ptr %thread, null
  br i1 %is.xlas, label %give, label %waits
waits:                                   ; the caller, in this thread
  call void %note(ptr %ticket)
  br label %give
give:
  store atomic i64 %number, ptr %ticket seq_cst, align 8
{abi.store("i64", "%moment", "%given", 0, "%given.moment")}\
{abi.store("ptr", "%ticket", "%given", snapshots.TICKET, "%given.ticket")}\
{abi.store("i64", "%number", "%given", snapshots.NUMBER, "%given.number")}\
  %after.us = atomicrmw sub ptr %taking, i64 1 seq_cst
  ret ptr null
no.memory:
  %after.none = atomicrmw sub ptr %taking, i64 1 seq_cst
  %error = call ptr @sj_error(ptr %cf, i32 {abi.RESOURCE_EXHAUSTED}, ptr @sj.none)
  ret ptr %error
"""
    end = f"""\
{abi.load("%args", "ptr", "%cf", abi.FRAME_ARGS)}{abi.load("%arg", "ptr", "%args", 0)}\
{abi.load("%taken", "ptr", "%arg", abi.BUFFER_DATA)}\
{given_back_ir("%taken")}\
  ret ptr null
"""
    give_back = f"""
define void @{GIVE_BACK}(ptr %ticket, i64 %call) nounwind {{
entry:
  %was.own = cmpxchg ptr %ticket, i64 %call, i64 0 seq_cst seq_cst
  ret void
}}
"""
    variables = f"""
declare ptr @calloc(i64, i64)
declare ptr @sj_error(ptr, i32, ptr)
declare ptr @{_THREAD}()
@sj_snapshots = global [{snapshots.NBYTES} x i8] zeroinitializer, align 64
@sj.none = private constant [{len(_NO_MEMORY) + 1} x i8] c"{_NO_MEMORY}\\00"
"""
    return variables + give_back + _target_ir(BEGIN, begin) + _target_ir(END, end)


def _target_ir(name: str, work: str) -> str:
    stateless = "  %state.type = add i64 0, 0\n"
    return f"""
define ptr @{name}(ptr %cf) nounwind {{
entry:
{entry.query_ir(stateless)}\
work:
{work}\
}}
"""
