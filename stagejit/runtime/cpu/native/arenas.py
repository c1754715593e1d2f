"""Memory for the transients of a call, as LLVM IR: a part of the support functions.

Input: nothing but the platform. Output: `sj_arena_claim`, `sj_arena_release`, `sj_arena_trim`,
`sj_advise` (see `support`). Invariant: a block belongs to the table or to one call.

Note [Arenas]: the idle blocks of the process wait in a small table of slots, taken by atomic
exchange. One table serves all programs: what one call leaves warm in the cache, the next one uses,
and the memory held is the largest arena times the number of concurrent calls, however many programs
are loaded. A block that is too small is replaced by a larger one, so sizes converge.
"""

from __future__ import annotations

import sys

from stagejit.runtime.cpu.native import slots

ARENA_ALIGNMENT_NBYTES = 64
HUGE_PAGE_NBYTES = 2 * 1024 * 1024
_HUGE_ARENA_FROM_NBYTES = 4 * 1024 * 1024
_SLOTS = 64
_MADV_HUGEPAGE = 14


def arena_ir() -> str:
    """See Note [Arenas]. A block is one line with its capacity, then the memory handed out."""
    return (
        _advise_ir()
        + f"""
@sj_slots = internal global [{_SLOTS} x ptr] zeroinitializer, align 64

define ptr @sj_arena_claim(i64 %nbytes) nounwind {{
entry:
{slots.taking("@sj_slots", "%block")}\
  %capacity = load i64, ptr %block
  %fits = icmp uge i64 %capacity, %nbytes
  br i1 %fits, label %reuse, label %replace
reuse:
  %old = getelementptr i8, ptr %block, i64 {ARENA_ALIGNMENT_NBYTES}
  ret ptr %old
replace:
  call void @free(ptr %block)
  br label %create
next:
{slots.following(_SLOTS, "create")}\
create:
  %wanted = add i64 %nbytes, {ARENA_ALIGNMENT_NBYTES}
  %huge = icmp uge i64 %wanted, {_HUGE_ARENA_FROM_NBYTES}
  %unit = select i1 %huge, i64 {HUGE_PAGE_NBYTES}, i64 4096
  %align = select i1 %huge, i64 {HUGE_PAGE_NBYTES}, i64 {ARENA_ALIGNMENT_NBYTES}
  %mask = sub i64 %unit, 1
  %raised = add i64 %wanted, %mask
  %inverse = xor i64 %mask, -1
  %size = and i64 %raised, %inverse
  %fresh = call ptr @aligned_alloc(i64 %align, i64 %size)
  %failed = icmp eq ptr %fresh, null
  br i1 %failed, label %none, label %made
none:
  ret ptr null
made:
  br i1 %huge, label %advise, label %ready
advise:
  call void @sj_advise(ptr %fresh, i64 %size)
  br label %ready
ready:
  %room = sub i64 %size, {ARENA_ALIGNMENT_NBYTES}
  store i64 %room, ptr %fresh
  %new = getelementptr i8, ptr %fresh, i64 {ARENA_ALIGNMENT_NBYTES}
  ret ptr %new
}}

define void @sj_arena_release(ptr %memory) nounwind {{
entry:
  %block = getelementptr i8, ptr %memory, i64 -{ARENA_ALIGNMENT_NBYTES}
{slots.putting("@sj_slots", "%block", _SLOTS, "full")}\
full:
  call void @free(ptr %block)
  br label %out
out:
  ret void
}}

define void @sj_arena_trim() nounwind {{
entry:
{slots.each("@sj_slots", "look")}\
  %block = atomicrmw xchg ptr %p, ptr null acquire
  call void @free(ptr %block)
{slots.following(_SLOTS, "out")}\
out:
  ret void
}}
"""
    )


def _advise_ir() -> str:
    """Only Linux has the advice; elsewhere the function does nothing."""
    advice = f"  %r = call i32 @madvise(ptr %p, i64 %length, i32 {_MADV_HUGEPAGE})\n"
    return f"""
define void @sj_advise(ptr %memory, i64 %nbytes) nounwind {{
entry:
  %start = ptrtoint ptr %memory to i64
  %stop = add i64 %start, %nbytes
  %raised = add i64 %start, {HUGE_PAGE_NBYTES - 1}
  %lo = and i64 %raised, -{HUGE_PAGE_NBYTES}
  %hi = and i64 %stop, -{HUGE_PAGE_NBYTES}
  %some = icmp ugt i64 %hi, %lo
  br i1 %some, label %advise, label %out
advise:
  %p = inttoptr i64 %lo to ptr
  %length = sub i64 %hi, %lo
{advice if sys.platform == "linux" else ""}  br label %out
out:
  ret void
}}
"""
