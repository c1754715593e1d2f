"""Marks of what a kernel wrote to its scratch, when verifying: a byte for each element of a `once`
buffer, behind the scratch that the kernel uses itself.

Input: accesses to `once` buffers. Output: LLVM IR that keeps the marks, and a flag that is on where
an element is read before it is written, or written twice. Invariant: without `verify` there are
none of these bytes.
"""

from __future__ import annotations

from dataclasses import replace

from stagejit.codegen.cpu.llvm.text import Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import I8, I64, Buffer, Function, Type

_LINE_NBYTES = 64


def shadows(function: Function) -> dict[Buffer, int]:
    """Where in scratch the marks of each buffer begin, in bytes."""
    found, at = {}, _lines(function.scratch_nbytes)
    for buffer in function.buffers:
        if buffer.once:
            found[buffer] = at
            at += _marks_nbytes(buffer)
    return found


def with_shadows(function: Function) -> Function:
    """A function as its callers see it, if it is lowered with `verify`: it takes more scratch."""
    marks = sum(map(_marks_nbytes, shadows(function)))
    return replace(function, scratch_nbytes=_lines(function.scratch_nbytes) + marks)


def _marks_nbytes(buffer: Buffer) -> int:
    """A masked access may reach over the end of the marks by less than a vector."""
    return _lines(buffer.size) + _LINE_NBYTES


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_NBYTES) * _LINE_NBYTES


def clear_marks(e: Emitter, marks: Ref, size: int) -> None:
    """Takes all marks of a buffer away."""
    loop, done, before = e.fresh_label("clear"), e.fresh_label("cleared"), e.block
    e.jump(loop)
    e.start(loop)
    at = Ref(I64, e.fresh())
    following = Ref(I64, e.fresh())
    e.line(f"{at.text} = phi i64 [ 0, %{before} ], [ {following.text}, %{loop} ]")
    text = type_text(I8.with_lanes(_LINE_NBYTES))
    e.line(f"store {text} zeroinitializer, {e.pointer(marks, I8, at)}, align 1")
    e.line(f"{following.text} = add i64 {at.text}, {_LINE_NBYTES}")
    e.branch(e.compare("ult", following, _lines(size)), loop, done)
    e.start(done)


def marks_broken(
    e: Emitter, marks: Ref, access: Type, index: Ref, mask: Ref | None, *, writes: bool
) -> Ref:
    """Whether consecutive elements from `index` on break the rule; a write leaves its marks."""
    type = I8.with_lanes(access.lanes)
    pointer = e.pointer(marks, I8, index)
    known = e.op(f"load {type_text(type)}, {pointer}, align 1", type)
    broken = e.compare("ne" if writes else "eq", known, 0)
    if mask is not None:
        broken = e.binary("and", broken, mask)
    if writes:
        new = e.const(1, type) if mask is None else e.select(mask, e.const(1, type), known)
        e.line(f"store {new}, {pointer}, align 1")
    return e.any(broken)
