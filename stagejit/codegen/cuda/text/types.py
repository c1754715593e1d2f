"""Types and constants of the loop-nest IR in CUDA C++.

Input: a type, a number. Output: text. Invariant: every text is an expression of just the C++ type
that `c_type` names, except for `Expr.bare`.

Note [Unsigned]: integers are signless in the IR and wrap, and C++ only has unsigned ones that wrap.
So registers are `u8` to `u64`, and what looks at a sign converts first: `i64(at) < i64(size)`. What
is narrower than `int` is promoted to it, and converted back after each op.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

import numpy as np

from stagejit.base.records import record
from stagejit.codegen.ir.interpreter.arithmetic import numbers
from stagejit.codegen.ir.nodes import Type

_NAMES = {
    "i1": "bool", "i8": "u8", "i16": "u16", "i32": "u32", "i64": "u64", "f16": "f16",
    "bf16": "bf16", "f32": "float", "f64": "double",
}  # fmt: skip

# How tightly an expression binds: what stands alone, products, sums, all else.
ATOM, PRODUCT, SUM, LOOSE = range(4)


_TAIL = re.compile(r"0+p")
_SIMPLE = re.compile(r"\w+(\[\d+\])?")


@record
class Expr:
    """An expression. bare: of an integer constant, without its type, for where an operand beside it
    has one."""

    text: str
    level: int = ATOM
    bare: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def is_const(self) -> bool:
        return bool(self.bare)

    @property
    def is_simple(self) -> bool:
        """A constant, a name or a lane of what has one: costs nothing where it is written twice."""
        return self.is_const or bool(_SIMPLE.fullmatch(self.text))

    def inside(self, level: int) -> str:
        """As an operand of what binds so tightly."""
        return self.text if self.level <= level else f"({self.text})"


def c_type(type: Type) -> str:
    name = _NAMES[type.elem]
    return f"vec<{name}, {type.lanes}>" if type.lanes else name


def signed_type(type: Type) -> str:
    return f"i{type.bits}"


def signed_number(number: float, type: Type) -> int:
    """A constant as the number that its bits are with a sign."""
    half = 1 << (type.bits - 1)
    return (int(number) + half) % (2 * half) - half


def constant(number: float, type: Type) -> Expr:
    """A scalar constant."""
    if type.elem == "i1":
        text = "true" if int(number) & 1 else "false"
        return Expr(text, bare=text)
    if type.is_float:
        return Expr(_float_text(number, type))
    bare = _int_text(signed_number(number, type))
    return Expr(f"{c_type(type)}({bare})", bare=bare)


def _int_text(number: int) -> str:
    if number == -(1 << 63):
        return "(-9223372036854775807ll - 1)"
    if number == -(1 << 31):
        return "(-2147483647 - 1)"
    return f"{number}ll" if not -(1 << 31) <= number < 1 << 31 else str(number)


def _float_text(number: float, type: Type) -> str:
    """Decimal where that is exact, so that no compiler has to round it."""
    rounded = numbers([number], type)
    bits = int(rounded.view(f"u{type.bits // 8}")[0])
    if type.bits == 16:
        return f"{_NAMES[type.elem]}{{{bits:#06x}}}"
    value = float(rounded[0])
    if not math.isfinite(value):
        function = "__uint_as_float" if type.elem == "f32" else "__longlong_as_double"
        suffix = "u" if type.elem == "f32" else "ll"
        shown = bits if type.elem == "f32" else int(rounded.view(np.int64)[0])
        return f"{function}({shown:#x}{suffix})"
    text = repr(value)
    exact = Decimal(text) == Decimal(value) and len(text) < 12
    suffix = "f" if type.elem == "f32" else ""
    text = f"{text if exact else _TAIL.sub('p', value.hex())}{suffix}"
    return f"({text})" if text.startswith("-") else text


def access_nbytes(access: Type, alignment: int) -> int:
    """Bytes that each access to a vector moves at once: at most 16, by its alignment and size."""
    nbytes = access.lanes * access.bits // 8
    return min(16, alignment, nbytes & -nbytes)
