"""Pieces that the vector math functions share: polynomials, clamps, exponents, two-word arithmetic.

Input: `Value`s of f32 or f64, scalar or vector. Output: ops on the builder. Invariant: NaN passes
through every clamp, and nothing here depends on the number of lanes or on the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagejit.codegen.ir.builder import Builder, Operand
from stagejit.codegen.ir.nodes import Value


@dataclass(frozen=True)
class Format:
    """A binary float format, with log(2) and pi cut into words of its precision."""

    elem: str
    bits: int
    mantissa: int  # stored bits
    bias: int
    ln2: tuple[float, float]
    pi: tuple[float, float, float]

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer, which then stands in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def sign_mask(self) -> int:
        return -(1 << (self.bits - 1))


# Each word holds the next 24 or 53 significant bits of the constant.
F32 = Format(
    "f32", 32, 23, 127,
    (0.693147182464599609375, -1.9046542121259336e-09),
    (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15),
)  # fmt: skip
F64 = Format(
    "f64", 64, 52, 1023,
    (0.6931471805599453, 2.3190468138462996e-17),
    (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33),
)  # fmt: skip
LOG2_E = 1.4426950408889634


def format_of(x: Value) -> Format:
    return F32 if x.type.elem == "f32" else F64


def horner(b: Builder, coefficients: Sequence[float], x: Value) -> Value:
    """sum(coefficients[k] x^k)"""
    result: Operand = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, coefficient)
    assert isinstance(result, Value)
    return result


def at_most(b: Builder, x: Value, limit: float) -> Value:
    """min(x, limit); NaN stays."""
    return b.binary("fmin", limit, x)


def at_least(b: Builder, x: Value, limit: float) -> Value:
    """max(x, limit); NaN stays."""
    return b.binary("fmax", limit, x)


def absolute(b: Builder, x: Value) -> Value:
    return b.unary("fabs", x)


def bits_of(b: Builder, x: Value) -> Value:
    return b.cast("bitcast", x, x.type.as_int.elem)


def from_bits(b: Builder, x: Value, elem: str) -> Value:
    return b.cast("bitcast", x, elem)


def is_nan(b: Builder, x: Value) -> Value:
    return b.compare("uno", x, x)


def invert(b: Builder, mask: Value) -> Value:
    return b.arith("xor", mask, 1)


def where_some(
    b: Builder, wanted: Value, rarely: Callable[[], Value], otherwise: Callable[[], Value]
) -> Value:
    """`rarely()` in the lanes that want it; a branch goes past it where none does."""
    some = b.reduce("or", wanted) if wanted.type.lanes else wanted
    rest = otherwise()
    return b.if_(some, lambda: [b.select(wanted, rarely(), rest)], lambda: [rest])[0]


def rounded(b: Builder, x: Value, factor: float, shift: float = 0.0) -> tuple[Value, Value]:
    """The integer nearest to x * factor + shift: as a float, and in the low bits of an integer."""
    magic = format_of(x).magic
    if shift:
        moved = b.fma(x, factor, shift) + magic
    else:
        moved = b.fma(x, factor, magic)
    return moved - magic, bits_of(b, moved)


def power_of_two(b: Builder, low_bits: Value, offset: int, f: Format) -> Value:
    """2^(n + offset) for the n in the low bits, where that is a normal number."""
    exponent = (low_bits << f.mantissa) + ((f.bias + offset) << f.mantissa)
    return from_bits(b, exponent, f.elem)


def flip_sign(b: Builder, x: Value, low_bits: Value) -> Value:
    """-x where the lowest bit of the integer is set."""
    f = format_of(x)
    return from_bits(b, bits_of(b, x) ^ (low_bits << (f.bits - 1)), f.elem)


def copy_sign(b: Builder, magnitude: Operand, sign: Value) -> Value:
    return b.binary("copysign", magnitude, sign)


def widen(b: Builder, x: Value) -> Value:
    return b.cast("fpext", x, "f64")


def narrow(b: Builder, x: Value, elem: str) -> Value:
    return b.cast("fptrunc", x, elem)


# -------------------------------------------------------------------- two-word arithmetic


def fast_two_sum(a: Value, c: Value) -> tuple[Value, Value]:
    """a + c and its rounding error, for |a| >= |c| (Dekker)."""
    total = a + c
    return total, c - (total - a)


def two_product(b: Builder, x: Operand, y: Value) -> tuple[Value, Value]:
    """x * y and its rounding error."""
    product = b.arith("mul", x, y)
    return product, b.fma(x, y, -product, exact=True)


def reciprocal_corrected(
    b: Builder, high: Value, low: Operand, over: Value, over_low: Operand | None = None
) -> Value:
    """(high + low) / (over + over_low) to about half a unit in the last place, one division."""
    inverse = 1.0 / over
    quotient = high * inverse
    residual = b.fma(-quotient, over, high, exact=True) + low
    if over_low is not None:
        residual = residual - quotient * over_low
    return b.fma(residual, inverse, quotient)


INFINITY, NAN = math.inf, math.nan
