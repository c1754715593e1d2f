"""Where windows start that index vectors name.

Input: a component of an index vector in a register. Output: the start, clamped, and whether it was
inside. Invariant: every address formed of a clamped start is inside the operand.
"""

from __future__ import annotations

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.types import DType, i32, i64


def start_of(b: Builder, raw: Register, dtype: DType) -> Register:
    """A component of an index vector as a signed integer: i64, or i32 for lanes where that holds
    it. Unsigned numbers beyond i64 are beyond every array."""
    if dtype.bits == 64 and not dtype.is_signed:
        raw = b.binary("umin", raw, (1 << 63) - 1)
    narrow = raw.type.lanes > 0 and dtype.bits + (not dtype.is_signed) <= 32
    return vmath.convert(b, raw, dtype, i32 if narrow else i64)


def clamped(b: Builder, start: Register, room: int) -> Register:
    """`start` within [0, room)."""
    last = min(room - 1, (1 << (start.type.bits - 1)) - 1)
    return b.binary("smax", b.binary("smin", start, last), 0)


def is_inside(b: Builder, start: Register, room: int) -> Register:
    """Whether 0 <= start < room."""
    if room < 1 << (start.type.bits - 1):
        return b.compare("lt", start, room, signed=False)
    return b.compare("ge", start, 0)
