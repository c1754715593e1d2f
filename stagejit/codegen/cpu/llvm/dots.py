"""Products of four bytes each, added to words of 32 bits, as LLVM IR.

Input: vectors of words, or words. Output: the sums. Invariant: signs that a target has no
instruction for are not asked of it; see `cpu/instructions.py`.
"""

from __future__ import annotations

from stagejit.codegen.cpu.instructions import byte_signs
from stagejit.codegen.cpu.llvm.text import Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import I8, I32
from stagejit.errors import InternalError


def dot_bytes(e: Emitter, signed: tuple[bool, bool], a: Ref, b: Ref, c: Ref) -> Ref:
    """c + a . b, where bytes are signed or not."""
    if not c.type.lanes:  # in the first lane of the shortest vector
        a, b, c = (_first_of_four(e, each) for each in (a, b, c))
        return e.op(f"extractelement {dot_bytes(e, signed, a, b, c)}, i64 0", I32)
    if signed == (True, False):  # instructions know the other order only
        a, b, signed = b, a, (False, True)
    if signed not in byte_signs(e.target):
        raise InternalError(f"no products of bytes with signs {signed}", step="llvm")
    if e.target.is_x86:
        return e.call(_x86_name(signed, 32 * c.type.lanes), c.type, [c, a, b], [])
    octets = I8.with_lanes(4 * c.type.lanes)
    name = {(True, True): "sdot", (False, False): "udot", (False, True): "usdot"}[signed]
    words = [e.cast("bitcast", each, octets) for each in (a, b)]
    return e.call(f"aarch64.neon.{name}", c.type, [c, *words], [c.type, octets])


def _x86_name(signed: tuple[bool, bool], bits: int) -> str:
    if signed == (False, True):
        return f"x86.avx512.vpdpbusd.{bits}"
    kind = "ss" if signed == (True, True) else "uu"
    return f"x86.{'avx10' if bits == 512 else 'avx2'}.vpdpb{kind}d.{bits}"


def _first_of_four(e: Emitter, a: Ref) -> Ref:
    vector = a.type.with_lanes(4)
    return e.op(f"insertelement {type_text(vector)} zeroinitializer, {a}, i64 0", vector)
