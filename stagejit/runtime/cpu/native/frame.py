"""A call of a host program, around its steps, as LLVM IR: `sj_call(cf, words, part)`.

Input: nothing but the platform. Output: a part of the support functions. Invariant: whatever is
claimed is released, also where a step fails.

It checks the frame, collects the addresses of buffers and weights, claims an arena and calls
`sj_steps` (see `interpreter.py`); then it gives back the arena, and an error if there is one.
"""

from __future__ import annotations

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu import weights
from stagejit.runtime.cpu.native.snapshots import given_back_ir
from stagejit.runtime.cpu.native.stamps import Timed

# The words before the first step; all are numbers but those that begin with text or faults.
HEADER = (
    "nargs",
    "nresults",
    "on.stack",
    "rows.on.stack",
    "rows.at",
    "own",
    "worker.nbytes",
    "forks",
    "most.loops",
    "nbound",
    "snapshot.at",
    "table",
    "nfaults",
    "faults",
    "text.memory",
    "text.counts",
    "text.unknown",
)
_ADDRESSES = ("text", "faults", "table")  # fmt: skip


def call_ir(timed: Timed) -> str:
    """The function, and what it calls."""
    start = """
define ptr @sj_call(ptr %cf, ptr %words, ptr %part) nounwind {
entry:
  %fault = alloca i64
  store i64 0, ptr %fault
  %crew = alloca ptr
  store ptr null, ptr %crew
"""
    return _COLLECT + _NOTED + start + _frame_ir(timed) + _end_ir() + "}\n"


_NOTED = f"""
; An error with two texts, a line each.
define internal ptr @sj_note_and_error(ptr %cf, ptr %note, ptr %text) nounwind {{
entry:
  %text.nbytes = call i64 @strlen(ptr %text)
  %note.nbytes = call i64 @strlen(ptr %note)
  %both = add i64 %text.nbytes, %note.nbytes
  %nbytes = add i64 %both, 2
  %message = alloca i8, i64 %nbytes
  %first = call ptr @memcpy(ptr %message, ptr %note, i64 %note.nbytes)
  %between = getelementptr i8, ptr %message, i64 %note.nbytes
  store i8 10, ptr %between
  %behind = getelementptr i8, ptr %between, i64 1
  %with.end = add i64 %text.nbytes, 1
  %second = call ptr @memcpy(ptr %behind, ptr %text, i64 %with.end)
  %error = call ptr @sj_error(ptr %cf, i32 {abi.INTERNAL}, ptr %message)
  ret ptr %error
}}
"""

_COLLECT = f"""
; Addresses of the first `count` buffers of a table of the frame.
define internal void @sj_collect(ptr %table, i64 %count, ptr %into) nounwind {{
entry:
  br label %check
check:
  %number = phi i64 [0, %entry], [%number.next, %one]
  %more = icmp ult i64 %number, %count
  br i1 %more, label %one, label %out
one:
  %from = getelementptr ptr, ptr %table, i64 %number
  %buffer = load ptr, ptr %from
{abi.load("%data", "ptr", "%buffer", abi.BUFFER_DATA)}\
  %slot = getelementptr ptr, ptr %into, i64 %number
  store ptr %data, ptr %slot
  %number.next = add i64 %number, 1
  br label %check
out:
  ret void
}}
"""


def _frame_ir(timed: Timed) -> str:
    """From the frame to `%start`: all that steps use."""
    header = "".join(
        abi.load(f"%{name}", "ptr" if name.startswith(_ADDRESSES) else "i64", "%words", at)
        for at, name in zip(range(0, 8 * len(HEADER), 8), HEADER, strict=True)
    )
    return f"""\
{header}\
{abi.load("%frame.size", "i64", "%cf", abi.FRAME_STRUCT_SIZE)}\
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}{abi.load("%api.size", "i64", "%api", 0)}\
{abi.load("%major", "i32", "%api", abi.API_VERSION_MAJOR)}\
  %frame.ok = icmp uge i64 %frame.size, {abi.FRAME_MIN_NBYTES}
  %api.ok = icmp uge i64 %api.size, {abi.API_MIN_NBYTES}
  %major.ok = icmp eq i32 %major, 0
  %known.sizes = and i1 %frame.ok, %api.ok
  %known = and i1 %known.sizes, %major.ok
  br i1 %known, label %counts, label %unknown.api
counts:
{abi.load("%stage", "i32", "%cf", abi.FRAME_STAGE)}\
{abi.load("%args.count", "i64", "%cf", abi.FRAME_ARGS_COUNT)}\
{abi.load("%results.count", "i64", "%cf", abi.FRAME_RESULTS_COUNT)}\
  %stage.ok = icmp eq i32 %stage, {abi.STAGE_EXECUTE}
  %args.ok = icmp eq i64 %args.count, %nargs
  %results.ok = icmp eq i64 %results.count, %nresults
  %counts.both = and i1 %args.ok, %results.ok
  %counts.ok = and i1 %counts.both, %stage.ok
  br i1 %counts.ok, label %decode, label %wrong.counts
decode:
  %buffers = add i64 %nargs, %nresults
  %first.bound = add i64 %buffers, 2
  %nbases = add i64 %first.bound, %nbound
  %bases = alloca ptr, i64 %nbases, align 16
  %loops = alloca [2 x i64], i64 %most.loops, align 16
  %rows.small = alloca i8, i64 %rows.on.stack, align 16
  %stack = alloca i8, i64 %on.stack, align 64
{abi.load("%args", "ptr", "%cf", abi.FRAME_ARGS)}\
{abi.load("%results", "ptr", "%cf", abi.FRAME_RESULTS)}\
  call void @sj_collect(ptr %args, i64 %nargs, ptr %bases)
  %results.into = getelementptr ptr, ptr %bases, i64 %nargs
  call void @sj_collect(ptr %results, i64 %nresults, ptr %results.into)
  %alone = icmp eq i64 %forks, 0
  br i1 %alone, label %size, label %pool
pool:
  %threads = call i64 @sj_workers(ptr %cf)
  br label %size
size:
  %workers = phi i64 [1, %decode], [%threads, %pool]
  %scratch.nbytes = mul i64 %workers, %worker.nbytes
  %claim.nbytes = add i64 %scratch.nbytes, %own
  %nothing = icmp eq i64 %claim.nbytes, 0
  br i1 %nothing, label %prepared, label %claim
claim:
  %claimed = call ptr @sj_arena_claim(i64 %claim.nbytes)
  %refused = icmp eq ptr %claimed, null
  br i1 %refused, label %no.memory, label %prepared
prepared:
  %arena = phi ptr [null, %size], [%claimed, %claim]
  %scratch = getelementptr i8, ptr %arena, i64 %own
  %small = icmp ne i64 %on.stack, 0
  %memory = select i1 %small, ptr %stack, ptr %arena
  %rows.few = icmp ne i64 %rows.on.stack, 0
  %rows.large = getelementptr i8, ptr %arena, i64 %rows.at
  %rows = select i1 %rows.few, ptr %rows.small, ptr %rows.large
  %arena.slot = getelementptr ptr, ptr %bases, i64 %buffers
  store ptr %memory, ptr %arena.slot
{abi.store("ptr", "%fault", "%arena.slot", 8, "%fault.slot")}\
{abi.field("%start", "%words", 8 * len(HEADER))}\
  %unbound = icmp eq i64 %nbound, 0
  br i1 %unbound, label %ready, label %bind
bind:                                    ; see `weights.py`
{abi.field("%reading", "%table", weights.READING)}\
  %before.us = atomicrmw add ptr %reading, i64 1 seq_cst
  %newest = load atomic ptr, ptr %table seq_cst, align 8
  %of.any.moment = icmp slt i64 %snapshot.at, 0
  br i1 %of.any.moment, label %found, label %of.moment
of.moment:
  %snapshot.p = getelementptr ptr, ptr %bases, i64 %snapshot.at
  %snapshot = load ptr, ptr %snapshot.p
  %moment = load i64, ptr %snapshot
  br label %look
look:
  %seen = phi ptr [%newest, %of.moment], [%before, %back]
{abi.load("%since", "i64", "%seen", weights.SINCE)}\
  %later = icmp ugt i64 %since, %moment
  br i1 %later, label %back, label %found
back:
{abi.load("%before", "ptr", "%seen", weights.BEFORE)}\
  %oldest = icmp eq ptr %before, null      ; the call has failed, see `snapshots.py`
  br i1 %oldest, label %found, label %look
found:
  %list = phi ptr [%newest, %bind], [%seen, %look], [%seen, %back]
{abi.field("%addresses", "%list", weights.ADDRESSES)}\
  %bound.into = getelementptr ptr, ptr %bases, i64 %first.bound
  %bound.nbytes = mul i64 %nbound, 8
  %ignored.list = call ptr @memcpy(ptr %bound.into, ptr %addresses, i64 %bound.nbytes)
  br label %ready
ready:
  %error = call ptr @sj_steps(ptr %cf, ptr %start, ptr %bases, ptr %loops, ptr %rows, ptr %scratch,
                              i64 %workers, i64 %worker.nbytes, ptr %crew{timed(", ptr %part")})
  call void @sj_dismiss(ptr %crew)
  br i1 %unbound, label %unbind, label %free
free:
{abi.field("%read", "%table", weights.READING)}\
  %after.us = atomicrmw sub ptr %read, i64 1 seq_cst
  br label %unbind
unbind:
  br i1 %nothing, label %released, label %release
"""


def _error(label: str, code: int, text: str) -> str:
    error = f"%{label}.error"
    return (
        f"{label}:\n  {error} = call ptr @sj_error(ptr %cf, i32 {code}, ptr {text})\n"
        f"  ret ptr {error}\n"
    )


def _end_ir() -> str:
    """What is given back, and errors."""
    return f"""\
release:
  call void @sj_arena_release(ptr %arena)
  br label %released
released:
  %failed = icmp ne ptr %error, null
  %fault.value = load i64, ptr %fault
  %fault.number = and i64 %fault.value, 4294967295
  %fault.none = icmp eq i64 %fault.number, 0
  %well = xor i1 %failed, true
  %succeeds = and i1 %well, %fault.none
  br i1 %succeeds, label %out, label %fails
out:
  ret ptr %error
fails:                                   ; see `snapshots.py`
  %no.ticket = icmp slt i64 %snapshot.at, 0
  br i1 %no.ticket, label %told, label %give.back
give.back:
  %taken.p = getelementptr ptr, ptr %bases, i64 %snapshot.at
  %taken = load ptr, ptr %taken.p
{given_back_ir("%taken")}\
  br label %told
told:
  br i1 %failed, label %out, label %faulty
faulty:                                  ; the fault word v selects message v, counted from 1
  %fault.index = sub i64 %fault.number, 1
  %fault.known = icmp ult i64 %fault.index, %nfaults
  %fault.entry = select i1 %fault.known, i64 %fault.index, i64 0
  %fault.message.p = getelementptr ptr, ptr %faults, i64 %fault.entry
  %fault.message = load ptr, ptr %fault.message.p
  %note = lshr i64 %fault.value, 32        ; in its upper half another one, of what was before
  %no.note = icmp eq i64 %note, 0
  br i1 %no.note, label %bad.fault, label %noted
noted:
  %note.index = sub i64 %note, 1
  %note.known = icmp ult i64 %note.index, %nfaults
  %note.entry = select i1 %note.known, i64 %note.index, i64 0
  %note.message.p = getelementptr ptr, ptr %faults, i64 %note.entry
  %note.message = load ptr, ptr %note.message.p
  %noted.error = call ptr @sj_note_and_error(ptr %cf, ptr %note.message, ptr %fault.message)
  ret ptr %noted.error
{_error("bad.fault", abi.INTERNAL, "%fault.message")}\
{_error("unknown.api", abi.INVALID_ARGUMENT, "%text.unknown")}\
{_error("wrong.counts", abi.INVALID_ARGUMENT, "%text.counts")}\
{_error("no.memory", abi.RESOURCE_EXHAUSTED, "%text.memory")}\
"""
