"""Huge pages for memory that call after call updates in place, as LLVM IR: `sj_settle`.

Input: nothing but the platform. Output: a part of the support functions. Invariant: bytes and
addresses stay as they are; what the system refuses stays on small pages.

Note [Held memory]: a cache of keys and values is made once, often by somebody who asks for no huge
pages, and then donated to every step, which reads all of it. Moving it takes about as long as fifty
steps gain, so it is moved once as many calls have been given the same address, a huge page a call,
so that none waits for long. A small table remembers addresses and how many calls had them; two
that share an entry move nothing while they take turns, and nothing depends on what is lost
where several threads write an entry.

Note [Long moves]: what a page takes depends on the system: 0.1 ms where huge pages lie ready, 0.7
on a Granite Rapids in a virtual machine, 7 there where the host has no memory behind a page yet.
What it gains is a part of what calls take, which read all of the memory at most. So both are looked
at: a move that takes longer than the call behind which it is made is the last one at its address.
No call takes more than twice as long, except the one that finds this out.
"""

from __future__ import annotations

import sys

from stagejit.runtime.cpu.native.arenas import HUGE_PAGE_NBYTES

CALLS = 64  # with the same address before anything is moved
ENTRIES = 64
_MADV_COLLAPSE = 25  # of Linux, since 6.1; others say that they do not know it
_COUNTS = 1 << 16  # an entry is the number of a page of 4 KiB, then a count
_PAGE_BITS, _HUGE_BITS = 12, HUGE_PAGE_NBYTES.bit_length() - 1


def settle_ir() -> str:
    """Only Linux moves pages; elsewhere the function counts. began: when the call did."""
    move = f"  %r = call i32 @madvise(ptr %p, i64 {HUGE_PAGE_NBYTES}, i32 {_MADV_COLLAPSE})\n"
    return f"""
@sj_held = internal global [{ENTRIES} x i64] zeroinitializer, align 64

define void @sj_settle(ptr %memory, i64 %nbytes, i64 %began) nounwind {{
entry:
  %start = ptrtoint ptr %memory to i64
  %stop = add i64 %start, %nbytes
  %raised = add i64 %start, {HUGE_PAGE_NBYTES - 1}
  %first = lshr i64 %raised, {_HUGE_BITS}
  %end = lshr i64 %stop, {_HUGE_BITS}
  %page = lshr i64 %start, {_PAGE_BITS}
  %key = mul i64 %page, {_COUNTS}
  %number = and i64 %first, {ENTRIES - 1}
  %entry.p = getelementptr i64, ptr @sj_held, i64 %number
  %found = load atomic i64, ptr %entry.p monotonic, align 8
  %found.count = and i64 %found, {_COUNTS - 1}
  %found.key = sub i64 %found, %found.count
  %same = icmp eq i64 %found.key, %key
  %count = select i1 %same, i64 %found.count, i64 0
  %behind.calls = add i64 %first, %count
  %huge.page = sub i64 %behind.calls, {CALLS}
  %waits = icmp ult i64 %count, {CALLS}
  %more = icmp ult i64 %huge.page, %end
  %some = icmp ult i64 %count, {_COUNTS - 1}
  %moves = and i1 %more, %some
  %counts = or i1 %waits, %moves
  br i1 %counts, label %note, label %out
note:
  %new.count = add i64 %count, 1
  %new = add i64 %key, %new.count
  store atomic i64 %new, ptr %entry.p monotonic, align 8
  br i1 %waits, label %out, label %move
move:
  %address = shl i64 %huge.page, {_HUGE_BITS}
  %p = inttoptr i64 %address to ptr
  %before = call i64 @sj_nanoseconds()
{move if sys.platform == "linux" else ""}\
  %behind = call i64 @sj_nanoseconds()
  %lasted = sub i64 %before, %began
  %took = sub i64 %behind, %before
  %long = icmp ugt i64 %took, %lasted
  br i1 %long, label %enough, label %out
enough:
  %last = add i64 %key, {_COUNTS - 1}
  store atomic i64 %last, ptr %entry.p monotonic, align 8
  br label %out
out:
  ret void
}}
"""
