"""Parallel loops on the threads of XLA's pool, as LLVM IR: `sj_pfor` and what runs a part of it.

Input: whether the code is of the timed variant. Output: text for the module of `support.py`.

A job of `sj_pfor` is {kernel, where its addresses begin in bufs, params, total, grain, first chunk}
(`JOB_NBYTES`; offsets in bytes); the chunks of all jobs are numbered through, job j owning
[first[j], first[j+1]); behind the last job stands one more entry whose first chunk is `nchunks`.
The threads are a *crew*, see `crew.py`; `sj_pfor` has one of its own where its caller gives none.

Note [Late workers]: chunks are claimed from an atomic counter, the caller takes part, and it
waits only for chunks that somebody claimed. A pool thread that starts after the last chunk was
claimed finds none and goes. It must still find the counter, so the state of a crew is counted by
reference and freed by whoever lets go last; everything else (the jobs, their buffers, the
scratch) is read only by a thread that owns a chunk, while the caller is still there.

Note [From loop to loop]: a crew lives through many loops, and a thread that found no chunk of one
may look again when the next one has begun. The counter counts down, to zero at the end of a loop,
so nobody can claim a chunk between loops; a claim acquires what was stored before the chunks were
given out, and all that belongs to a loop is read after a claim. Who has run chunks says so
before he looks for those of another loop, and the caller begins that after all have said so.
"""

from __future__ import annotations

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cpu.native import crew, sheets, stamps

JOB_NBYTES = 48
_SPINS_BEFORE_YIELD = 4096

# Parts of late workers may be gone: only their addresses are computed.
_OWN_PART = f"""\
{abi.load("%callers", "ptr", "%state", crew.PART)}\
{abi.load("%part.nbytes", "i64", "%state", crew.PART_NBYTES)}\
  %part.offset = mul i64 %worker, %part.nbytes
  %part = getelementptr i8, ptr %callers, i64 %part.offset
"""
# When the thread began its first chunk, the chunks of this job, and the chunk; the job's words.
_SINCE = """\
  %began = phi i64 [0, %entry], [%began.now, %go]
  %since = phi i64 [0, %entry], [%now, %go]
  %job.since = phi i64 [0, %entry], [%job.begin, %go]
  %its.place = phi ptr [null, %entry], [%job.place, %go]
  %its.part = phi ptr [null, %entry], [%part, %go]
"""
_BEGIN_CHUNK = f"""\
{_OWN_PART}\
{abi.load("%jobs.place", "ptr", "%state", crew.PLACE)}\
{abi.load("%all.jobs", "ptr", "%state", crew.JOBS)}\
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
  call void @sj_event(ptr %its.part, ptr %its.place, i64 %job.since, i64 %since)
  call void @sj_left(ptr %its.part, i64 %began, i64 %since)
"""


def run_ir(timed: stamps.Timed) -> str:
    """What a thread does in a parallel loop."""
    last = "go" if timed("go") else "run"
    return f"""
; Claim and run chunks until none is left, then report how many.
define internal void @sj_run(ptr %state, i64 %worker) nounwind {{
entry:
{abi.field("%done", "%state", crew.DONE)}\
  br label %claim
claim:
  %ran = phi i64 [0, %entry], [%ran.next, %{last}]
  %from = phi ptr [null, %entry], [%job, %{last}]
{timed(_SINCE)}\
  %left = atomicrmw sub ptr %state, i64 1 acquire
  %mine = icmp sgt i64 %left, 0
  br i1 %mine, label %owned, label %finished
owned:
{abi.load("%chunks", "i64", "%state", crew.CHUNKS)}\
  %chunk = sub i64 %chunks, %left
{abi.load("%jobs", "ptr", "%state", crew.JOBS)}{abi.load("%all.bufs", "ptr", "%state", crew.BUFS)}\
{abi.load("%scratch.base", "ptr", "%state", crew.SCRATCH)}\
{abi.load("%stride", "i64", "%state", crew.STRIDE)}\
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
"""


# What a crew is told of a loop.
_LOOP = [
    (crew.CHUNKS, "i64", "%nchunks"),
    (crew.JOBS, "ptr", "%jobs"),
    (crew.BUFS, "ptr", "%bufs"),
    (crew.SCRATCH, "ptr", "%scratch"),
    (crew.STRIDE, "i64", "%stride"),
]
_PART_LOOP = [
    (crew.PART, "ptr", "%part"),
    (crew.PLACE, "ptr", "%place"),
    (crew.PART_NBYTES, "i64", "%part.nbytes"),
]
# The caller's own iterations have stamps, too: those of the region go on from where it began.
_BEFORE = abi.load("%part.nbytes", "i64", "%part", sheets.STRIDE) + abi.load(
    "%since", "i64", "%part", sheets.LAST
)
_JOINED = """\
  store i64 %since, ptr %since.p
  call void @sj_joined(ptr %part, ptr %at, i64 %threads)
"""


def pfor_ir(timed: stamps.Timed) -> str:
    loop = [*_LOOP, *_PART_LOOP] if timed("part") else _LOOP
    return f"""
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
{crew.pause()}  br label %check
yield:
  %ignored = call i32 @sched_yield()
  br label %check
out:
  ret void
}}

define void @sj_pfor(ptr %cf, ptr %jobs, ptr %bufs, i64 %nchunks, i64 %threads,
                     ptr %scratch, i64 %stride, ptr %crew\
{timed(", ptr %part, ptr %at, ptr %place")}) nounwind {{
entry:
{timed(_BEFORE)}\
  %mine = alloca ptr
  store ptr null, ptr %mine
  %local = alloca [{crew.STATE_NBYTES} x i8], align 64
  %fewer = icmp ult i64 %nchunks, %threads
  %workers = select i1 %fewer, i64 %nchunks, i64 %threads
  %given = icmp ne ptr %crew, null
  %members = select i1 %given, ptr %crew, ptr %mine
  %helpers = icmp ugt i64 %workers, 1
  br i1 %helpers, label %shared, label %setup
shared:
  %found = call ptr @sj_crew(ptr %members, i64 %threads)
  br label %setup
setup:
  %heap = phi ptr [%found, %shared], [null, %entry]
  %forks = icmp ne ptr %heap, null
  %state = select i1 %forks, ptr %heap, ptr %local
{abi.fill("%state", loop)}\
{abi.field("%done", "%state", crew.DONE)}\
  store atomic i64 0, ptr %done monotonic, align 8
  store atomic i64 %nchunks, ptr %state release, align 8
  br i1 %forks, label %fork, label %run
fork:
  call void @sj_enlist(ptr %cf, ptr %state, i64 %workers)
  br label %run
run:
  call void @sj_run(ptr %state, i64 0)
  br i1 %forks, label %join, label %joined
join:
  call void @sj_wait(ptr %done, i64 %nchunks)
  br label %joined
joined:
{timed(_JOINED)}\
  call void @sj_dismiss(ptr %mine)
  ret void
}}
"""
