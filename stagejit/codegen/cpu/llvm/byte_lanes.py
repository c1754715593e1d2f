"""Bytes that change places across a register of 64: by instructions that are named here.

Input: one or two vectors of bytes, and which lane of both each lane of the result is. Output: that
vector. Invariant: of LLVM's `shufflevector` there are only such ones of 64 bytes as take each byte
from its own 128 bits, or from two registers; see Note [Bytes across].

Note [Bytes across]: LLVM (22.1; others were not tried) never ends legalizing a `shufflevector` of
64 bytes of one register, on a processor with AVX-512, of which some cross 128 bits and that
arithmetic surrounds: `(x ^ 1)` with each byte twice, or `a[:, None] ^ b[:, None]` of four columns,
which it makes one of. It takes the shuffle apart in two, moves the arithmetic between or behind
them, and begins again. An instruction that it does not take apart does it where there is one
(AVX512_VBMI); elsewhere the shuffle stands between two assembly statements without instructions,
across which nothing moves. What goes from 64 bytes to fewer, and words of 16 bits and more, end.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.cpu.llvm.text import Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import Type

_ALL = Type("i8", 64)
_PART = 16  # bytes in 128 bits


def shuffled(e: Emitter, a: Ref, b: Ref | None, lanes: Sequence[int]) -> Ref:
    """`shufflevector a, b, lanes`, of any type."""
    is_bytes = a.type.elem == _ALL.elem and e.target.has_avx512
    if not is_bytes or e.target.has_short_vectors or len(lanes) < _ALL.lanes:
        return e.shuffle(a, b, lanes)
    parts = [lanes[at : at + _ALL.lanes] for at in range(0, len(lanes), _ALL.lanes)]
    if not any(_crosses(a, part) for part in parts):
        return e.shuffle(a, b, lanes)
    made = [_register(e, a, b, part) for part in parts]
    while len(made) > 1:  # twice as many lanes each time
        pairs = zip(made[::2], made[1::2], strict=True)
        made = [e.shuffle(low, high, range(2 * low.type.lanes)) for low, high in pairs]
    return made[0]


def _crosses(a: Ref, lanes: Sequence[int]) -> bool:
    """Whether all are of one register, and some of other 128 bits of it than they go to."""
    wanted = [(lane, at) for at, lane in enumerate(lanes) if lane >= 0]
    room = min(a.type.lanes, _ALL.lanes)
    if len({lane // room for lane, _ in wanted}) != 1:
        return False
    return any(lane % room // _PART != at // _PART for lane, at in wanted)


def _register(e: Emitter, a: Ref, b: Ref | None, lanes: Sequence[int]) -> Ref:
    """64 lanes of both."""
    if not _crosses(a, lanes):
        return e.shuffle(a, b, lanes)
    room = min(a.type.lanes, _ALL.lanes)
    number = next(lane for lane in lanes if lane >= 0) // room
    places = [lane % room if lane >= 0 else -1 for lane in lanes]
    here = number * room % a.type.lanes
    source = a if number * room < a.type.lanes or b is None else b
    if source.type != _ALL:
        kept = [here + lane if lane < room else -1 for lane in range(_ALL.lanes)]
        source = e.shuffle(source, None, kept)
    if e.target.has("avx512vbmi"):
        index = ", ".join(f"i8 {place}" if place >= 0 else "i8 poison" for place in places)
        wanted = Ref(_ALL, f"<{index}>")
        return e.call("x86.avx512.permvar.qi.512", _ALL, [source, wanted], [])
    return _fenced(e, e.shuffle(_fenced(e, source), None, places))


def _fenced(e: Emitter, a: Ref) -> Ref:
    """The same, but LLVM does not know that."""
    return e.op(f'call {type_text(a.type)} asm "", "=v,0"({a})', a.type)
