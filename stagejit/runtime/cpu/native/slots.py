"""Tables of slots from which threads take pointers without locks, as LLVM IR.

Input: where a table is, and how many slots it has. Output: pieces of functions, with the labels
`look`, `take`, `taken`, `put` and `next`, where `%p` is the slot. Invariant: a pointer is in one
slot, or somebody has it: it is taken by an exchange, and put into a slot that was empty.
"""

from __future__ import annotations


def each(table: str, before: str = "next") -> str:
    """From the entry into a loop over the slots. before: the label from which it goes on."""
    return f"""  br label %look
look:
  %at = phi i64 [0, %entry], [%at.next, %{before}]
  %p = getelementptr ptr, ptr {table}, i64 %at
"""


def following(count: int, end: str) -> str:
    """The step to the next slot, or, after the last one, to the label `end`."""
    return f"""  %at.next = add i64 %at, 1
  %more = icmp ult i64 %at.next, {count}
  br i1 %more, label %look, label %{end}
"""


def taking(table: str, value: str) -> str:
    """Up to the label `taken`, where `value` is what was in a slot; at `next` it goes on."""
    return f"""{each(table)}\
  %seen = load atomic ptr, ptr %p monotonic, align 8
  %empty = icmp eq ptr %seen, null
  br i1 %empty, label %next, label %take
take:
  {value} = atomicrmw xchg ptr %p, ptr null acquire
  %lost = icmp eq ptr {value}, null
  br i1 %lost, label %next, label %taken
taken:
"""


def putting(table: str, value: str, count: int, full: str) -> str:
    """Puts `value` into an empty slot, then to the label `out`; to `full` where there is none."""
    return f"""{each(table)}\
  %seen = load atomic ptr, ptr %p monotonic, align 8
  %empty = icmp eq ptr %seen, null
  br i1 %empty, label %put, label %next
put:
  %swap = cmpxchg ptr %p, ptr null, ptr {value} release monotonic
  %won = extractvalue {{ ptr, i1 }} %swap, 1
  br i1 %won, label %out, label %next
next:
{following(count, full)}"""
