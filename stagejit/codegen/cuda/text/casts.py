"""Conversions between element types in CUDA C++.

Input: the opcode of a cast, an expression, two scalar types. Output: an expression. Invariant:
rounded once, to nearest even; floats become integers that saturate, NaN becomes 0.

Note [Casts of casts]: `(u64(i32(in[at])) < 20)` could begin with a cast to a function type, one
parameter of which is called `in`. Compilers have to see that it does not; g++ refuses it.
"""

from __future__ import annotations

import re

from stagejit.codegen.cuda.text.types import LOOSE, Expr, c_type, signed_type
from stagejit.codegen.ir.nodes import Type

_CAST_OF_ELEMENT = re.compile(r"^([iu]\d+)\((\w+\[\D)")


def converted(opcode: str, a: Expr, of: Type, to: Type) -> Expr:
    """`opcode` of `a`."""
    if opcode == "bitcast":
        return _bits(a, of, to)
    if opcode in ("fptosi", "fptoui"):
        return _to_integer(opcode == "fptosi", a, of, to)
    if opcode in ("sitofp", "uitofp"):
        return _from_integer(opcode == "sitofp", a, of, to)
    if opcode in ("fptrunc", "fpext"):
        return _float(a, of, to)
    if opcode == "trunc" and to.elem == "i1":
        return Expr(f"({a.inside(LOOSE - 1)} & 1) != 0", LOOSE)
    if opcode == "sext":
        a = signed(a, of)
    return _cast(to, a)


def _cast(to: Type, a: Expr) -> Expr:
    """See Note [Casts of casts]."""
    text = _CAST_OF_ELEMENT.sub(r"static_cast<\1>(\2", a.text)
    return Expr(f"{c_type(to)}({text})")


def signed(a: Expr, type: Type) -> Expr:
    """An integer with its sign; True is -1."""
    if type.elem == "i1":
        return Expr(f"-i32({a})", LOOSE)
    return Expr(a.bare) if a.is_const else Expr(f"{signed_type(type)}({a})")


def _float(a: Expr, of: Type, to: Type) -> Expr:
    if to.bits == 16:
        return Expr(f"to_{to.elem}({a})")
    wide = Expr(f"to_float({a})") if of.bits == 16 else a
    return wide if of.bits == 16 and to.elem == "f32" else Expr(f"{c_type(to)}({wide})")


def _to_integer(signed: bool, a: Expr, of: Type, to: Type) -> Expr:
    wide = Expr(f"to_float({a})") if of.bits == 16 else a
    if to.elem == "i1":
        test = "<= -1" if signed else ">= 1"
        return Expr(f"{wide.inside(LOOSE - 1)} {test}", LOOSE)
    return Expr(f"{c_type(to)}(saturated<{'i' if signed else 'u'}{to.bits}>({wide}))")


def _from_integer(with_sign: bool, a: Expr, of: Type, to: Type) -> Expr:
    number = signed(a, of) if with_sign else a
    if to.bits > 16:
        return _cast(to, number)
    if of.bits < 64:  # exact in f64
        return Expr(f"to_{to.elem}(double({number}))")
    kind = "i64" if with_sign else "u64"
    return Expr(f"to_{to.elem}(odd_double({kind}({number})))")


def _bits(a: Expr, of: Type, to: Type) -> Expr:
    if of == to:
        return a
    integer = bits_of(a, of)
    if to.bits == 16 and to.is_float:
        return Expr(f"{c_type(to)}{{{integer}}}")
    if to.is_float:
        function = "__uint_as_float" if to.bits == 32 else "__longlong_as_double"
        inner = integer if to.bits == 32 else Expr(f"i64({integer})")
        return Expr(f"{function}({inner})")
    return integer


def bits_of(a: Expr, type: Type) -> Expr:
    """A scalar as an unsigned integer of its width."""
    if not type.is_float:
        return a
    if type.bits == 16:
        return Expr(f"{a.inside(0)}.bits")
    if type.bits == 32:
        return Expr(f"__float_as_uint({a})")
    return Expr(f"u64(__double_as_longlong({a}))")
