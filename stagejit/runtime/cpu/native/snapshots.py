"""Two FFI targets that begin and end a snapshot of all weights, as LLVM IR: see `cpu/snapshots.py`.

Input: nothing but XLA's FFI. Output: addresses of

    ptr  sj_snapshot_begin(cf), sj_snapshot_end(cf)   what is registered with XLA
    sj_snapshots                                      the variable
"""

from __future__ import annotations

import functools

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import entry
from stagejit.runtime.cpu.snapshots import NBYTES, PINS, TAKING
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.object_cache import ObjectCache

BEGIN, END, VARIABLE = "sj_snapshot_begin", "sj_snapshot_end", "sj_snapshots"


def addresses(cache: ObjectCache | None = None) -> dict[str, int]:
    """Of both functions, and of the variable."""
    return engine().load({BEGIN: snapshots_ir()}, cache=cache)


@functools.cache
def snapshots_ir() -> str:
    """The module's text; the same on every run of a platform."""
    begin = f"""\
{abi.load("%results", "ptr", "%cf", abi.FRAME_RESULTS)}{abi.load("%result", "ptr", "%results", 0)}\
{abi.load("%given", "ptr", "%result", abi.BUFFER_DATA)}\
{abi.field("%taking", "@sj_snapshots", TAKING)}\
  %before.us = atomicrmw add ptr %taking, i64 1 seq_cst
  %record = load atomic ptr, ptr @sj_snapshots seq_cst, align 8
{abi.field("%pins", "%record", PINS)}\
  %others = atomicrmw add ptr %pins, i64 1 seq_cst
  %after.us = atomicrmw sub ptr %taking, i64 1 seq_cst
  store ptr %record, ptr %given
  ret ptr null
"""
    end = f"""\
{abi.load("%args", "ptr", "%cf", abi.FRAME_ARGS)}{abi.load("%arg", "ptr", "%args", 0)}\
{abi.load("%taken", "ptr", "%arg", abi.BUFFER_DATA)}\
  %record = load ptr, ptr %taken
{abi.field("%pins", "%record", PINS)}\
  %others = atomicrmw sub ptr %pins, i64 1 seq_cst
  ret ptr null
"""
    variable = f"@sj_snapshots = global [{NBYTES} x i8] zeroinitializer, align 64\n"
    return variable + _target_ir(BEGIN, begin) + _target_ir(END, end)


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
