"""Times of what a host program does, as LLVM IR: what is in the timed variant of the interpreter.

Input: nothing but the platform. Output: functions that the timed variant calls; what they write
lies as `sheets.py` says. Invariants: nothing here is in the other variant;
only one thread writes a part at any time; a call writes nothing after it has given its sheet back.

Note [Chains of stamps]: the end of a step is the begin of the next one, so there is one stamp for
each; what is between the steps (addresses, jumps of loops) belongs to the step behind it. What
comes before the first step, and after the last, is the call's own.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.target import Target
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import sheets, slots
from stagejit.runtime.cpu.native.entry import ACTIVE, LOG
from stagejit.runtime.objects.linker import libc_address

# What stands in texts of both variants around what only the timed one has.
Timed = Callable[[str], str]


def plain(text: str) -> str:
    """Without what only the timed variant has."""
    return ""


def timed(text: str) -> str:
    """With it."""
    return text


_LIBC = ("calloc", "free", "pthread_self")


def imports() -> dict[str, int]:
    """Functions of the C library that are called."""
    return {name: libc_address(name) for name in _LIBC}


def has_cycle_counter() -> bool:
    """Whether the processor counts time, whatever its frequency is, alike on all cores."""
    if not Target.host().triple.startswith("x86_64"):
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "").split()
    except OSError:
        return False
    return {"constant_tsc", "nonstop_tsc"} <= set(flags)


_COUNTER = """
declare i64 @llvm.readcyclecounter()
define i64 @sj_ticks() nounwind alwaysinline {
  %ticks = call i64 @llvm.readcyclecounter()
  ret i64 %ticks
}
"""
_CLOCK = """
define i64 @sj_ticks() nounwind {
  %ticks = call i64 @sj_nanoseconds()
  ret i64 %ticks
}
"""

DECLARATIONS = """declare ptr @calloc(i64, i64)
declare i64 @pthread_self()
declare ptr @sj_plain_call(ptr, ptr, ptr)
"""


def stamps_ir(counter: bool) -> str:
    """All functions. counter: whether to read the processor's, and not the system's clock."""
    clock = _COUNTER if counter else _CLOCK
    return clock + _ADD + _STAMP + _REGION + _SHEETS + _RUN_ID + _timed_call_ir()


def _add(name: str, base: str, offset: int, by: str) -> str:
    """Adds to a word of a slot."""
    return (
        abi.load(f"%{name}.old", "i64", base, offset)
        + f"  %{name}.new = add i64 %{name}.old, {by}\n"
        + f"  store i64 %{name}.new, ptr %{name}.old.p\n"
    )


# The slot of what has its words at a place.
_SLOT_OF = f"""\
{abi.load("%words", "ptr", "%part", sheets.WORDS)}\
  %from = ptrtoint ptr %words to i64
  %to = ptrtoint ptr %at to i64
  %place = sub i64 %to, %from
  %slot.number = udiv i64 %place, {sheets.WORDS_OF_SLOT_NBYTES}
  %slot.offset = mul i64 %slot.number, {sheets.SLOT_NBYTES}
{abi.field("%slots", "%part", sheets.PART_SLOTS)}\
  %slot = getelementptr i8, ptr %slots, i64 %slot.offset
"""
# One more execution, from begin to end.
_COUNT_IN = f"""\
  %ticks = sub i64 %end, %begin
{_add("count", "%slot", sheets.COUNT, "1")}{_add("total", "%slot", sheets.TOTAL, "%ticks")}\
{abi.load("%least", "i64", "%slot", sheets.LEAST)}{abi.load("%most", "i64", "%slot", sheets.MOST)}\
  %first = icmp eq i64 %count.old, 0
  %less = icmp ult i64 %ticks, %least
  %is.least = or i1 %first, %less
  %least.new = select i1 %is.least, i64 %ticks, i64 %least
  store i64 %least.new, ptr %least.p
  %is.most = icmp ugt i64 %ticks, %most
  %most.new = select i1 %is.most, i64 %ticks, i64 %most
  store i64 %most.new, ptr %most.p
"""
# Into the ring of events, in which the oldest are lost.
_EVENT_IN = f"""\
{abi.load("%room", "i64", "%part", sheets.ROOM)}\
{abi.load("%events", "ptr", "%part", sheets.EVENTS)}\
{abi.load("%run", "i64", "%part", sheets.RUN)}{abi.load("%thread", "i64", "%part", sheets.THREAD)}\
{_add("cursor", "%part", sheets.CURSOR, "1")}\
  %mask = sub i64 %room, 1
  %event.number = and i64 %cursor.old, %mask
  %event.offset = mul i64 %event.number, {sheets.EVENT_NBYTES}
  %event = getelementptr i8, ptr %events, i64 %event.offset
{abi.store("i64", "%begin", "%event", 0, "%e0")}{abi.store("i64", "%end", "%event", 8, "%e1")}\
{abi.store("i64", "%thread", "%event", 16, "%e2")}{abi.store("i64", "%place", "%event", 24, "%e3")}\
{abi.store("i64", "%run", "%event", 32, "%e4")}\
"""

_ADD = f"""
define internal ptr @sj_slot(ptr %part, ptr %at) nounwind {{
{_SLOT_OF}\
  ret ptr %slot
}}

define internal void @sj_count(ptr %slot, i64 %begin, i64 %end) nounwind {{
{_COUNT_IN}\
  ret void
}}

define internal void @sj_event(ptr %part, ptr %at, i64 %begin, i64 %end) nounwind {{
{_SLOT_OF}{_EVENT_IN}\
  ret void
}}
"""

_STAMP = f"""
; The thread goes on with this part from here.
define internal void @sj_begin(ptr %part) nounwind {{
  %thread = call i64 @pthread_self()
{abi.store("i64", "%thread", "%part", sheets.THREAD, "%thread.p")}\
  %now = call i64 @sj_ticks()
{abi.store("i64", "%now", "%part", sheets.LAST, "%last.p")}\
  ret void
}}

; The step at a place has ended: `sj_slot`, `sj_count` and `sj_event` in one, as this is in loops.
define internal void @sj_stamp(ptr %part, ptr %at) nounwind {{
  %now = call i64 @sj_ticks()
{abi.load("%begin", "i64", "%part", sheets.LAST)}\
  store i64 %now, ptr %begin.p
{_SLOT_OF}{_COUNT_IN.replace("%end", "%now")}{_EVENT_IN.replace("%end", "%now")}\
  ret void
}}
"""

_REGION = f"""
; The part of a worker of a parallel region whose caller has this one.
define internal ptr @sj_part_of(ptr %part, i64 %worker) nounwind {{
{abi.load("%stride", "i64", "%part", sheets.STRIDE)}\
  %offset = mul i64 %worker, %stride
  %own = getelementptr i8, ptr %part, i64 %offset
  ret ptr %own
}}

; A worker has run a chunk of the job with these words; ticks until now, which it returns.
define internal i64 @sj_worked(ptr %part, ptr %at, i64 %since) nounwind {{
  %now = call i64 @sj_ticks()
  %ticks = sub i64 %now, %since
  %slot = call ptr @sj_slot(ptr %part, ptr %at)
{_add("count", "%slot", sheets.COUNT, "1")}{_add("busy", "%slot", sheets.BUSY, "%ticks")}\
  ret i64 %now
}}

; A worker has its first chunk of a region; ticks.
define internal i64 @sj_enter(ptr %part) nounwind {{
  %thread = call i64 @pthread_self()
{abi.store("i64", "%thread", "%part", sheets.THREAD, "%thread.p")}\
  %now = call i64 @sj_ticks()
  ret i64 %now
}}

; A worker has no more chunks of a region.
define internal void @sj_left(ptr %part, i64 %began, i64 %ended) nounwind {{
{abi.store("i64", "%began", "%part", sheets.BEGAN, "%began.p")}\
{abi.store("i64", "%ended", "%part", sheets.ENDED, "%ended.p")}\
  ret void
}}

; All workers have left the region: what was before the first began and after the last left.
define internal void @sj_joined(ptr %part, ptr %at, i64 %workers) nounwind {{
entry:
  %now = call i64 @sj_ticks()
{abi.load("%last", "i64", "%part", sheets.LAST)}\
  br label %worker
worker:
  %number = phi i64 [0, %entry], [%number.next, %worker]
  %first = phi i64 [%now, %entry], [%first.next, %worker]
  %final = phi i64 [%last, %entry], [%final.next, %worker]
  %longest = phi i64 [0, %entry], [%longest.next, %worker]
  %own = call ptr @sj_part_of(ptr %part, i64 %number)
{abi.load("%began", "i64", "%own", sheets.BEGAN)}{abi.load("%ended", "i64", "%own", sheets.ENDED)}\
  %here = icmp uge i64 %began, %last
  %earlier = icmp ult i64 %began, %first
  %is.first = and i1 %here, %earlier
  %first.next = select i1 %is.first, i64 %began, i64 %first
  %later = icmp ugt i64 %ended, %final
  %is.final = and i1 %here, %later
  %final.next = select i1 %is.final, i64 %ended, i64 %final
  %ticks = sub i64 %ended, %began
  %longer = icmp ugt i64 %ticks, %longest
  %is.longest = and i1 %here, %longer
  %longest.next = select i1 %is.longest, i64 %ticks, i64 %longest
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %workers
  br i1 %more, label %worker, label %known
known:
  %inside = sub i64 %final.next, %first.next
  %all = sub i64 %now, %last
  %outside = sub i64 %all, %inside
  %some = icmp sgt i64 %outside, 0
  %before.and.after = select i1 %some, i64 %outside, i64 0
  %slot = call ptr @sj_slot(ptr %part, ptr %at)
{_add("outside", "%slot", sheets.OUTSIDE, "%before.and.after")}\
{_add("longest", "%slot", sheets.LONGEST, "%longest.next")}\
  ret void
}}
"""

_SHEETS = f"""
; A sheet with parts for so many threads that no other call uses; null where there is no memory.
define internal ptr @sj_sheet_claim(ptr %log, i64 %threads) nounwind {{
entry:
{abi.field("%idle", "%log", sheets.LOG_IDLE)}\
{slots.taking("%idle", "%sheet")}\
{abi.load("%has", "i64", "%sheet", sheets.SHEET_THREADS)}\
  %enough = icmp uge i64 %has, %threads
  br i1 %enough, label %out, label %next
out:
  ret ptr %sheet
next:
{slots.following(sheets.IDLE, "create")}\
create:
{abi.load("%slots", "i64", "%log", sheets.LOG_SLOTS_NBYTES)}\
{abi.load("%room", "i64", "%log", sheets.LOG_EVENTS)}\
  %events.nbytes = mul i64 %room, {sheets.EVENT_NBYTES}
  %behind = add i64 %slots, {sheets.PART_SLOTS}
  %part.nbytes = add i64 %behind, %events.nbytes
  %raised = add i64 %part.nbytes, 63
  %stride = and i64 %raised, -64
  %parts.nbytes = mul i64 %stride, %threads
  %nbytes = add i64 %parts.nbytes, {sheets.SHEET_PARTS}
  %made = call ptr @calloc(i64 1, i64 %nbytes)
  %none = icmp eq ptr %made, null
  br i1 %none, label %nothing, label %fill
nothing:
  ret ptr null
fill:
{abi.store("i64", "%threads", "%made", sheets.SHEET_THREADS, "%threads.p")}\
{abi.store("i64", "%stride", "%made", sheets.SHEET_STRIDE, "%stride.p")}\
{abi.field("%first", "%made", sheets.SHEET_PARTS)}\
  br label %part
part:
  %thread = phi i64 [0, %fill], [%thread.next, %part]
  %offset = mul i64 %thread, %stride
  %own = getelementptr i8, ptr %first, i64 %offset
  %events = getelementptr i8, ptr %own, i64 %behind
{abi.store("i64", "%stride", "%own", sheets.STRIDE, "%own.stride")}\
{abi.store("ptr", "%events", "%own", sheets.EVENTS, "%own.events")}\
{abi.store("i64", "%room", "%own", sheets.ROOM, "%own.room")}\
  %thread.next = add i64 %thread, 1
  %more.threads = icmp ult i64 %thread.next, %threads
  br i1 %more.threads, label %part, label %push
push:
  %head = load atomic ptr, ptr %log monotonic, align 8
  store ptr %head, ptr %made
  %swap = cmpxchg ptr %log, ptr %head, ptr %made release monotonic
  %won = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %won, label %ready, label %push
ready:
  ret ptr %made
}}

; Where all places are taken, the sheet is read, but used no more.
define internal void @sj_sheet_release(ptr %log, ptr %sheet) nounwind {{
entry:
{abi.field("%idle", "%log", sheets.LOG_IDLE)}\
{slots.putting("%idle", "%sheet", sheets.IDLE, "out")}\
out:
  ret void
}}
"""

_RUN_ID = f"""
; The number of XLA's execution that calls us; 0 where this jaxlib does not say.
define internal i64 @sj_run_id(ptr %cf) nounwind {{
entry:
  %args = alloca [4 x i64], align 16
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}{abi.load("%ctx", "ptr", "%cf", abi.FRAME_CONTEXT)}\
  %size = load i64, ptr %api
  %has = icmp uge i64 %size, {abi.API_RUN_ID_GET + 8}
  br i1 %has, label %ask, label %unknown
ask:
{abi.load("%get", "ptr", "%api", abi.API_RUN_ID_GET)}\
{abi.fill("%args", [(0, "i64", "32"), (8, "ptr", "null"), (16, "ptr", "%ctx"), (24, "i64", "0")])}\
  %error = call ptr %get(ptr %args)
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %known, label %refused
refused:
  call void @sj_drop_error(ptr %cf, ptr %error)
  br label %unknown
known:
{abi.load("%number", "i64", "%args", 24)}\
  ret i64 %number
unknown:
  ret i64 0
}}
"""


def _timed_call_ir() -> str:
    """What a record calls while there is a recording.

    Note [Logs in use]: who wants to take a log away stores null in the record and then waits until
    nobody is in a timed call: those who come later find no log.
    """
    return f"""
define ptr @sj_timed_call(ptr %cf, ptr %words, ptr %record) nounwind {{
entry:
{abi.field("%active", "%record", ACTIVE)}{abi.field("%log.p", "%record", LOG)}\
  %before = atomicrmw add ptr %active, i64 1 seq_cst
  %log = load atomic ptr, ptr %log.p seq_cst, align 8
  %none = icmp eq ptr %log, null
  br i1 %none, label %plain, label %claim
claim:
  %begin = call i64 @sj_ticks()
  %threads = call i64 @sj_workers(ptr %cf)
  %sheet = call ptr @sj_sheet_claim(ptr %log, i64 %threads)
  %refused = icmp eq ptr %sheet, null
  br i1 %refused, label %plain, label %run
plain:
  %as.ever = call ptr @sj_plain_call(ptr %cf, ptr %words, ptr %record)
  br label %out
run:
{abi.field("%part", "%sheet", sheets.SHEET_PARTS)}\
  %number = call i64 @sj_run_id(ptr %cf)
{abi.load("%stride", "i64", "%sheet", sheets.SHEET_STRIDE)}\
{abi.load("%has", "i64", "%sheet", sheets.SHEET_THREADS)}\
  br label %set
set:
  %thread = phi i64 [0, %run], [%thread.next, %set]
  %offset = mul i64 %thread, %stride
  %own = getelementptr i8, ptr %part, i64 %offset
{abi.store("ptr", "%words", "%own", sheets.WORDS, "%own.words")}\
{abi.store("i64", "%number", "%own", sheets.RUN, "%own.run")}\
  %thread.next = add i64 %thread, 1
  %more = icmp ult i64 %thread.next, %has
  br i1 %more, label %set, label %go
go:
  %error = call ptr @sj_call(ptr %cf, ptr %words, ptr %part)
  %end = call i64 @sj_ticks()
  %slot = call ptr @sj_slot(ptr %part, ptr %words)
  call void @sj_count(ptr %slot, i64 %begin, i64 %end)
  call void @sj_event(ptr %part, ptr %words, i64 %begin, i64 %end)
  call void @sj_sheet_release(ptr %log, ptr %sheet)
  br label %out
out:
  %result = phi ptr [%as.ever, %plain], [%error, %go]
  %after = atomicrmw sub ptr %active, i64 1 seq_cst
  ret ptr %result
}}
"""
