"""Elements of small tables by number: shuffles of registers by indices.

Input: a vector of indices, and the registers of a table, which have at least as many lanes. Output:
the element at each index. Invariant: only what `Target.table_nbytes` promises; an index beyond
finds any element.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.cpu.llvm.text import Emitter, Ref
from stagejit.codegen.ir.nodes import Type
from stagejit.codegen.ir.strides import end_to_end

_OF_TWO = {8: "qi", 16: "hi", 32: "d", 64: "q"}  # as LLVM names what shuffles two registers
_OF_ONE = {8: "qi", 16: "hi"}  # and one, where that takes less
_PART = Type("i8", 16)  # what shuffles of bytes go through at most, without AVX-512
_WORDS = Type("i32", 8)


def lookup(e: Emitter, index: Ref, *table: Ref) -> Ref:
    """Of each lane of `index`, an integer as wide as an element, that element of the table."""
    found = _found(e, index, [e.bits(part) for part in table])
    return e.cast("bitcast", found, table[0].type.with_lanes(index.type.lanes))


def _found(e: Emitter, index: Ref, table: Sequence[Ref]) -> Ref:
    target, bits, lanes = e.target, index.type.bits, index.type.lanes
    if target.has_avx512 and bits == 8 and not target.has("avx512vbmi"):
        return _in_pairs(e, index, table)
    width = table[0].type.lanes
    if target.has_avx512:
        found = _by_two(e, _widened(e, index, width), table)
    elif bits == 8:
        found = _by_bytes(e, _widened(e, index, width), table)
    else:
        row, where = (_widened(e, each, _WORDS.lanes) for each in (table[0], index))
        found = e.call("x86.avx2.permd", _WORDS, [row, where], [])
    return _widened(e, found, lanes)


def _by_two(e: Emitter, index: Ref, table: Sequence[Ref]) -> Ref:
    """AVX-512: of two registers at a time, and then of what the first and the last two give."""
    type = index.type
    size, bits = type.lanes * type.bits, type.bits
    if len(table) == 1 and bits in _OF_ONE:
        return e.call(f"x86.avx512.permvar.{_OF_ONE[bits]}.{size}", type, [*table, index], [])
    name, pairs = f"x86.avx512.vpermi2var.{_OF_TWO[bits]}.{size}", (table[:2], table[2:])
    found = [e.call(name, type, [pair[0], index, pair[-1]], []) for pair in pairs if pair]
    if len(found) == 1:
        return found[0]
    return e.select(e.compare("ult", index, 2 * type.lanes), *found)


def _in_pairs(e: Emitter, index: Ref, table: Sequence[Ref]) -> Ref:
    """AVX-512 that shuffles no bytes: of the pair at half the index the lower or the upper one."""
    lanes, room = index.type.lanes, table[0].type.lanes // 2
    if lanes > room:
        halves = [e.shuffle(index, None, range(at, at + room)) for at in (0, room)]
        return end_to_end(e.shuffle, [_in_pairs(e, half, table) for half in halves], room)
    pairs = Type("i16", lanes)
    index = e.cast("zext", index, pairs)
    at = _widened(e, e.binary("lshr", index, 1), room)
    found = _by_two(e, at, [e.cast("bitcast", part, pairs.with_lanes(room)) for part in table])
    upper = e.binary("shl", e.binary("and", index, 1), 3)
    both = e.binary("lshr", _widened(e, found, lanes), upper)
    return e.cast("trunc", both, pairs.with_elem("i8"))


def _by_bytes(e: Emitter, index: Ref, table: Sequence[Ref]) -> Ref:
    """One instruction: SSSE3's for a table of one register, NEON's for up to four."""
    if e.target.is_x86:
        return e.call("x86.ssse3.pshuf.b.128", _PART, [*table, index], [])
    return e.call(f"aarch64.neon.tbl{len(table)}", _PART, [*table, index], [_PART])


def _widened(e: Emitter, a: Ref, lanes: int) -> Ref:
    """With so many lanes, the first ones; more hold anything."""
    here = a.type.lanes
    if lanes == here:
        return a
    return e.shuffle(a, None, [lane if lane < here else -1 for lane in range(lanes)])
