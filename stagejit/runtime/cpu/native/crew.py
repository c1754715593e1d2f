"""The threads of a call's parallel loops, as LLVM IR: its *crew*.

Input: nothing but the platform. Output: `sj_crew(crew, threads)`, the state that a crew shares,
which the first loop makes (null without memory); `sj_enlist(cf, state, workers)`, which asks XLA's
pool for helpers; `sj_dismiss(crew)`, which comes after the last loop. A crew is a pointer to the
pointer to its state, null at first. Invariants: one thread at a time uses a crew; the number of a
worker is that of one thread at a time, as scratch is found by it.

Note [Lingering]: to ask the pool for a thread takes a microsecond or more, half of which passes
before the caller goes on, and several where the thread sleeps. A call often forks again after a
few microseconds. So a helper that finds no chunk stays for a while and looks for those of the next
loop (see Note [From loop to loop] in `parallel_loop.py`); to begin that is then one store. It goes
when the call ends, or when nothing has come for as long as it takes to wake a thread again (6 to
16 us on Zen 4, 33 in a virtual machine on a Granite Rapids): who waits so long never loses more
than twice what would have been best, and the pool's threads are everybody's. That is told by a
clock, as a pause is 26 cycles on one core and 140 on another. Nothing depends on who stays: a
helper who is just going is missed in one loop, of which others run all chunks.

Note [From call to call]: programs are called again and again, 5 us after they returned, or 110
where they have read so much that nothing of Python or JAX is left in a cache. So a helper whose
call has ended stays, too, on one of a few seats that all calls of the process see: a seat tells
where it looks for a slot. Who enlists takes a helper from a seat, which is empty then, and hands it
a slot; if nobody sits, he asks the pool. A helper that has waited for long leaves its seat; where
somebody was faster, a slot comes at once. On two cores of a Granite Rapids a first loop begins 35
us earlier so, with both threads. But others' loops miss a thread that sits: one of XLA's right
behind ours takes 0.6 ms, not 0.5, beside one that sits for 250 us. So helpers sit no longer than
they linger, until somebody has asked the pool soon after a call had ended, and then until one has
sat for long in vain. And a helper that has been away from the pool for some milliseconds goes back:
there others' tasks may wait for a thread, as long as calls follow each other.
"""

from __future__ import annotations

import time

from stagejit.codegen.target import Target
from stagejit.runtime import ffi_abi as abi

# The shared state: chunks that are left and whether the call has ended, which idle helpers look at;
# finished chunks; references; what belongs to a loop; then the slots of the helpers. The counters
# that everybody writes are lines apart.
LEFT, ENDED, DONE = 0, 8, 64
_REFS, CHUNKS, JOBS, BUFS, SCRATCH, STRIDE = 128, 136, 144, 152, 160, 168
# Of the timed variant: the caller's part, where the jobs' slots are, from one part to the next.
PART, PLACE, PART_NBYTES = 192, 200, 208
STATE_NBYTES = 256
# The slot of a helper, which is what a task is given: the state, its number, whether it is there
# or has been asked for.
_STATE, _WORKER, _THERE, _SLOT_NBYTES = 0, 8, 16, 64
_LINGERING, _SITTING, _AWAY = 30_000, 250_000, 10_000_000  # nanoseconds
_PAUSES = 16  # from one look at the clock to the next
_SEATS = 32
_CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

_NEW_STATE = [(LEFT, "i64", "0"), (ENDED, "i64", "0"), (_REFS, "i64", "1")]
_NEW_SLOT = [(_STATE, "ptr", "%state"), (_WORKER, "i64", "%worker"), (_THERE, "i64", "0")]
_SCHEDULE_ARGS = [
    (0, "i64", "40"),
    (8, "ptr", "null"),
    (16, "ptr", "%ctx"),
    (24, "ptr", "@sj_task"),
    (32, "ptr", "%slot"),
]


def crew_ir() -> str:
    """All functions."""
    declared, _ = _pause_ir()
    return declared + _CLOCK + _LIFE + _task_ir() + _wait_ir() + _enlist_ir()


def pause() -> str:
    """A line that tells the core that it spins, where it can be told."""
    return _pause_ir()[1]


_SLOT = f"""\
  %slot.before = sub i64 %worker, 1
  %slot.offset = mul i64 %slot.before, {_SLOT_NBYTES}
  %slot.place = add i64 %slot.offset, {STATE_NBYTES}
  %slot = getelementptr i8, ptr %state, i64 %slot.place
"""

_CLOCK = f"""
define internal i64 @sj_nanoseconds() nounwind {{
  %time = alloca [2 x i64], align 16
  %ignored = call i32 @clock_gettime(i32 {_CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
{abi.load("%rest", "i64", "%time", 8)}\
  %whole = mul i64 %seconds, 1000000000
  %nanoseconds = add i64 %whole, %rest
  ret i64 %nanoseconds
}}
"""

_LIFE = f"""
define internal ptr @sj_crew(ptr %crew, i64 %threads) nounwind {{
entry:
  %known = load ptr, ptr %crew
  %none = icmp eq ptr %known, null
  br i1 %none, label %make, label %there
there:
  ret ptr %known
make:
  %slots.nbytes = mul i64 %threads, {_SLOT_NBYTES}
  %nbytes = add i64 %slots.nbytes, {STATE_NBYTES}
  %state = call ptr @aligned_alloc(i64 64, i64 %nbytes)
  %refused = icmp eq ptr %state, null
  br i1 %refused, label %out, label %fill
fill:
{abi.fill("%state", _NEW_STATE)}\
  store ptr %state, ptr %crew
  br label %check
check:
  %worker = phi i64 [1, %fill], [%worker.next, %one]
  %more = icmp ult i64 %worker, %threads
  br i1 %more, label %one, label %out
one:
{_SLOT}{abi.fill("%slot", _NEW_SLOT)}\
  %worker.next = add i64 %worker, 1
  br label %check
out:
  ret ptr %state
}}

define internal void @sj_unref(ptr %state) nounwind {{
{abi.field("%refs", "%state", _REFS)}\
  %was = atomicrmw sub ptr %refs, i64 1 acq_rel
  %last = icmp eq i64 %was, 1
  br i1 %last, label %drop, label %out
drop:
  call void @free(ptr %state)
  br label %out
out:
  ret void
}}

define void @sj_dismiss(ptr %crew) nounwind {{
entry:
  %state = load ptr, ptr %crew
  %none = icmp eq ptr %state, null
  br i1 %none, label %out, label %end
end:
{abi.field("%ended", "%state", ENDED)}\
  store atomic i64 1, ptr %ended release, align 8
  call void @sj_unref(ptr %state)
  %now = call i64 @sj_nanoseconds()
  store atomic i64 %now, ptr @sj_last_end monotonic, align 8
  br label %out
out:
  ret void
}}
"""


def _task_ir() -> str:
    return f"""
; Runs on a thread of the pool, perhaps long after the call has ended: see Note [Late workers].
define internal void @sj_task(ptr %first) nounwind {{
entry:
  %came = call i64 @sj_nanoseconds()
  br label %member
member:
  %slot = phi ptr [%first, %entry], [%other, %sit]
{abi.load("%state", "ptr", "%slot", _STATE)}{abi.load("%worker", "i64", "%slot", _WORKER)}\
{abi.field("%ended.p", "%state", ENDED)}{abi.field("%there", "%slot", _THERE)}\
  br label %look
look:
  %spins = phi i64 [0, %member], [0, %work], [%spins.next, %linger]
  %since = phi i64 [0, %member], [0, %work], [%began, %linger]
  %left = load atomic i64, ptr %state monotonic, align 8
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %work, label %idle
work:
  call void @sj_run(ptr %state, i64 %worker)
  br label %look
idle:
  %ended = load atomic i64, ptr %ended.p monotonic, align 8
  %no.more = icmp ne i64 %ended, 0
  br i1 %no.more, label %over, label %stay
stay:
  %spins.next = add i64 %spins, 1
  %began = call i64 @sj_idle_since(i64 %spins, i64 %since, i64 {_LINGERING})
  %long = icmp eq i64 %began, 0
  br i1 %long, label %leave, label %linger
linger:
{pause()}  br label %look
leave:
  store atomic i64 0, ptr %there release, align 8
  call void @sj_unref(ptr %state)
  ret void
over:
  store atomic i64 0, ptr %there release, align 8
  call void @sj_unref(ptr %state)
  %now = call i64 @sj_nanoseconds()
  %away = sub i64 %now, %came
  %returns = icmp ugt i64 %away, {_AWAY}
  br i1 %returns, label %out, label %sit
sit:
  %other = call ptr @sj_seated()
  %none = icmp eq ptr %other, null
  br i1 %none, label %out, label %member
out:
  ret void
}}
"""


def _wait_ir() -> str:
    return f"""
@sj_seats = internal global [{_SEATS} x ptr] zeroinitializer, align 64
@sj_patience = internal global i64 {_LINGERING}, align 64  ; how long helpers sit
@sj_last_end = internal global i64 0                       ; of a call that had helpers

; In a child after a fork, where nobody sits: those who did are threads of its parent.
define void @sj_forget_helpers() nounwind {{
  %ignored = call ptr @memset(ptr @sj_seats, i32 0, i64 {8 * _SEATS})
  store i64 {_LINGERING}, ptr @sj_patience
  store i64 0, ptr @sj_last_end
  ret void
}}

; Since when one has looked so often, given what it was before; 0 once that is more than `most`.
define internal i64 @sj_idle_since(i64 %spins, i64 %since, i64 %most) nounwind {{
entry:
  %turn = urem i64 %spins, {_PAUSES}
  %asks = icmp eq i64 %turn, 0
  br i1 %asks, label %clock, label %as.before
as.before:
  ret i64 %since
clock:
  %now = call i64 @sj_nanoseconds()
  %begins = icmp eq i64 %spins, 0
  %began = select i1 %begins, i64 %now, i64 %since
  %waited = sub i64 %now, %began
  %long = icmp ugt i64 %waited, %most
  %found = select i1 %long, i64 0, i64 %began
  ret i64 %found
}}

; The slot that somebody gives to who sits and waits; null where no seat is left, or nobody does.
define internal ptr @sj_seated() nounwind {{
entry:
  %hand = alloca ptr, align 64
  store atomic ptr null, ptr %hand monotonic, align 8
  %most = load atomic i64, ptr @sj_patience monotonic, align 8
  br label %seek
seek:
  %number = phi i64 [0, %entry], [%number.next, %taken]
  %seat = getelementptr ptr, ptr @sj_seats, i64 %number
  %swap = cmpxchg ptr %seat, ptr null, ptr %hand release monotonic
  %sits = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %sits, label %look, label %taken
taken:
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, {_SEATS}
  br i1 %more, label %seek, label %none
look:
  %spins = phi i64 [0, %seek], [%spins.next, %linger]
  %since = phi i64 [0, %seek], [%began, %linger]
  %slot = load atomic ptr, ptr %hand acquire, align 8
  %given = icmp ne ptr %slot, null
  br i1 %given, label %found, label %stay
stay:
  %spins.next = add i64 %spins, 1
  %began = call i64 @sj_idle_since(i64 %spins, i64 %since, i64 %most)
  %long = icmp eq i64 %began, 0
  br i1 %long, label %rise, label %linger
linger:
{pause()}  br label %look
rise:
  %back = cmpxchg ptr %seat, ptr %hand, ptr null monotonic monotonic
  %gone = extractvalue {{ ptr, i1 }} %back, 1
  br i1 %gone, label %in.vain, label %expect
in.vain:
  store atomic i64 {_LINGERING}, ptr @sj_patience monotonic, align 8
  br label %none
expect:                                  ; who was faster is about to give a slot
  %ignored = call i32 @sched_yield()
  %late = load atomic ptr, ptr %hand acquire, align 8
  %comes = icmp ne ptr %late, null
  br i1 %comes, label %found, label %expect
found:
  %any = phi ptr [%slot, %look], [%late, %expect]
  ret ptr %any
none:
  ret ptr null
}}
"""


def _enlist_ir() -> str:
    return f"""
; Those helpers with numbers below `workers` that are not there.
define internal void @sj_enlist(ptr %cf, ptr %state, i64 %workers) nounwind {{
entry:
  %args = alloca [5 x i64], align 16
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}{abi.load("%ctx", "ptr", "%cf", abi.FRAME_CONTEXT)}\
{abi.load("%asked", "ptr", "%api", abi.API_POOL_SCHEDULE)}\
{abi.field("%refs", "%state", _REFS)}\
  br label %look
look:
  %worker = phi i64 [1, %entry], [%worker.next, %next]
  %seen = phi i64 [0, %entry], [%seen.next, %next]
{_SLOT}{abi.field("%there.p", "%slot", _THERE)}\
  %there = load atomic i64, ptr %there.p acquire, align 8
  %missing = icmp eq i64 %there, 0
  br i1 %missing, label %ask, label %next
ask:
  store atomic i64 1, ptr %there.p monotonic, align 8
  %before = atomicrmw add ptr %refs, i64 1 monotonic
  br label %seek
seek:
  %number = phi i64 [%seen, %ask], [%number.next, %empty]
  %all.seen = icmp uge i64 %number, {_SEATS}
  br i1 %all.seen, label %schedule, label %seat
seat:
  %number.next = add i64 %number, 1
  %seat.p = getelementptr ptr, ptr @sj_seats, i64 %number
  %sits = load atomic ptr, ptr %seat.p monotonic, align 8
  %nobody = icmp eq ptr %sits, null
  br i1 %nobody, label %empty, label %take
take:
  %hand = atomicrmw xchg ptr %seat.p, ptr null acquire
  %gone = icmp eq ptr %hand, null
  br i1 %gone, label %empty, label %give
empty:
  br label %seek
give:
  store atomic ptr %slot, ptr %hand release, align 8
  br label %next
schedule:
  %now = call i64 @sj_nanoseconds()
  %last.end = load atomic i64, ptr @sj_last_end monotonic, align 8
  %gap = sub i64 %now, %last.end
  %soon = icmp ult i64 %gap, {_SITTING}
  br i1 %soon, label %patient, label %pool
patient:
  store atomic i64 {_SITTING}, ptr @sj_patience monotonic, align 8
  br label %pool
pool:
{abi.fill("%args", _SCHEDULE_ARGS)}\
  %error = call ptr %asked(ptr %args)
  %refused = icmp ne ptr %error, null
  br i1 %refused, label %undo, label %next
undo:                                    ; nobody will run that task
  call void @sj_drop_error(ptr %cf, ptr %error)
  store atomic i64 0, ptr %there.p monotonic, align 8
  call void @sj_unref(ptr %state)
  br label %next
next:
  %seen.next = phi i64 [%seen, %look], [%number.next, %give],
                       [%number, %pool], [%number, %undo]
  %worker.next = add i64 %worker, 1
  %more = icmp ult i64 %worker.next, %workers
  br i1 %more, label %look, label %out
out:
  ret void
}}
"""


def _pause_ir() -> tuple[str, str]:
    """(declaration, call) of the hint to the core that it spins; some architectures need none."""
    arch = Target.host().triple.split("-")[0]
    name, kind, argument = {
        "x86_64": ("llvm.x86.sse2.pause", "", ""),
        "aarch64": ("llvm.aarch64.hint", "i32", "i32 1"),
        "arm64": ("llvm.aarch64.hint", "i32", "i32 1"),
    }.get(arch, ("", "", ""))
    if not name:
        return "", ""
    return f"declare void @{name}({kind})\n", f"  call void @{name}({argument})\n"
