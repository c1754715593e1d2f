"""Arithmetic and vector ops of the loop-nest IR as LLVM IR.

Input: one pure op with bound operands. Output: the operand that holds its result. Invariant: only
instructions and intrinsics that the target has instructions for, so that no kernel calls a
function; what an old CPU lacks (fused multiply-add, rounding, scaling) is written out here.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.cpu.llvm.byte_lanes import shuffled
from stagejit.codegen.cpu.llvm.casts import cast
from stagejit.codegen.cpu.llvm.dots import dot_bytes
from stagejit.codegen.cpu.llvm.lookups import lookup
from stagejit.codegen.cpu.llvm.text import Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import I1, I32, Op, Type
from stagejit.codegen.ir.rules import CASTS
from stagejit.codegen.ir.strides import end_to_end
from stagejit.errors import InternalError

# Results of these are no denormals: kernels run where the CPU makes them zeros.
_FLUSHING = frozenset(("fadd", "fsub", "fmul", "fdiv", "fma", "sqrt"))


def lower_pure(e: Emitter, op: Op) -> Ref:
    """The result of an op without side effects."""
    lowering = _LOWERINGS.get(op.opcode)
    if lowering is None:
        raise InternalError(f"no LLVM lowering for op `{op.opcode}`", step="llvm")
    return lowering(e, op, [e.ref(operand) for operand in op.operands], op.results[0].type)


def _instruction(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    return e.binary(op.opcode, *args)


def _intrinsic(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    return e.call(op.opcode, result, args)


def _zero_flagged(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    """An intrinsic that takes a second, constant operand."""
    return e.call(op.opcode, result, [*args, "i1 false"])


def _cast(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    made = op.operands[0].op
    flushed = made is not None and made.opcode in _FLUSHING
    return cast(e, op.opcode, args[0], result, flushed=flushed)


# -------------------------------------------------------------------- arithmetic


def _fneg(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    if result.elem == "bf16":
        return e.binary("xor", args[0], e.const(-0.0, result))
    return e.op(f"fneg {args[0]}", result)


def _fmin(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    predicate = "olt" if op.opcode == "fmin" else "ogt"
    return e.select(e.compare(predicate, args[0], args[1]), args[0], args[1])


def _ieee_extremum(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    """IEEE 754-2019 minimum and maximum: NaN propagates, -0 < +0. LLVM's own lowering for x86
    moves operands about with blends, five operations where three will do."""
    least = op.opcode == "fminimum"
    if not e.target.is_x86:
        return e.call("minimum" if least else "maximum", result, args)
    if not result.lanes:
        register = result.with_lanes(128 // result.bits)
        text = f"insertelement {type_text(register)} poison"
        wide = [e.op(f"{text}, {arg}, i64 0", register) for arg in args]
        vector = _ieee_extremum(e, op, wide, register)
        return e.op(f"extractelement {vector}, i64 0", result)
    found = _by_registers(e, args, lambda a, b: _range_or_nan(e, a, b, least=least))
    return found or _extremum_both_ways(e, *args, least=least)


def _range_or_nan(e: Emitter, a: Ref, b: Ref, *, least: bool) -> Ref:
    """`vrange` orders zeros, but prefers numbers to NaN."""
    # Low half of the immediate: 0 minimum, 1 maximum; high half, 1: the sign of what is chosen.
    chosen = ["i32 4" if least else "i32 5", a]
    unordered, total = e.compare("uno", a, b), e.binary("fadd", a, b)
    return e.select(unordered, total, _avx512(e, "range", a, b, *chosen))


def _avx512(e: Emitter, name: str, a: Ref, *args: Ref | str) -> Ref:
    """An instruction of AVX-512 on whole registers, with all lanes on."""
    type, bits = a.type, a.type.lanes * a.type.bits
    kind = "ps" if type.elem == "f32" else "pd"
    rounding = ["i32 4"] if bits == 512 else []  # the current mode
    every = f"i{max(type.lanes, 8)} -1"
    return e.call(f"x86.avx512.mask.{name}.{kind}.{bits}", type, [a, *args, every, *rounding], [])


def _extremum_both_ways(e: Emitter, a: Ref, b: Ref, *, least: bool) -> Ref:
    """x86's minimum and maximum give the second operand if both are zeros or one is NaN. Done both
    ways, the results differ then only: `or` takes the sign of either zero and stays NaN; for the
    maximum, the difference is subtracted from that, which gives +0 where zeros differ."""
    predicate = "olt" if least else "ogt"
    one, other = (e.select(e.compare(predicate, x, y), x, y) for x, y in ((a, b), (b, a)))
    first, second = e.bits(one), e.bits(other)
    if least:
        return e.cast("bitcast", e.binary("or", first, second), a.type)
    differs = e.binary("xor", first, second)
    either = e.cast("bitcast", e.binary("or", first, differs), a.type)
    return e.binary("fsub", either, e.cast("bitcast", differs, a.type))


def _with_sign(e: Emitter, a: Ref, sign: Ref) -> Ref:
    """On the bits. LLVM moves its own intrinsic through roundings, and then takes the sign from a
    number of another width, which it has to convert by a function of the compiler's library."""
    magnitude = e.binary("and", e.bits(a), ~a.type.sign)
    upper = e.binary("and", e.bits(sign), a.type.sign)
    return e.cast("bitcast", e.binary("or", magnitude, upper), a.type)


def _umulh(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    wide = Type(f"i{2 * result.bits}", result.lanes)
    a, b = (e.op(f"zext {arg} to {type_text(wide)}", wide) for arg in args)
    product = e.op(f"mul {a}, {b.text}", wide)
    shift = f"splat (i{2 * result.bits} {result.bits})" if result.lanes else str(result.bits)
    upper = e.op(f"lshr {product}, {shift}", wide)
    return e.op(f"trunc {upper} to {type_text(result)}", result)


def _fma(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    a, b, c = args
    if e.target.has_fma:
        return e.call("fma", result, args)
    if not op.attrs.get("exact"):
        return e.binary("fadd", e.binary("fmul", a, b), c)
    return _fma_in_f64(e, a, b, c) if result.elem == "f32" else _fma_compensated(e, a, b, c)


def _fma_in_f64(e: Emitter, a: Ref, b: Ref, c: Ref) -> Ref:
    """The product of two f32 is exact in f64."""
    x, y, z = (e.cast("fpext", arg, arg.type.with_elem("f64")) for arg in (a, b, c))
    return e.cast("fptrunc", e.binary("fadd", e.binary("fmul", x, y), z), a.type)


def _fma_compensated(e: Emitter, a: Ref, b: Ref, c: Ref) -> Ref:
    """Dekker's exact product and Knuth's exact sum; splitting overflows above 2^996."""
    product = e.binary("fmul", a, b)
    (ah, al), (bh, bl) = _halves(e, a), _halves(e, b)
    error = e.binary("fsub", e.binary("fmul", ah, bh), product)
    for x, y in ((ah, bl), (al, bh), (al, bl)):
        error = e.binary("fadd", error, e.binary("fmul", x, y))
    total = e.binary("fadd", product, c)
    shadow = e.binary("fsub", total, product)
    lost = e.binary(
        "fadd",
        e.binary("fsub", product, e.binary("fsub", total, shadow)),
        e.binary("fsub", c, shadow),
    )
    correction = e.binary("fadd", lost, error)
    nothing = e.compare("oeq", correction, 0.0)  # adding it would lose the sign of -0
    return e.select(nothing, total, e.binary("fadd", total, correction))


def _halves(e: Emitter, a: Ref) -> tuple[Ref, Ref]:
    """Upper 26 and lower 27 bits of an f64."""
    bits = e.binary("and", e.bits(a), ~((1 << 27) - 1))
    high = e.cast("bitcast", bits, a.type)
    return high, e.binary("fsub", a, high)


def _rounded(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    if op.opcode == "trunc" and not result.is_float:
        return _cast(e, op, args, result)
    if not e.target.is_x86 or e.target.has("sse4.1"):
        return _intrinsic(e, op, args, result)
    # Without a rounding instruction: adding 2^mantissa drops the fraction bits, to nearest even.
    (a,), anchor = args, e.const(2.0**result.mantissa, result)
    magnitude = e.call("fabs", result, [a])
    near = e.binary("fsub", e.binary("fadd", magnitude, anchor), anchor)
    near = _with_sign(e, near, a)
    if op.opcode != "roundeven":
        near = _directed(e, op.opcode, a, near)
    near = _with_sign(e, near, a)
    return e.select(e.compare("olt", magnitude, anchor), near, a)


def _directed(e: Emitter, opcode: str, a: Ref, near: Ref) -> Ref:
    one = e.const(1.0, a.type)
    if opcode == "trunc":
        over = e.compare("ogt", *(e.call("fabs", a.type, [x]) for x in (near, a)))
        step = _with_sign(e, one, a)
        return e.select(over, e.binary("fsub", near, step), near)
    if opcode == "floor":
        return e.select(e.compare("ogt", near, a), e.binary("fsub", near, one), near)
    return e.select(e.compare("olt", near, a), e.binary("fadd", near, one), near)


# -------------------------------------------------------------------- scaling by powers of two


def _scalef(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    found = _by_registers(e, args, lambda a, n: _avx512(e, "scalef", a, n, e.const(0.0, a.type)))
    return found or _scale_by_exponent_bits(e, *args)


def _by_registers(
    e: Emitter, args: list[Ref], instruction: Callable[[Ref, Ref], Ref]
) -> Ref | None:
    """What an instruction of AVX-512 gives, register by register; None where there is none."""
    nbits, widest = args[0].type.lanes * args[0].type.bits, 8 * e.target.vector_nbytes
    if not e.target.has_avx512 or (nbits not in (128, 256) and (nbits == 0 or nbits % widest)):
        return None
    if nbits <= widest:
        return instruction(*args)
    parts = list(map(instruction, *(_registers(e, arg) for arg in args)))
    return end_to_end(e.shuffle, parts, parts[0].type.lanes)


def _registers(e: Emitter, a: Ref) -> list[Ref]:
    """A long vector in parts of a register."""
    lanes = 8 * e.target.vector_nbytes // a.type.bits
    starts = range(0, a.type.lanes, lanes)
    return [e.shuffle(a, None, range(start, start + lanes)) for start in starts]


def _scale_by_exponent_bits(e: Emitter, a: Ref, n: Ref) -> Ref:
    """Two exact factors of half the exponent each, so the product rounds once."""
    bias, mantissa = a.type.bias, a.type.mantissa
    limit = 2.0 * bias - 2
    low = e.select(e.compare("olt", n, -limit), e.const(-limit, n.type), n)
    clamped = e.select(e.compare("ogt", low, limit), e.const(limit, n.type), low)
    # Adding it leaves the integer in the low bits: vector f64 has no cheap conversion.
    magic = e.const(1.5 * 2.0**mantissa, a.type)
    moved = e.binary("fadd", clamped, magic)
    anchor = e.bits(magic)
    exponent = e.binary("sub", e.bits(moved), anchor)
    half = e.binary("ashr", exponent, 1)
    rest = e.binary("sub", exponent, half)
    for part in (half, rest):
        bits = e.binary("shl", e.binary("add", part, bias), mantissa)
        a = e.binary("fmul", a, e.cast("bitcast", bits, a.type))
    return a


# -------------------------------------------------------------------- vectors


def _reduce(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    name, a = op.attrs["op"], args[0]
    if name not in ("fadd", "fmul"):
        return e.call(f"vector.reduce.{name}", result, [a], [a.type])
    neutral = -0.0 if name == "fadd" else 1.0
    if not e.target.is_x86:
        return _by_halves(e, name, a, neutral)
    start = e.const(neutral, result)
    return e.call(f"vector.reduce.{name}", result, [start, a], [a.type], flags="reassoc ")


def _by_halves(e: Emitter, name: str, a: Ref, neutral: float) -> Ref:
    """The lower half of the lanes meets the upper one, until one is left: the order in which LLVM
    reduces on x86. On ARM it would add neighbours, and round otherwise."""
    lanes = 1 << (a.type.lanes - 1).bit_length()
    if lanes != a.type.lanes:
        a = e.shuffle(a, e.const(neutral, a.type), range(lanes))
    while lanes > 1:
        lanes //= 2
        low, high = (e.shuffle(a, None, range(at, at + lanes)) for at in (0, lanes))
        a = e.binary(name, low, high)
    return e.op(f"extractelement {a}, i64 0", a.type.scalar)


def _mask_below(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    index, limit = op.operands
    lanes = result.lanes
    if isinstance(index.const, int) and isinstance(limit.const, int):
        return constant_mask(limit.const - index.const, lanes)
    # The number of active lanes, clamped to [0, lanes], against the lane numbers in the narrowest
    # type whose vector still fills a register: one broadcast and one comparison.
    count = args[1] if index.const == 0 else e.binary("sub", args[1], args[0])
    count = e.call("smax", count.type, [count, e.const(0, count.type)])
    count = e.call("smin", count.type, [count, e.const(lanes, count.type)])
    if not lanes:
        return e.compare("sgt", count, 0)
    elem = I32 if lanes <= 16 else Type("i16") if lanes <= 32 or lanes > 127 else Type("i8")
    narrow = e.splat(e.cast("trunc", count, elem), lanes)
    return e.compare("sgt", narrow, e.lane_ids(narrow.type))


def constant_mask(active: int, lanes: int) -> Ref:
    """A literal mask with the first `active` of `lanes` lanes on."""
    if active <= 0 or active >= lanes:
        value = "true" if active > 0 else "false"
        return Ref(I1.with_lanes(lanes), f"splat (i1 {value})" if lanes else value)
    items = ", ".join("i1 true" if k < active else "i1 false" for k in range(lanes))
    return Ref(I1.with_lanes(lanes), f"<{items}>")


def _shuffle(e: Emitter, op: Op, args: list[Ref], result: Type) -> Ref:
    """LLVM looks at all shuffles that lead to one together, but not across a fence, which is there
    for floats and costs nothing."""
    found = shuffled(e, args[0], args[1] if len(args) > 1 else None, op.attrs["lanes"])
    is_fenced = op.attrs.get("ends", False) and result.elem in ("f32", "f64")
    return e.call("arithmetic.fence", result, [found]) if is_fenced else found


_LOWERINGS: dict[str, Callable[[Emitter, Op, list[Ref], Type], Ref]] = {
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "and", "or", "xor", "shl",
                     "lshr", "ashr", "fadd", "fsub", "fmul", "fdiv"), _instruction),
    **dict.fromkeys(("fabs", "sqrt", "ctpop", "bitreverse", "smin", "smax", "umin", "umax"),
                    _intrinsic),
    **dict.fromkeys(("ctlz", "cttz", "abs"), _zero_flagged),
    **dict.fromkeys(("floor", "ceil", "trunc", "roundeven"), _rounded),
    **dict.fromkeys(("fmin", "fmax"), _fmin),
    **dict.fromkeys(("fminimum", "fmaximum"), _ieee_extremum),
    **dict.fromkeys(("fcmp", "icmp"),
                    lambda e, op, args, result: e.compare(op.attrs["predicate"], *args)),
    "dot_bytes": lambda e, op, args, result: dot_bytes(e, op.attrs["signed"], *args),
    "fneg": _fneg, "umulh": _umulh, "fma": _fma, "scalef": _scalef, "reduce": _reduce,
    "mask_below": _mask_below, "copysign": lambda e, op, args, result: _with_sign(e, *args),
    "select": lambda e, op, args, result: e.select(*args),
    "splat": lambda e, op, args, result: e.splat(args[0], result.lanes),
    "lane_ids": lambda e, op, args, result: e.lane_ids(result),
    "extract": lambda e, op, args, result: e.op(
        f"extractelement {args[0]}, i64 {op.attrs['lane']}", result),
    "insert": lambda e, op, args, result: e.op(
        f"insertelement {args[0]}, {args[1]}, i64 {op.attrs['lane']}", result),
    "lookup": lambda e, op, args, result: lookup(e, *args),
    "shuffle": _shuffle,
}  # fmt: skip
