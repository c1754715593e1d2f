"""FFI targets that begin and end a snapshot of all weights, as LLVM IR: see `cpu/snapshots.py`.

Input: nothing but XLA's FFI. Output: addresses of

    ptr  sj_snapshot_begin(cf), sj_snapshot_end(cf)   what is registered with XLA
    void sj_give_back(ticket, call)                   a ticket, if a call still has it
    sj_snapshots                                      the variable
"""

from __future__ import annotations

import functools

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.cpu.native import entry
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.object_cache import ObjectCache

BEGIN, END, VARIABLE = "sj_snapshot_begin", "sj_snapshot_end", "sj_snapshots"
GIVE_BACK = "sj_give_back"


def addresses(cache: ObjectCache | None = None) -> dict[str, int]:
    """Of all functions, and of the variable."""
    return engine().load({BEGIN: snapshots_ir()}, cache=cache)


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
  br label %look
look:
  %tried = phi i64 [0, %work], [%tried.next, %look]
  %place = add i64 %number, %tried
  %at = urem i64 %place, {snapshots.TICKETS}
  %nbytes = mul i64 %at, {snapshots.TICKET_NBYTES}
  %offset = add i64 %nbytes, {snapshots.FIRST}
  %ticket = getelementptr i8, ptr @sj_snapshots, i64 %offset
  %claim = cmpxchg ptr %ticket, i64 0, i64 %number seq_cst seq_cst
  %free = extractvalue {{ i64, i1 }} %claim, 1
  %tried.next = add i64 %tried, 1
  %last = icmp ugt i64 %tried.next, {snapshots.TICKETS}
  %enough = or i1 %free, %last
  br i1 %enough, label %take, label %look
take:                                    ; where none is free, that of the first place again
  store atomic i64 %number, ptr %ticket seq_cst, align 8
{abi.store("i64", "%moment", "%ticket", snapshots.MOMENT, "%ticket.moment")}\
{abi.store("i64", "%moment", "%given", 0, "%given.moment")}\
{abi.store("ptr", "%ticket", "%given", snapshots.TICKET, "%given.ticket")}\
{abi.store("i64", "%number", "%given", snapshots.NUMBER, "%given.number")}\
  %after.us = atomicrmw sub ptr %taking, i64 1 seq_cst
  ret ptr null
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
    variable = f"@sj_snapshots = global [{snapshots.NBYTES} x i8] zeroinitializer, align 64\n"
    return variable + give_back + _target_ir(BEGIN, begin) + _target_ir(END, end)


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
