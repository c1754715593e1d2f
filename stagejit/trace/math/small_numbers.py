"""Conversions of numbers of 8 bits and less, which are stored in bytes (`types.Storage`).

Input: a `convert_element_type` from a small float, or from or to an integer of 2 or 4 bits. Output:
integer operations that take the byte apart. Invariant: every value is converted exactly, NaN and
signed zeros too; no intermediate is a subnormal float, which XLA's threads flush to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Value
from stagejit.trace.complex.parts import as_complex, is_complex
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site
from stagejit.types import f32, i8, storage_of, u8, u32

_BITS = {"int2": 2, "int4": 4, "uint2": 2, "uint4": 4}
_F32_MANTISSA, _F32_BIAS = 23, 127


@record
class _Format:
    """A float: a sign, an exponent, and `mantissa` bits. bias: of the exponent."""

    bits: int
    mantissa: int
    bias: int


_FLOATS = {
    "float4_e2m1fn": _Format(4, 1, 1),
    "float8_e3m4": _Format(8, 4, 3),
    "float8_e4m3": _Format(8, 3, 7),
    "float8_e4m3b11fnuz": _Format(8, 3, 11),
    "float8_e4m3fn": _Format(8, 3, 7),
    "float8_e4m3fnuz": _Format(8, 3, 8),
    "float8_e5m2": _Format(8, 2, 15),
    "float8_e5m2fnuz": _Format(8, 2, 16),
}


def rule_of(site: Site) -> Callable[[Emitter, Value], Value] | None:
    """The conversion that an equation is, where it is one of ours."""
    if site.primitive != "convert_element_type":
        return None
    made = _conversion(site)
    if made is None or not is_complex(site.outputs[0]):
        return made
    return lambda emit, x: as_complex(emit, made(emit, x))


def _conversion(site: Site) -> Callable[[Emitter, Value], Value] | None:
    """The same, to the real part of a complex number."""
    source, target = (str(aval.dtype) for aval in (site.inputs[0], site.outputs[0]))
    to = site.result.dtype
    if source in _FLOATS and to.is_float:
        return lambda emit, x: emit.convert(_float(emit, source, x), to)
    wide = storage_of(site.inputs[0].dtype).dtype
    if not (wide.is_integer and (source in _BITS or target in _BITS)) or source in _BYTES:
        return None
    if target in _BITS:
        return lambda emit, x: _cut(emit, target, x)
    native = to.is_integer or to.is_float
    return (lambda emit, x: emit.convert(x, to)) if native and target not in _BYTES else None


_BYTES = frozenset({*_FLOATS, "float8_e8m0fnu"})


def _float(emit: Emitter, name: str, x: Value) -> Value:
    """The value as f32: the bits of a normal number move to their place, a subnormal one is a
    multiple of the least."""
    format = _FLOATS[name]
    word = emit.convert(x, u32)

    def constant(value: int) -> Value:
        return emit.full(value, word.type)

    signs = 1 << (format.bits - 1)
    size = emit.map("and", word, constant(signs - 1))
    sign = emit.map(
        "shift_left", emit.map("and", word, constant(signs)), constant(32 - format.bits)
    )
    moved = emit.map("shift_left", size, constant(_F32_MANTISSA - format.mantissa))
    rebased = constant((_F32_BIAS - format.bias) << _F32_MANTISSA)
    normal = emit.map("add", moved, rebased)
    count = emit.convert(size, f32)
    least = emit.full(2.0 ** (1 - format.bias - format.mantissa), count.type)
    small = emit.bitcast(emit.map("mul", count, least), u32)
    is_small = emit.map("lt", size, constant(1 << format.mantissa))
    bits = emit.map("or", emit.map("select", is_small, small, normal), sign)
    for byte, special in _specials(name):
        bits = emit.map("select", emit.map("eq", word, constant(byte)), constant(special), bits)
    return emit.bitcast(bits, f32)


def _specials(name: str) -> list[tuple[int, int]]:
    """Bytes that are no number, and the bits of the f32 that they mean."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    every = np.arange(1 << _FLOATS[name].bits, dtype=np.uint8)
    values = every.view(dtype).astype(np.float32)
    words: Any = values.view(np.uint32)
    return [(int(b), int(words[b])) for b in every if not np.isfinite(values[b])]


def _cut(emit: Emitter, target: str, x: Value) -> Value:
    """The lowest bits of an integer, with the sign that they have."""
    wide = i8 if target.startswith("i") else u8
    rest = emit.full(8 - _BITS[target], emit.convert(x, wide).type)
    high = emit.map("shift_left", emit.convert(x, wide), rest)
    shift = "shift_right_arithmetic" if wide is i8 else "shift_right_logical"
    return emit.map(shift, high, rest)
