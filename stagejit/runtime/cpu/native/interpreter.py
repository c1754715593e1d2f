"""What runs the words of a host program, as LLVM IR: one function for all programs.

Input: nothing but the platform. Output: a part of the support functions, `sj_call(cf, words,
part)`, which is what `entry` calls: null, or an XLA_FFI_Error. Invariant: it keeps no state between
calls. In the timed variant, `part` is where the times of steps are added up (see `stamps.py`).

A call checks the frame, collects the buffers' addresses on its stack, claims an arena and runs the
steps (`sj_steps`) up to an end. A thread that has iterations of its own does so, too, with loops
and rows in memory of its own (`sj_iterations`, which has the form of a kernel). What follows a
step's references in its words (see `encoding.py`; places are in bytes from the start of the step):

    launch  kernel, params, total, whether it needs scratch
    region  chunks, table of jobs (see `support.py`)
    call    see `foreign.py`
    copy    bytes, from the second address of the row to the first, unless they are one: then it
            is no execution, of which nothing is written
    advise  bytes, at the address
    watch   notes the time, for `settle`
    settle  bytes, at the address, which calls update in place
    store   bytes of the integer, its value, number of a loop, how much more it is in each turn
    loop    number of the loop from outside, whose turns are counted from here on, trip
    again   number of the loop, place of its body
    iterations  number of the loop of the threads, trip, iterations a chunk, chunks, threads, where
            a thread's loops and rows are in its memory, size of its words, which follow
    unless  place to go on at, where the byte at the address is 0
    branch  bytes of the index at the address, sides, the place of each
    jump    place
    end
    clear   bytes, at the address
    check   of the first address, see `nans/checks.py`; the second is that of the fault word
"""

from __future__ import annotations

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu import foreign
from stagejit.runtime.cpu.nans import checks
from stagejit.runtime.cpu.native import frame
from stagejit.runtime.cpu.native.stamps import Timed

KINDS = (
    "launch", "region", "call", "copy", "advise", "store", "loop", "again", "iterations", "unless",
    "branch", "jump", "end", "clear", "check", "settle", "watch",
)  # fmt: skip

# What is known of each loop that runs: the number of the turn, then that at which it ends.
LOOP_NBYTES = 16


def run_ir(timed: Timed) -> str:
    """All functions."""
    steps = _steps_ir(timed) + _step_ir(timed) + "}\n"
    return (
        foreign.CALL_IR + checks.check_ir() + steps + _iterations_ir(timed) + frame.call_ir(timed)
    )


def _steps_ir(timed: Timed) -> str:
    return f"""
define internal ptr @sj_steps(ptr %cf, ptr %start, ptr %bases, ptr %loops, ptr %rows, ptr %scratch,
                              i64 %workers, i64 %worker.nbytes, ptr %crew{timed(", ptr %part")})
    nounwind {{
entry:
  %threads.jobs = alloca [12 x i64], align 16
  %shared = alloca [8 x i64], align 16
  %integer = alloca i64
  %began.p = alloca i64
{timed("  call void @sj_begin(ptr %part)" + chr(10))}\
  br label %step
"""


# What threads that share iterations find: the caller's addresses, memory and words.
_SHARED = [
    (0, "ptr", "%cf"),
    (8, "ptr", "%rest"),
    (16, "ptr", "%bases"),
    (24, "ptr", "%loops"),
    (32, "ptr", "%scratch"),
    (40, "i64", "%worker.nbytes"),
    (48, "ptr", "null"),  # the first error
]
_SHARED_PART = (56, "ptr", "%part")
# A job of `sj_pfor`, and the entry behind it.
_THREADS_JOBS = [
    (0, "ptr", "@sj_iterations"),
    (8, "i64", "0"),
    (16, "ptr", "null"),
    (24, "i64", "%all.turns"),
    (32, "i64", "%grain"),
    (40, "i64", "0"),
    (88, "i64", "%chunks"),
]


def _iterations_ir(timed: Timed) -> str:
    own = (
        abi.load("%callers", "ptr", "%shared", _SHARED_PART[0])
        + "  %part = call ptr @sj_part_of(ptr %callers, i64 %thread)\n"
    )
    return f"""
; Iterations [lo, hi), by a thread whose memory is `mine`: a kernel.
define internal void @sj_iterations(ptr %shared, ptr %params, i64 %lo, i64 %hi, ptr %mine)
    nounwind {{
{abi.load("%cf", "ptr", "%shared", 0)}{abi.load("%rest", "ptr", "%shared", 8)}\
{abi.load("%bases", "ptr", "%shared", 16)}{abi.load("%around", "ptr", "%shared", 24)}\
{abi.load("%memory", "ptr", "%shared", 32)}{abi.load("%nbytes", "i64", "%shared", 40)}\
{abi.load("%outside", "i64", "%rest", 0)}{abi.load("%loops.at", "i64", "%rest", 40)}\
{abi.load("%rows.at", "i64", "%rest", 48)}{abi.field("%start", "%rest", 64)}\
  %first = ptrtoint ptr %memory to i64
  %own = ptrtoint ptr %mine to i64
  %distance = sub i64 %own, %first
  %thread = udiv i64 %distance, %nbytes
  %loops = getelementptr i8, ptr %mine, i64 %loops.at
  %rows = getelementptr i8, ptr %mine, i64 %rows.at
  %outside.nbytes = mul i64 %outside, {LOOP_NBYTES}
  %ignored = call ptr @memcpy(ptr %loops, ptr %around, i64 %outside.nbytes)
  %of.threads = getelementptr i8, ptr %loops, i64 %outside.nbytes
  store i64 %thread, ptr %of.threads
{abi.store("i64", "%lo", "%of.threads", LOOP_NBYTES, "%turn.p")}\
{abi.store("i64", "%hi", "%of.threads", LOOP_NBYTES + 8, "%end.p")}\
{timed(own)}\
  %error = call ptr @sj_steps(ptr %cf, ptr %start, ptr %bases, ptr %loops, ptr %rows, ptr %mine,
                              i64 1, i64 0, ptr null{timed(", ptr %part")})
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %out, label %failed
failed:
{abi.field("%first.error", "%shared", 48)}\
  %swap = cmpxchg ptr %first.error, ptr null, ptr %error release monotonic
  %kept = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %kept, label %out, label %drop
drop:
  call void @sj_drop_error(ptr %cf, ptr %error)
  br label %out
out:
  ret void
}}
"""


def _step_ir(timed: Timed) -> str:
    """Stores the addresses that a step has to, and runs it. What takes time ends at `done`."""
    done = "worked" if timed("worked") else "next"
    worked = f"{done}:\n  call void @sj_stamp(ptr %part, ptr %at)\n  br label %next\n"
    shared = [*_SHARED, _SHARED_PART] if timed("part") else _SHARED
    kinds = " ".join(f"i64 {number}, label %{kind}" for number, kind in enumerate(KINDS))
    widths = ("i8", "i16", "i32", "i64")
    index = ", ".join(f"[%{width}.wide, %{width}]" for width in widths)
    widened = "".join(
        f"{width}:\n  %{width}.index = load {width}, ptr %address\n"
        f"  %{width}.wide = {'add i64 0,' if width == 'i64' else f'sext {width}'} %{width}.index"
        f"{'' if width == 'i64' else ' to i64'}\n  br label %clamp\n"
        for width in widths
    )
    return f"""\
{timed(worked)}\
next:
  %behind = getelementptr i8, ptr %at, i64 %nbytes
  br label %step
go:
  %place = phi i64 [%loop.place, %again], [%word, %unless], [%side.place, %clamp],
                   [%word, %jump], [%behind.place, %iterations]
  %there = getelementptr i8, ptr %at, i64 %place
  br label %step
step:
  %at = phi ptr [%start, %entry], [%behind, %next], [%there, %go]
{abi.load("%kind", "i64", "%at", 0)}{abi.load("%nbytes", "i64", "%at", 8)}\
{abi.load("%row.at", "i64", "%at", 16)}{abi.load("%count", "i64", "%at", 24)}\
{abi.field("%refs", "%at", 32)}\
  %row = getelementptr i8, ptr %rows, i64 %row.at
  %stored = icmp eq i64 %count, 0
  br i1 %stored, label %ready, label %reference
reference:
  %ref = phi ptr [%refs, %step], [%stride.p, %moved]
  %left = phi i64 [%count, %step], [%left.next, %moved]
{abi.load("%entry.number", "i64", "%ref", 0)}{abi.load("%base.number", "i64", "%ref", 8)}\
{abi.load("%offset", "i64", "%ref", 16)}{abi.load("%strides", "i64", "%ref", 24)}\
{abi.field("%first", "%ref", 32)}\
  %base.p = getelementptr ptr, ptr %bases, i64 %base.number
  %base = load ptr, ptr %base.p
  %fixed = getelementptr i8, ptr %base, i64 %offset
  br label %axis
axis:
  %axis.loop = phi i64 [0, %reference], [%axis.next, %move]
  %moving = phi ptr [%fixed, %reference], [%further, %move]
  %stride.p = phi ptr [%first, %reference], [%stride.next, %move]
  %moves = icmp ult i64 %axis.loop, %strides
  br i1 %moves, label %move, label %moved
move:
  %axis.stride = load i64, ptr %stride.p
  %axis.iv.p = getelementptr [2 x i64], ptr %loops, i64 %axis.loop
  %axis.iv = load i64, ptr %axis.iv.p
  %by = mul i64 %axis.iv, %axis.stride
  %further = getelementptr i8, ptr %moving, i64 %by
  %stride.next = getelementptr i8, ptr %stride.p, i64 8
  %axis.next = add i64 %axis.loop, 1
  br label %axis
moved:
  %entry.p = getelementptr ptr, ptr %rows, i64 %entry.number
  store ptr %moving, ptr %entry.p
  %left.next = sub i64 %left, 1
  %all.stored = icmp eq i64 %left.next, 0
  br i1 %all.stored, label %ready, label %reference
ready:
  %rest = phi ptr [%refs, %step], [%stride.p, %moved]
  %word = load i64, ptr %rest
  switch i64 %kind, label %jump [ {kinds} ]
launch:
{abi.load("%kernel", "ptr", "%rest", 0)}{abi.load("%params", "ptr", "%rest", 8)}\
{abi.load("%total", "i64", "%rest", 16)}{abi.load("%wants", "i64", "%rest", 24)}\
  %none = icmp eq i64 %wants, 0
  %private = select i1 %none, ptr null, ptr %scratch
  call void %kernel(ptr %row, ptr %params, i64 0, i64 %total, ptr %private)
  br label %{done}
region:
{abi.field("%jobs", "%rest", 8)}\
  call void @sj_pfor(ptr %cf, ptr %jobs, ptr %row, i64 %word, i64 %workers, ptr %scratch,
                     i64 %worker.nbytes, ptr %crew{timed(", ptr %part, ptr %at, ptr %jobs")})
  br label %{done}
call:
  %call.error = call ptr @sj_foreign(ptr %cf, ptr %rest, ptr %row)
  %call.fine = icmp eq ptr %call.error, null
  br i1 %call.fine, label %{done}, label %failed
failed:
  ret ptr %call.error
copy:
{abi.load("%to", "ptr", "%row", 0)}{abi.load("%from", "ptr", "%row", 8)}\
  %same = icmp eq ptr %to, %from
  br i1 %same, label %next, label %differ
differ:
  %ignored = call ptr @memcpy(ptr %to, ptr %from, i64 %word)
  br label %{done}
advise:
  %result = load ptr, ptr %row
  call void @sj_advise(ptr %result, i64 %word)
  br label %next
settle:
  %held = load ptr, ptr %row
  %began = load i64, ptr %began.p
  call void @sj_settle(ptr %held, i64 %word, i64 %began)
  br label %next
watch:
  %now = call i64 @sj_nanoseconds()
  store i64 %now, ptr %began.p
  br label %next
store:                                   ; the lowest bytes come first
{abi.load("%stored.first", "i64", "%rest", 8)}{abi.load("%stored.loop", "i64", "%rest", 16)}\
{abi.load("%stored.step", "i64", "%rest", 24)}\
  %stored.turn.p = getelementptr [2 x i64], ptr %loops, i64 %stored.loop
  %stored.turn = load i64, ptr %stored.turn.p
  %stored.by = mul i64 %stored.turn, %stored.step
  %stored.value = add i64 %stored.first, %stored.by
  store i64 %stored.value, ptr %integer
  %stored.to = load ptr, ptr %row
  %stored.end = call ptr @memcpy(ptr %stored.to, ptr %integer, i64 %word)
  br label %next
loop:
  %iv.start = getelementptr [2 x i64], ptr %loops, i64 %word
{abi.load("%trip", "i64", "%rest", 8)}\
  store i64 0, ptr %iv.start
{abi.store("i64", "%trip", "%iv.start", 8, "%trip.start")}\
  br label %next
again:
  %iv.p = getelementptr [2 x i64], ptr %loops, i64 %word
  %iv = load i64, ptr %iv.p
  %iv.next = add i64 %iv, 1
  store i64 %iv.next, ptr %iv.p
{abi.load("%turns", "i64", "%iv.p", 8)}{abi.load("%loop.place", "i64", "%rest", 8)}\
  %more = icmp ult i64 %iv.next, %turns
  br i1 %more, label %go, label %next
iterations:
{abi.load("%all.turns", "i64", "%rest", 8)}{abi.load("%grain", "i64", "%rest", 16)}\
{abi.load("%chunks", "i64", "%rest", 24)}{abi.load("%most", "i64", "%rest", 32)}\
{abi.load("%own.nbytes", "i64", "%rest", 56)}\
{abi.fill("%threads.jobs", _THREADS_JOBS)}{abi.fill("%shared", shared)}\
  %few = icmp ult i64 %most, %workers
  %threads = select i1 %few, i64 %most, i64 %workers
  call void @sj_pfor(ptr %cf, ptr %threads.jobs, ptr %shared, i64 %chunks, i64 %threads,
                     ptr %scratch, i64 %worker.nbytes, ptr null\
{timed(", ptr %part, ptr %at, ptr %rest")})
{timed("  call void @sj_stamp(ptr %part, ptr %at)" + chr(10))}\
  %behind.place = add i64 %nbytes, %own.nbytes
{abi.load("%threads.error", "ptr", "%shared", 48)}\
  %threads.fine = icmp eq ptr %threads.error, null
  br i1 %threads.fine, label %go, label %threads.failed
threads.failed:
  ret ptr %threads.error
unless:
  %predicate.p = load ptr, ptr %row
  %predicate = load i8, ptr %predicate.p
  %holds = icmp ne i8 %predicate, 0
  br i1 %holds, label %next, label %go
branch:
  %address = load ptr, ptr %row
  switch i64 %word, label %i64 [ i64 1, label %i8 i64 2, label %i16 i64 4, label %i32 ]
{widened}\
clamp:                                   ; like `lax.switch`
  %index = phi i64 {index}
{abi.load("%sides", "i64", "%rest", 8)}{abi.field("%places", "%rest", 16)}\
  %last = sub i64 %sides, 1
  %negative = icmp slt i64 %index, 0
  %over = icmp sgt i64 %index, %last
  %not.over = select i1 %over, i64 %last, i64 %index
  %side = select i1 %negative, i64 0, i64 %not.over
  %side.p = getelementptr i64, ptr %places, i64 %side
  %side.place = load i64, ptr %side.p
  br label %go
jump:
  br label %go
end:
  ret ptr null
clear:
  %cleared = load ptr, ptr %row
  %cleared.end = call ptr @memset(ptr %cleared, i32 0, i64 %word)
  br label %next
check:
  %checked = load ptr, ptr %row
  %wrong = call i1 @sj_check(ptr %checked, ptr %rest)
  br i1 %wrong, label %said, label %next
said:                                    ; the first of each kind stays; an error has the text
                                         ; behind its own where there is a note
{abi.load("%fault", "ptr", "%row", 8)}{abi.load("%said.now", "i64", "%rest", 48)}\
  %said.before = load i64, ptr %fault
  %is.error = trunc i64 %said.now to i32
  %is.note = icmp eq i32 %is.error, 0
  %upper = lshr i64 %said.before, 32
  %noted = icmp ne i64 %upper, 0
  %again.noted = and i1 %is.note, %noted
  %added = select i1 %again.noted, i64 0, i64 %said.now
  %error.noted = select i1 %is.note, i1 false, i1 %noted
  %behind.note = zext i1 %error.noted to i64
  %said.which = add i64 %added, %behind.note
  %said.all = or i64 %said.before, %said.which
  store i64 %said.all, ptr %fault
  br i1 %is.note, label %next, label %end
"""
