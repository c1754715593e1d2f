"""Parallel loops on the threads of XLA's pool, as LLVM IR: `sj_pfor` and what runs a part of it.

Input: whether the code is of the timed variant. Output: text for the module of `support.py`.

A job of `sj_pfor` is {kernel, where its addresses begin in bufs, params, total, grain, first chunk}
(`JOB_NBYTES`; offsets in bytes); the chunks of all jobs are numbered through, job j owning
[first[j], first[j+1]); behind the last job stands one more entry whose first chunk is `nchunks`.

Note [Late workers]: chunks are claimed from an atomic counter, the caller takes part, and it
waits only for chunks that somebody claimed. A pool thread that starts after the last chunk was
claimed finds none and goes. It must still find the counter, so the shared state is counted by
reference and freed by whoever lets go last; everything else (the jobs, their buffers, the
scratch) is read only by a thread that owns a chunk, while the caller is still there.
"""

from __future__ import annotations

from stagejit.codegen.target import Target
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import sheets, stamps

JOB_NBYTES = 48
_SPINS_BEFORE_YIELD = 4096

# The shared state of one parallel loop. The two counters that everybody writes are lines apart.
_NEXT, _DONE, _REFS, _IDS = 0, 64, 128, 136
_CHUNKS, _JOBS, _BUFS, _SCRATCH, _STRIDE = 192, 200, 208, 216, 224
# Of the timed variant: the caller's part, where the jobs' slots are, from one part to the next.
_PART, _PLACE, _PART_NBYTES = 232, 240, 248
_STATE_NBYTES = 256


_NEW_STATE = [
    (_NEXT, "i64", "0"),
    (_DONE, "i64", "0"),
    (_REFS, "i64", "%refs"),
    (_IDS, "i64", "0"),
    (_CHUNKS, "i64", "%nchunks"),
    (_JOBS, "ptr", "%jobs"),
    (_BUFS, "ptr", "%bufs"),
    (_SCRATCH, "ptr", "%scratch"),
    (_STRIDE, "i64", "%stride"),
]
_SCHEDULE_ARGS = [
    (0, "i64", "40"),
    (8, "ptr", "null"),
    (16, "ptr", "%ctx"),
    (24, "ptr", "@sj_task"),
    (32, "ptr", "%state"),
]


_PART_STATE = [
    (_PART, "ptr", "%part"),
    (_PLACE, "ptr", "%place"),
    (_PART_NBYTES, "i64", "%part.nbytes"),
]
# Parts of late workers may be gone: only their addresses are computed.
_OWN_PART = f"""\
{abi.load("%callers", "ptr", "%state", _PART)}\
{abi.load("%part.nbytes", "i64", "%state", _PART_NBYTES)}\
  %part.offset = mul i64 %worker, %part.nbytes
  %part = getelementptr i8, ptr %callers, i64 %part.offset
"""
# When the thread began its first chunk, the chunks of this job, and the chunk; the job's words.
_SINCE = """\
  %began = phi i64 [0, %entry], [%began.now, %go]
  %since = phi i64 [0, %entry], [%now, %go]
  %job.since = phi i64 [0, %entry], [%job.begin, %go]
  %its.place = phi ptr [null, %entry], [%job.place, %go]
"""
_BEGIN_CHUNK = f"""\
{abi.load("%jobs.place", "ptr", "%state", _PLACE)}\
{abi.load("%all.jobs", "ptr", "%state", _JOBS)}\
  %jobs.at = ptrtoint ptr %all.jobs to i64
  %job.at = ptrtoint ptr %job to i64
  %job.distance = sub i64 %job.at, %jobs.at
  %job.place = getelementptr i8, ptr %jobs.place, i64 %job.distance
  %starts = icmp eq i64 %ran, 0
  br i1 %starts, label %first.chunk, label %compare
first.chunk:
  %start.ticks = call i64 @sj_enter(ptr %part)
  br label %go
compare:
  %same.job = icmp eq ptr %job.place, %its.place
  br i1 %same.job, label %go, label %change
change:
  call void @sj_event(ptr %part, ptr %its.place, i64 %job.since, i64 %since)
  br label %go
go:
  %began.now = phi i64 [%start.ticks, %first.chunk], [%began, %compare], [%began, %change]
  %chunk.begin = phi i64 [%start.ticks, %first.chunk], [%since, %compare], [%since, %change]
  %job.begin = phi i64 [%start.ticks, %first.chunk], [%job.since, %compare], [%since, %change]
"""
_END_CHUNK = """\
  %now = call i64 @sj_worked(ptr %part, ptr %job.place, i64 %chunk.begin)
"""
_END_CHUNKS = """\
  call void @sj_event(ptr %part, ptr %its.place, i64 %job.since, i64 %since)
  call void @sj_left(ptr %part, i64 %began, i64 %since)
"""


def run_ir(timed: stamps.Timed) -> str:
    """What a thread does in a parallel loop, and the end of the shared state."""
    last = "go" if timed("go") else "run"
    return f"""
; Claim and run chunks until none is left, then report how many.
define internal void @sj_run(ptr %state, i64 %worker) nounwind {{
entry:
{abi.field("%done", "%state", _DONE)}{abi.load("%chunks", "i64", "%state", _CHUNKS)}\
{timed(_OWN_PART)}\
  br label %claim
claim:
  %ran = phi i64 [0, %entry], [%ran.next, %{last}]
  %from = phi ptr [null, %entry], [%job, %{last}]
{timed(_SINCE)}\
  %chunk = atomicrmw add ptr %state, i64 1 monotonic
  %mine = icmp ult i64 %chunk, %chunks
  br i1 %mine, label %owned, label %finished
owned:
{abi.load("%jobs", "ptr", "%state", _JOBS)}{abi.load("%all.bufs", "ptr", "%state", _BUFS)}\
{abi.load("%scratch.base", "ptr", "%state", _SCRATCH)}\
{abi.load("%stride", "i64", "%state", _STRIDE)}\
  %first.time = icmp eq ptr %from, null
  %start = select i1 %first.time, ptr %jobs, ptr %from
  br label %search
search:                                  ; the sentinel after the last job begins beyond every chunk
  %job = phi ptr [%start, %owned], [%job.next, %search]
  %job.next = getelementptr i8, ptr %job, i64 {JOB_NBYTES}
{abi.load("%next.first", "i64", "%job.next", 40)}\
  %later = icmp uge i64 %chunk, %next.first
  br i1 %later, label %search, label %run
run:
{abi.load("%kernel", "ptr", "%job", 0)}{abi.load("%bufs.offset", "i64", "%job", 8)}\
{abi.load("%params", "ptr", "%job", 16)}{abi.load("%total", "i64", "%job", 24)}\
{abi.load("%grain", "i64", "%job", 32)}{abi.load("%first", "i64", "%job", 40)}\
  %bufs = getelementptr i8, ptr %all.bufs, i64 %bufs.offset
  %index = sub i64 %chunk, %first
  %lo = mul i64 %index, %grain
  %end = add i64 %lo, %grain
  %over = icmp ugt i64 %end, %total
  %hi = select i1 %over, i64 %total, i64 %end
  %scratch.offset = mul i64 %worker, %stride
  %scratch = getelementptr i8, ptr %scratch.base, i64 %scratch.offset
{timed(_BEGIN_CHUNK)}\
  call void %kernel(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch)
{timed(_END_CHUNK)}\
  %ran.next = add i64 %ran, 1
  br label %claim
finished:
  %none = icmp eq i64 %ran, 0
  br i1 %none, label %out, label %report
report:
{timed(_END_CHUNKS)}\
  %was = atomicrmw add ptr %done, i64 %ran release
  br label %out
out:
  ret void
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

"""


# The caller's own iterations have stamps, too: those of the region go on from where it began.
_BEFORE = abi.load("%part.nbytes", "i64", "%part", sheets.STRIDE) + abi.load(
    "%since", "i64", "%part", sheets.LAST
)
_JOINED = """\
  store i64 %since, ptr %since.p
  call void @sj_joined(ptr %part, ptr %at, i64 %workers)
"""


def pfor_ir(timed: stamps.Timed) -> str:
    new_state = [*_NEW_STATE, *_PART_STATE] if timed("part") else _NEW_STATE
    declare_pause, pause = _pause_ir()
    return f"""{declare_pause}
; Runs on a thread of the pool, perhaps long after the loop has ended: see Note [Late workers].
define internal void @sj_task(ptr %state) nounwind {{
{abi.field("%ids", "%state", _IDS)}\
  %before = atomicrmw add ptr %ids, i64 1 monotonic
  %worker = add i64 %before, 1
  call void @sj_run(ptr %state, i64 %worker)
  call void @sj_unref(ptr %state)
  ret void
}}

define internal void @sj_wait(ptr %counter, i64 %wanted) nounwind {{
entry:
  br label %check
check:
  %spins = phi i64 [0, %entry], [%spins.next, %spin], [0, %yield]
  %value = load atomic i64, ptr %counter acquire, align 8
  %there = icmp eq i64 %value, %wanted
  br i1 %there, label %out, label %again
again:
  %spins.next = add i64 %spins, 1
  %long = icmp ugt i64 %spins.next, {_SPINS_BEFORE_YIELD}
  br i1 %long, label %yield, label %spin
spin:
{pause}  br label %check
yield:
  %ignored = call i32 @sched_yield()
  br label %check
out:
  ret void
}}

define void @sj_pfor(ptr %cf, ptr %jobs, ptr %bufs, i64 %nchunks, i64 %threads,
                     ptr %scratch, i64 %stride\
{timed(", ptr %part, ptr %at, ptr %place")}) nounwind {{
entry:
{timed(_BEFORE)}\
  %args = alloca [5 x i64], align 16
  %local = alloca [{_STATE_NBYTES} x i8], align 64
  %fewer = icmp ult i64 %nchunks, %threads
  %workers = select i1 %fewer, i64 %nchunks, i64 %threads
  %helpers = icmp ugt i64 %workers, 1
  br i1 %helpers, label %shared, label %alone
shared:
  %heap = call ptr @aligned_alloc(i64 64, i64 {_STATE_NBYTES})
  %got = icmp ne ptr %heap, null
  br i1 %got, label %setup, label %alone
alone:
  br label %setup
setup:
  %state = phi ptr [%heap, %shared], [%local, %alone]
  %refs = phi i64 [%workers, %shared], [1, %alone]
{abi.fill("%state", new_state)}\
  %forks = icmp ugt i64 %refs, 1
  br i1 %forks, label %fork, label %serial
serial:
  call void @sj_run(ptr %state, i64 0)
{timed(_JOINED)}\
  ret void
fork:
{abi.load("%api", "ptr", "%cf", abi.FRAME_API)}{abi.load("%ctx", "ptr", "%cf", abi.FRAME_CONTEXT)}\
{abi.load("%schedule", "ptr", "%api", abi.API_POOL_SCHEDULE)}\
{abi.fill("%args", _SCHEDULE_ARGS)}\
  br label %submit
submit:
  %helper = phi i64 [1, %fork], [%helper.next, %submitted]
  %error = call ptr %schedule(ptr %args)
  %refused = icmp ne ptr %error, null
  br i1 %refused, label %undo, label %submitted
undo:                                    ; nobody will run that task
  call void @sj_drop_error(ptr %cf, ptr %error)
  call void @sj_unref(ptr %state)
  br label %submitted
submitted:
  %helper.next = add i64 %helper, 1
  %more = icmp ult i64 %helper.next, %workers
  br i1 %more, label %submit, label %run
run:
  call void @sj_run(ptr %state, i64 0)
{abi.field("%done", "%state", _DONE)}\
  call void @sj_wait(ptr %done, i64 %nchunks)
{timed(_JOINED)}\
  call void @sj_unref(ptr %state)
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
