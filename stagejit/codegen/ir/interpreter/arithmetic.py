"""What each op without side effects gives, on NumPy arrays.

Input: an op and the values of its operands. Output: the value of its result. A value is an array
with one row for each thread, or a single row where all threads have the same; rows of vectors have
one element for each lane. Integers are signed arrays, `i1` is a bool.

Invariant: results are those of the builder's docstrings, bit for bit, with two freedoms: which NaN
an operation gives, and what fills lanes that are undefined (all bits on). Sums of floats over lanes
go by halves, as LLVM's for x86 do; other targets may take another tree.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from stagejit.codegen.ir.interpreter.rounding import (
    Array,
    from_integers,
    fused,
    narrowed,
    to_integers,
)
from stagejit.codegen.ir.nodes import Op, Type

DTYPES: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
DIVISIONS = frozenset(("sdiv", "udiv", "srem", "urem"))
Evaluate = Callable[..., Array]


def numbers(values: Sequence[int | float], type: Type) -> Array:
    """Constants of a type: floats are rounded to it, integers wrap."""
    if type.elem in ("f16", "bf16"):
        return narrowed(np.array(values, np.float64), DTYPES[type.elem])
    if type.is_float:
        return np.array(values, np.float64).astype(DTYPES[type.elem])
    if type.elem == "i1":
        return np.array([bool(int(v) & 1) for v in values], np.bool_)
    mask = (1 << type.bits) - 1
    return np.array([int(v) & mask for v in values], f"u{type.bits // 8}").view(DTYPES[type.elem])


def filled(shape: tuple[int, ...], dtype: Any, byte: int) -> Array:
    """An array all of whose bytes are `byte`."""
    octets: Array = np.full((*shape, np.dtype(dtype).itemsize), byte, np.uint8).view(dtype)
    return octets[..., 0]


def columns(a: Array, like: Type) -> Array:
    """A value of threads against vectors: one column."""
    return a[:, None] if like.lanes and a.ndim == 1 else a


def evaluate(op: Op, args: list[Array], *, has_fma: bool) -> Array:
    """The result of an op without side effects. has_fma: as in `Target`."""
    opcode, result = op.opcode, op.results[0].type
    if opcode == "trunc" and result.is_float:
        return np.trunc(args[0])
    if opcode == "fma":
        a, b, c = args
        return fused(a, b, c) if has_fma or op.attrs.get("exact") else a * b + c
    simple = _SIMPLE.get(opcode)
    value: Array = simple(*args) if simple else _TYPED[opcode](op, result, *args)
    return value


def faults(op: Op, args: list[Array]) -> Array:
    """Where a division traps."""
    zero: Array = args[1] == 0
    return _traps(*args) if op.opcode in ("sdiv", "srem") else zero


# -------------------------------------------------------------------- integers


def _unsigned(a: Array) -> Array:
    bits: Array = a.view(f"u{a.dtype.itemsize}")
    return bits


def _signed(a: Array) -> Array:
    bits: Array = a.view(f"i{a.dtype.itemsize}")
    return bits


def _on_unsigned(fn: Evaluate) -> Evaluate:
    return lambda *args: _signed(fn(*map(_unsigned, args)))


def _traps(a: Array, b: Array) -> Array:
    bad: Array = (b == 0) | ((a == np.iinfo(a.dtype).min) & (b == -1))
    return bad


def _divided(a: Array, b: Array) -> Array:
    """Towards zero; where that traps, anything."""
    b = np.where(_traps(a, b), b.dtype.type(1), b)
    quotient: Array = a // b
    below: Array = (quotient * b != a) & ((a < 0) != (b < 0))
    towards_zero: Array = quotient + below
    return towards_zero


def _remainder(a: Array, b: Array) -> Array:
    rest: Array = a - _divided(a, b) * b
    return rest


def _nonzero(b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(1), b)


def _upper_product(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = a.astype(np.uint64) * b.astype(np.uint64)
        return (wide >> np.uint64(bits)).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    ah, al, bh, bl = a >> half, a & low, b >> half, b & low
    middle = ah * bl + ((al * bl) >> half)
    other = al * bh + (middle & low)
    upper: Array = ah * bh + (middle >> half) + (other >> half)
    return upper


def _smeared(a: Array) -> Array:
    """All bits below the first that is set."""
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * a.dtype.itemsize:
            a = a | (a >> a.dtype.type(shift))
    return a


def _count(a: Array) -> Array:
    return np.bitwise_count(a).astype(a.dtype)


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _bits_reversed(a: Array) -> Array:
    octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
    reversed_bits: Array = np.ascontiguousarray(_REVERSED[octets[..., ::-1]]).view(a.dtype)
    return reversed_bits[..., 0]


def _comparable(a: Array, predicate: str) -> Array:
    if predicate.startswith("u"):
        return _unsigned(a)
    return -a.view(np.int8) if a.dtype == np.bool_ else a


def _icmp(op: Op, result: Type, a: Array, b: Array) -> Array:
    predicate = op.attrs["predicate"]
    compare: Evaluate = getattr(operator, predicate[-2:])
    if predicate in ("eq", "ne"):
        return compare(a, b)
    return compare(_comparable(a, predicate), _comparable(b, predicate))


# -------------------------------------------------------------------- floats


def _fcmp(op: Op, result: Type, a: Array, b: Array) -> Array:
    predicate = op.attrs["predicate"]
    if predicate == "uno":
        return np.isnan(a) | np.isnan(b)
    compare: Evaluate = getattr(operator, predicate[-2:])
    return compare(a, b)  # NumPy's are ordered, but for `!=`


def _negated(a: Array) -> Array:
    bits = _unsigned(a)
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    negated: Array = (bits ^ sign).view(a.dtype)
    return negated


def _chosen(first: Array, a: Array, b: Array) -> Array:
    return np.where(first, a, b)


def _extremum(a: Array, b: Array, first: Array, of_equals: Evaluate) -> Array:
    """Equal numbers differ by the sign of zero only."""
    equal = of_equals(_unsigned(a), _unsigned(b)).view(a.dtype)
    chosen = np.where(first, a, np.where(a == b, equal, b))
    return np.where(np.isnan(a) | np.isnan(b), a + b, chosen)


def _scaled(a: Array, exponent: Array) -> Array:
    steps = np.where(np.isnan(exponent), 0, np.clip(exponent, -5000, 5000)).astype(np.int32)
    return np.where(np.isnan(exponent), exponent, np.ldexp(a, steps))


# -------------------------------------------------------------------- casts


def _trunc(op: Op, result: Type, a: Array) -> Array:
    return (a & 1).astype(np.bool_) if result.elem == "i1" else a.astype(DTYPES[result.elem])


def _zext(op: Op, result: Type, a: Array) -> Array:
    return _unsigned(a).astype(DTYPES[result.elem])


def _sext(op: Op, result: Type, a: Array) -> Array:
    wide = a.astype(DTYPES[result.elem])
    return -wide if a.dtype == np.bool_ else wide


def _float_to_int(op: Op, result: Type, a: Array) -> Array:
    made = to_integers(a, result.bits, signed=op.opcode == "fptosi")
    return made.astype(DTYPES[result.elem])


def _int_to_float(op: Op, result: Type, a: Array) -> Array:
    if op.opcode == "uitofp":
        a = _unsigned(a)
    elif a.dtype == np.bool_:
        a = -a.view(np.int8)
    return from_integers(a, DTYPES[result.elem])


def _dot_bytes(op: Op, result: Type, a: Array, b: Array, c: Array) -> Array:
    parts = [
        np.ascontiguousarray(x)[..., None].view(np.int8 if signed else np.uint8).astype(np.int32)
        for x, signed in zip((a, b), op.attrs["signed"], strict=True)
    ]
    total: Array = c + (parts[0] * parts[1]).sum(-1, dtype=np.int32)
    return total


# -------------------------------------------------------------------- vectors


def _select(op: Op, result: Type, on: Array, a: Array, b: Array) -> Array:
    return np.where(columns(on, result), a, b)


def _splat(op: Op, result: Type, a: Array) -> Array:
    return a.repeat(result.lanes).reshape(-1, result.lanes)


def _lane_ids(op: Op, result: Type) -> Array:
    return numbers(range(result.lanes), result)[None]


def _insert(op: Op, result: Type, a: Array, scalar: Array) -> Array:
    made = np.repeat(a, len(scalar) if len(a) == 1 else 1, axis=0)
    made[:, op.attrs["lane"]] = scalar
    return made


def _shuffle(op: Op, result: Type, *args: Array) -> Array:
    threads = max(map(len, args))
    rows = [a.repeat(threads // len(a), axis=0) for a in args]  # one or all
    whole = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
    lanes = np.array(op.attrs["lanes"])
    made = whole[:, lanes]
    made[:, lanes < 0] = filled((1, 1), whole.dtype, 0xFF)
    return made


def _lookup(op: Op, result: Type, index: Array, *table: Array) -> Array:
    threads = max(map(len, (index, *table)))
    whole = np.concatenate([a.repeat(threads // len(a), axis=0) for a in table], axis=1)
    at = index.repeat(threads // len(index), axis=0).view(f"u{result.bits // 8}")
    return np.take_along_axis(whole, np.minimum(at, whole.shape[1] - 1).astype(np.int64), axis=1)


# What reductions are called on bools, of which true is -1 where it has a sign.
_OF_MASKS = {"add": "xor", "mul": "and", "smin": "or", "smax": "and", "umin": "and", "umax": "or"}
_NEUTRAL = {"fadd": -0.0, "fmul": 1.0, "fminimum": np.inf, "fmaximum": -np.inf}


def _reduce(op: Op, result: Type, a: Array) -> Array:
    name = op.attrs["op"]
    if not result.is_float:
        name = _OF_MASKS.get(name, name) if result.elem == "i1" else name
        return reduce(REDUCTIONS[name], a.T)
    lanes = 1 << (a.shape[1] - 1).bit_length()
    rest = np.full((len(a), lanes - a.shape[1]), _NEUTRAL[name], a.dtype)
    a = np.concatenate([a, rest], axis=1)
    while lanes > 1:
        lanes //= 2
        a = REDUCTIONS[name](a[:, :lanes], a[:, lanes:])
    return a[:, 0]


def _mask_below(op: Op, result: Type, index: Array, limit: Array) -> Array:
    count = columns(limit - index, result)
    return count > np.arange(result.lanes) if result.lanes else count > 0


_SIMPLE: dict[str, Evaluate] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "fadd": operator.add, "fsub": operator.sub,
    "fmul": operator.mul, "fdiv": operator.truediv, "sdiv": _divided, "srem": _remainder,
    "udiv": _on_unsigned(lambda a, b: a // _nonzero(b)),
    "urem": _on_unsigned(lambda a, b: a % _nonzero(b)),
    "shl": _on_unsigned(operator.lshift), "lshr": _on_unsigned(operator.rshift),
    "ashr": operator.rshift, "smin": np.minimum, "smax": np.maximum,
    "umin": _on_unsigned(np.minimum), "umax": _on_unsigned(np.maximum),
    "umulh": _on_unsigned(_upper_product), "ctpop": _on_unsigned(_count),
    "ctlz": _on_unsigned(lambda a: _count(~_smeared(a))),
    "cttz": _on_unsigned(lambda a: _count(~a & (a - a.dtype.type(1)))),
    "bitreverse": _on_unsigned(_bits_reversed), "abs": np.abs, "fneg": _negated, "fabs": np.abs,
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "roundeven": np.rint,
    "copysign": np.copysign, "scalef": _scaled,
    "fmin": lambda a, b: _chosen(a < b, a, b), "fmax": lambda a, b: _chosen(a > b, a, b),
    "fminimum": lambda a, b: _extremum(a, b, a < b, np.bitwise_or),
    "fmaximum": lambda a, b: _extremum(a, b, a > b, np.bitwise_and),
}  # fmt: skip

# What `reduce` and atomics do to two elements.
REDUCTIONS = {name: _SIMPLE[name] for name in (
    "add", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax", *_NEUTRAL)}  # fmt: skip

_TYPED: dict[str, Evaluate] = {
    "const": lambda op, result: np.broadcast_to(
        numbers([op.results[0].const], result), (1, result.lanes) if result.lanes else (1,)
    ),
    "dot_bytes": _dot_bytes, "icmp": _icmp, "fcmp": _fcmp, "trunc": _trunc, "zext": _zext,
    "sext": _sext,
    "fptrunc": lambda op, result, a: narrowed(a, DTYPES[result.elem]),
    "fpext": lambda op, result, a: a.astype(DTYPES[result.elem]),
    "fptosi": _float_to_int, "fptoui": _float_to_int, "sitofp": _int_to_float,
    "uitofp": _int_to_float, "bitcast": lambda op, result, a: a.view(DTYPES[result.elem]),
    "select": _select, "splat": _splat, "lane_ids": _lane_ids,
    "extract": lambda op, result, a: a[:, op.attrs["lane"]], "insert": _insert,
    "shuffle": _shuffle, "lookup": _lookup, "reduce": _reduce, "mask_below": _mask_below,
}  # fmt: skip
