"""Where a float becomes NaN: steps of host programs that look at what dispatches have written.

Input: boxes of buffers. Output: `Check` steps, their words, and `sj_check`, which runs them.
Invariant: memory that nothing has written is zero in a program with checks (see
`Options(check_nans=True)`), so what is looked at beyond what is known exactly makes no error.

A float is an integer of as many bits: without its sign, what is larger than infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stagejit.base.records import record
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.hosting.program import Check
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.schedule.plans.plan import Access, Buffer
from stagejit.types import DType

# Bits and infinity of each float that is computed with.
_INFINITY = {
    "f16": (16, 0x7C00),
    "bf16": (16, 0x7F80),
    "f32": (32, 0x7F800000),
    "f64": (64, 0x7FF0000000000000),
}
# What begins no error of its own: it is said behind a note, of what was there before the call.
BEHIND_NOTE = "There, "
_WIDTHS = (16, 32, 64)
_VECTOR_BITS = 512


def is_checked(dtype: DType) -> bool:
    """Whether elements can be looked at."""
    return dtype.name in _INFINITY


@record
class Rows:
    """Elements in memory: rows of `count` beside each other, so many along each axis at a distance.
    offset: bytes."""

    offset_nbytes: int
    count: int
    axes: tuple[tuple[int, int], ...]


def rows_of(access: Access, buffer: Buffer) -> Rows:
    """Where an access is: exactly, where that is known; else all of the buffer."""
    itemsize, box = buffer.dtype.itemsize, access.box
    offsets = [offset for offset in box.offsets if isinstance(offset, int)]
    known = access.exact and buffer.layout.is_row_major
    if not known or len(offsets) < len(box.offsets):
        return Rows(0, buffer.nbytes // itemsize, ())
    strides, stride = list[int](), itemsize
    for size in reversed(buffer.shape):
        strides.insert(0, stride)
        stride *= size
    start = sum(at * by for at, by in zip(offsets, strides, strict=True))
    axes = list[tuple[int, int]]()
    for size, step, by in zip(box.sizes, box.strides, strides, strict=True):
        distance = step * by
        if axes and axes[-1][1] == size * distance:
            axes[-1] = axes[-1][0] * size, distance
        elif size != 1:
            axes.append((size, distance))
    if axes and axes[-1][1] == itemsize:
        return Rows(start, axes[-1][0], tuple(axes[:-1]))
    return Rows(start, 1, tuple(axes))


def check_of(access: Access, buffer: Buffer, place: BufferRef, *, infs: bool) -> Check:
    """The check of what was written. place: where the buffer starts."""
    rows = rows_of(access, buffer)
    moved = replace(place, offset_nbytes=place.offset_nbytes + rows.offset_nbytes)
    return Check(moved, buffer.dtype.name, rows.count, rows.axes, infs)


def words_of(check: Check) -> list[Any]:
    """Bits, mask of the sign, the largest number that is right, elements of a row, rows, axes, what
    is said (notes in the upper half); then each axis from inside."""
    bits, infinity = _INFINITY[check.dtype]
    limit = infinity - 1 if check.infs else infinity
    mask = (1 << (bits - 1)) - 1
    rows = 1
    for count, _ in check.axes:
        rows *= count
    said = check.said << 32 if check.is_note else check.said
    inner = [number for axis in reversed(check.axes) for number in axis]
    return [bits, mask, limit, check.count, rows, len(check.axes), said, *inner]


def check_ir() -> str:
    """`sj_check(address, words)`: whether there is a NaN."""
    return "".join(map(_row_ir, _WIDTHS)) + _CHECK


def _row_ir(bits: int) -> str:
    lanes = _VECTOR_BITS // bits
    kind, vector = f"i{bits}", f"<{lanes} x i{bits}>"

    def spread(name: str) -> str:
        return (
            f"  %{name}.one = insertelement {vector} poison, {kind} %{name}, i32 0\n"
            f"  %{name}.all = shufflevector {vector} %{name}.one, {vector} poison, "
            f"<{lanes} x i32> zeroinitializer\n"
        )

    def cut(name: str) -> str:
        if bits == 64:
            return f"  %{name} = add i64 %{name}.wide, 0\n"
        return f"  %{name} = trunc i64 %{name}.wide to {kind}\n"

    return f"""
define internal i1 @sj_check_row_{bits}(ptr %row, i64 %count, i64 %mask.wide, i64 %limit.wide)
    nounwind {{
entry:
{cut("mask")}{cut("limit")}{spread("mask")}{spread("limit")}\
  %whole = and i64 %count, -{lanes}
  %some = icmp ne i64 %whole, 0
  br i1 %some, label %vectors, label %rest
vectors:
  %at = phi i64 [0, %entry], [%at.next, %vectors]
  %seen = phi <{lanes} x i1> [zeroinitializer, %entry], [%seen.next, %vectors]
  %from = getelementptr {kind}, ptr %row, i64 %at
  %bits = load {vector}, ptr %from, align {bits // 8}
  %size = and {vector} %bits, %mask.all
  %over = icmp ugt {vector} %size, %limit.all
  %seen.next = or <{lanes} x i1> %seen, %over
  %at.next = add i64 %at, {lanes}
  %more = icmp ult i64 %at.next, %whole
  br i1 %more, label %vectors, label %seen.all
seen.all:
  %packed = bitcast <{lanes} x i1> %seen.next to i{lanes}
  %found = icmp ne i{lanes} %packed, 0
  br i1 %found, label %yes, label %rest
rest:
  %first = phi i64 [0, %entry], [%whole, %seen.all]
  br label %check
check:
  %one = phi i64 [%first, %rest], [%one.next, %next]
  %left = icmp ult i64 %one, %count
  br i1 %left, label %look, label %no
look:
  %place = getelementptr {kind}, ptr %row, i64 %one
  %value = load {kind}, ptr %place
  %its.size = and {kind} %value, %mask
  %its.over = icmp ugt {kind} %its.size, %limit
  br i1 %its.over, label %yes, label %next
next:
  %one.next = add i64 %one, 1
  br label %check
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def _by_width(widths: Sequence[int]) -> str:
    cases = " ".join(f"i64 {bits}, label %w{bits}" for bits in widths)
    blocks = "".join(
        f"w{bits}:\n  %found{bits} = call i1 @sj_check_row_{bits}(ptr %row, i64 %count, i64 %mask, "
        f"i64 %limit)\n  br label %checked\n"
        for bits in widths
    )
    values = ", ".join(f"[%found{bits}, %w{bits}]" for bits in widths)
    return (
        f"  switch i64 %bits, label %w{widths[0]} [ {cases} ]\n{blocks}"
        f"checked:\n  %found = phi i1 {values}\n"
    )


_CHECK = f"""
define internal i1 @sj_check(ptr %address, ptr %words) nounwind {{
entry:
{abi.load("%bits", "i64", "%words", 0)}{abi.load("%mask", "i64", "%words", 8)}\
{abi.load("%limit", "i64", "%words", 16)}{abi.load("%count", "i64", "%words", 24)}\
{abi.load("%rows", "i64", "%words", 32)}{abi.load("%naxes", "i64", "%words", 40)}\
{abi.field("%axes", "%words", 56)}\
  br label %one
one:
  %number = phi i64 [0, %entry], [%number.next, %next]
  %left = icmp ult i64 %number, %rows
  br i1 %left, label %locate, label %no
locate:
  br label %axis
axis:                                    ; the innermost comes first
  %at = phi i64 [0, %locate], [%at.next, %within]
  %rest = phi i64 [%number, %locate], [%rest.next, %within]
  %row = phi ptr [%address, %locate], [%further, %within]
  %more = icmp ult i64 %at, %naxes
  br i1 %more, label %within, label %look
within:
  %axis.p = getelementptr [2 x i64], ptr %axes, i64 %at
  %size = load i64, ptr %axis.p
{abi.load("%by", "i64", "%axis.p", 8)}\
  %index = urem i64 %rest, %size
  %rest.next = udiv i64 %rest, %size
  %offset = mul i64 %index, %by
  %further = getelementptr i8, ptr %row, i64 %offset
  %at.next = add i64 %at, 1
  br label %axis
look:
{_by_width(_WIDTHS)}\
  br i1 %found, label %yes, label %next
next:
  %number.next = add i64 %number, 1
  br label %one
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
