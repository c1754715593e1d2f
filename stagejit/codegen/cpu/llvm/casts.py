"""Conversions between element types as LLVM IR, for any lane count and any target.

Input: a cast op of the loop-nest IR. Output: the operand with the converted value. Invariants:
rounding is to nearest even and happens once, float to integer saturates and sends NaN to 0, and no
conversion becomes a call of a compiler support routine (LLVM's own lowering of f64 to a 16-bit
float does).
"""

from __future__ import annotations

from stagejit.codegen.cpu.llvm.text import Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import Type

_DIRECT = ("trunc", "zext", "sext", "bitcast")


def cast(e: Emitter, opcode: str, a: Ref, to: Type, *, flushed: bool = False) -> Ref:
    """The value of `opcode a` in type `to`. flushed: `a` is no denormal."""
    if opcode in _DIRECT:
        return e.cast(opcode, a, to)
    if opcode == "fpext":
        return _extend(e, a, to)
    if opcode == "fptrunc":
        return _truncate(e, a, to, flushed)
    if opcode in ("fptosi", "fptoui"):
        return _float_to_int(e, opcode, a, to)
    return _int_to_float(e, opcode, a, to)


def _f32(a: Ref) -> Type:
    return a.type.with_elem("f32")


def _i32(a: Ref) -> Type:
    return a.type.with_elem("i32")


# -------------------------------------------------------------------- 16-bit floats


def _extend(e: Emitter, a: Ref, to: Type) -> Ref:
    if a.type.elem == "bf16":
        shifted = e.binary("shl", e.cast("zext", e.bits(a), _i32(a)), 16)
        return _extend(e, e.cast("bitcast", shifted, _f32(a)), to)
    if a.type.elem == "f16" and not _has_f16(e):
        return _extend(e, _f16_to_f32(e, a), to)
    if a.type.elem == "f16" and to.elem == "f64":
        return e.cast("fpext", e.cast("fpext", a, _f32(a)), to)
    return e.cast("fpext", a, to)


def _truncate(e: Emitter, a: Ref, to: Type, flushed: bool) -> Ref:
    if a.type.elem == "f64" and to.bits == 16:
        a = _round_to_odd(e, a)
    if to.elem == "bf16":
        return _f32_to_bf16(e, a, flushed)
    if to.elem == "f16" and not _has_f16(e):
        return _f32_to_f16(e, a)
    return e.cast("fptrunc", a, to)


def _has_f16(e: Emitter) -> bool:
    return not e.target.is_x86 or e.target.has("f16c")


def _round_to_odd(e: Emitter, a: Ref) -> Ref:
    """f64 to f32 with the last bit set where inexact, so that rounding again rounds correctly."""
    near = e.cast("fptrunc", a, _f32(a))
    back = e.cast("fpext", near, a.type)
    inexact = e.compare("one", back, a)
    bits = e.bits(near)
    even = e.compare("eq", e.binary("and", bits, 1), 0)
    below = e.compare("olt", *(e.call("fabs", a.type, [x]) for x in (back, a)))
    step = e.select(below, e.const(1, bits.type), -1)
    odd = e.binary("add", bits, e.select(e.binary("and", inexact, even), step, 0))
    return e.cast("bitcast", odd, near.type)


def _f32_to_bf16(e: Emitter, a: Ref, flushed: bool) -> Ref:
    """The CPU's instruction takes denormals for zeros, in whatever mode it is."""
    result = a.type.with_elem("bf16")
    native = e.target.has_avx512 and e.target.has("avx512bf16") and a.type.lanes * 32 >= 128
    if native and flushed:
        vector = f"<{a.type.lanes} x bfloat>"
        narrow = e.op(f"fptrunc {a} to {vector}", result)
        return e.op(f"bitcast {vector} {narrow.text} to {type_text(result)}", result)
    bits = e.bits(a)
    upper = e.binary("lshr", bits, 16)
    bias = e.binary("add", e.binary("and", upper, 1), 0x7FFF)
    rounded = e.binary("lshr", e.binary("add", bits, bias), 16)
    quiet = e.binary("or", upper, 0x40)
    chosen = e.select(e.compare("uno", a, a), quiet, rounded)
    return e.cast("bitcast", e.cast("trunc", chosen, a.type.with_elem("i16")), result)


def _f16_to_f32(e: Emitter, a: Ref) -> Ref:
    """Integer steps only: also right where the CPU treats denormals as zero."""
    half = e.cast("zext", e.bits(a), _i32(a))
    magnitude = e.binary("and", half, 0x7FFF)
    normal = e.binary("add", e.binary("shl", magnitude, 13), 112 << 23)
    special = e.binary("or", e.binary("shl", magnitude, 13), 0x7F800000)
    counted = e.cast("sitofp", magnitude, _f32(a))
    tiny = e.bits(e.binary("fmul", counted, 2.0**-24))
    bits = e.select(e.compare("uge", magnitude, 0x7C00), special, normal)
    bits = e.select(e.compare("ult", magnitude, 0x400), tiny, bits)
    sign = e.binary("shl", e.binary("and", half, 0x8000), 16)
    return e.cast("bitcast", e.binary("or", bits, sign), _f32(a))


def _f32_to_f16(e: Emitter, a: Ref) -> Ref:
    bits = e.bits(a)
    magnitude = e.binary("and", bits, 0x7FFFFFFF)
    odd = e.binary("and", e.binary("lshr", magnitude, 13), 1)
    rebiased = e.binary("add", magnitude, ((15 - 127) << 23) + 0xFFF)
    normal = e.binary("lshr", e.binary("add", rebiased, odd), 13)
    # Adding 0.5 rounds a result below 2^-14 at the bit where binary16's denormals end.
    shifted = e.binary("fadd", e.cast("bitcast", magnitude, a.type), 0.5)
    tiny = e.binary("sub", e.bits(shifted), 0x3F000000)
    chosen = e.select(e.compare("ult", magnitude, 0x38800000), tiny, normal)
    infinite = e.select(e.compare("ugt", magnitude, 0x7F800000), e.const(0x7E00, bits.type), 0x7C00)
    chosen = e.select(e.compare("uge", magnitude, 0x47800000), infinite, chosen)
    sign = e.binary("and", e.binary("lshr", bits, 16), 0x8000)
    narrow = e.cast("trunc", e.binary("or", chosen, sign), a.type.with_elem("i16"))
    return e.cast("bitcast", narrow, a.type.with_elem("f16"))


# -------------------------------------------------------------------- integers


def _float_to_int(e: Emitter, opcode: str, a: Ref, to: Type) -> Ref:
    if a.type.bits == 16:
        a = _extend(e, a, _f32(a))
    signed = opcode == "fptosi"
    low, high = (to.sign, ~to.sign) if signed else (0, (1 << to.bits) - 1)
    if high.bit_length() <= a.type.mantissa + 1:
        return _clamped_to_int(e, a, to, low, high)
    converted = e.cast(opcode, a, to)  # poison out of range, where it is not chosen
    result = e.select(e.compare("oge", a, float(high + 1)), e.const(high, to), converted)
    result = e.select(e.compare("ole", a, float(low)), e.const(low, to), result)
    if signed:
        return e.select(e.compare("uno", a, a), e.const(0, to), result)
    return e.select(e.compare("ord", a, a), result, 0)


def _clamped_to_int(e: Emitter, a: Ref, to: Type, low: int, high: int) -> Ref:
    """Where both bounds are exact in the float type, clamping first needs no fix afterwards."""
    # The order of the operands makes NaN take the constant, which the last select replaces.
    above = e.select(e.compare("ogt", a, float(low)), a, float(low))
    inside = e.select(e.compare("olt", above, float(high)), above, float(high))
    # Through i32 where there is room (i64 for u32): every vector CPU converts to signed 32 bits.
    via = to.with_elem("i32" if high < 2**31 else "i64")
    wide = e.cast("fptosi", inside, via)
    result = e.cast("trunc", wide, to)
    return e.select(e.compare("uno", a, a), e.const(0, to), result)


def _int_to_float(e: Emitter, opcode: str, a: Ref, to: Type) -> Ref:
    if a.type.elem == "i1":
        value = -1.0 if opcode == "sitofp" else 1.0
        return e.select(a, e.const(value, to), 0.0)
    if to.bits == 16:
        # 32 significant bits or fewer are exact in f64; more are rounded to odd on the way.
        wide = _int_to_float(e, opcode, a, to.with_elem("f32" if a.type.bits <= 16 else "f64"))
        if a.type.bits == 64:
            wide = _int64_to_f64_odd(e, opcode, a, wide)
        return _truncate(e, wide, to, flushed=True)
    if a.type.bits < 32:
        wider = "sext" if opcode == "sitofp" else "zext"
        return e.cast("sitofp", e.cast(wider, a, _i32(a)), to)
    return e.cast(opcode, a, to)


def _int64_to_f64_odd(e: Emitter, opcode: str, a: Ref, near: Ref) -> Ref:
    """Marks an inexact conversion in the last bit: dropping bits below 2^12 of a big number, but
    not the fact that they were there, leaves the later rounding to 8 or 11 bits right. The mark is
    2^11, the last of the 53 bits that f64 has for a number from 2^63 on."""
    sticky = e.compare("ne", e.binary("and", a, 0xFFF), 0)
    kept = e.binary("or", e.binary("and", a, ~0xFFF), e.select(sticky, e.const(0x800, a.type), 0))
    signed = opcode == "sitofp"
    magnitude = e.call("abs", a.type, [a, "i1 false"], [a.type]) if signed else a
    big = e.compare("ugt", magnitude, 1 << 53)
    return e.select(big, e.cast(opcode, kept, near.type), near)
