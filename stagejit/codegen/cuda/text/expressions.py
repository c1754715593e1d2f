"""Arithmetic of the loop-nest IR as CUDA C++.

Input: an op without side effects, an expression for each operand, all of one lane. Output: an
expression of that lane of the result, in which each operand stands once. Invariant: bit for bit
what the interpreter gives; nothing is contracted (kernels are compiled with `-fmad=false`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.codegen.cuda.text.casts import converted, signed
from stagejit.codegen.cuda.text.types import ATOM, LOOSE, PRODUCT, SUM, Expr, c_type
from stagejit.codegen.ir.nodes import Op, Type
from stagejit.codegen.ir.rules import CASTS

_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|",
            "xor": "^", "shl": "<<", "lshr": ">>"}  # fmt: skip
_LEVELS = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def scalar(op: Op, args: Sequence[Expr]) -> Expr:
    """One lane of an op's result."""
    of, to = op.operands[0].type.scalar, op.results[0].type.scalar
    if op.opcode in CASTS and not (op.opcode == "trunc" and to.is_float):
        return converted(op.opcode, args[0], of, to)
    if op.opcode in ("icmp", "fcmp"):
        return _compare(op.attrs["predicate"], args[0], args[1], of)
    if op.opcode == "select":
        on, a, b = (arg.inside(SUM) for arg in args)
        return Expr(f"{on} ? {a} : {b}", LOOSE)
    return combined(op.opcode, args, to)


def combined(opcode: str, args: Sequence[Expr], type: Type) -> Expr:
    """`opcode` of operands that have the type of its result."""
    if type.is_float:
        return _of_floats(opcode, args, type)
    if type.elem == "i1":
        return _of_masks(opcode, args)
    return _of_integers(opcode, args, type)


def infix(symbol: str, a: Expr | str, b: Expr | str) -> Expr:
    """`a symbol b` with the parentheses that it needs."""
    a, b = (x if isinstance(x, Expr) else Expr(x) for x in (a, b))
    level = _LEVELS.get(symbol, LOOSE)
    left = a.inside(level if level < LOOSE else SUM)
    return Expr(f"{left} {symbol} {b.inside(level - 1)}", level)  # a - (b - c) keeps them


def called(function: str, *args: Expr) -> Expr:
    return Expr(f"{function}({', '.join(map(str, args))})")


# -------------------------------------------------------------------- integers


def _of_integers(opcode: str, args: Sequence[Expr], type: Type) -> Expr:
    if opcode in ("sdiv", "srem", "ashr"):
        symbol = {"sdiv": "/", "srem": "%", "ashr": ">>"}[opcode]
        right = args[1] if opcode == "ashr" else signed(args[1], type)
        if opcode == "ashr" and right.is_const:
            right = Expr(right.bare)
        left = Expr(f"{'i' + str(type.bits)}({args[0]})")
        return Expr(f"{c_type(type)}({infix(symbol, left, right)})")
    symbol = _SYMBOLS.get(opcode.removeprefix("u"), _SYMBOLS.get(opcode, ""))
    if not symbol:
        return called(_FUNCTIONS[opcode], *args)
    a, b = args
    if opcode == "add" and b.bare.startswith("-"):
        symbol, b = "-", Expr(b.bare[1:], bare=b.bare[1:])
    if type.bits == 32 or type.bits == 64:
        if b.is_const and not a.is_const:
            b = Expr(b.bare)
        elif a.is_const and not b.is_const and symbol not in ("<<", ">>"):
            a = Expr(a.bare)
        return infix(symbol, a, b)
    wide = Expr(f"u32({a})") if opcode in ("mul", "shl") else a  # two u16 overflow an `int`
    return Expr(f"{c_type(type)}({infix(symbol, wide, b)})")


_FUNCTIONS = {
    "smin": "smin", "smax": "smax", "umin": "umin", "umax": "umax", "umulh": "upper_product",
    "ctpop": "count_ones", "ctlz": "leading_zeros", "cttz": "trailing_zeros",
    "bitreverse": "reversed_bits", "abs": "absolute",
}  # fmt: skip


def _of_masks(opcode: str, args: Sequence[Expr]) -> Expr:
    a, b = args
    if opcode == "xor":
        if "true" in (a.text, b.text):
            other = b if a.text == "true" else a
            return Expr(f"!{other.inside(ATOM)}")
        return infix("!=", a, b)
    return infix({"and": "&&", "or": "||"}[_OF_MASKS.get(opcode, opcode)], a, b)


# What reductions of masks do; True is -1 where it has a sign.
_OF_MASKS = {"mul": "and", "smin": "or", "smax": "and", "umin": "and", "umax": "or"}


def _compare(predicate: str, a: Expr, b: Expr, type: Type) -> Expr:
    if type.is_float:
        if predicate == "uno":
            return called("unordered", a, b)
        return infix(_COMPARED[predicate[1:]], a, b)
    symbol = _COMPARED[predicate[-2:]]
    if predicate.startswith("s"):
        return infix(symbol, signed(a, type), signed(b, type))
    if type.bits >= 32:
        if b.is_const and not a.is_const:
            b = Expr(b.bare)
        elif a.is_const and not b.is_const:
            a = Expr(a.bare)
    return infix(symbol, a, b)


# -------------------------------------------------------------------- floats


def _of_floats(opcode: str, args: Sequence[Expr], type: Type) -> Expr:
    symbol = _SYMBOLS.get(opcode[1:]) if opcode[0] == "f" else None
    if symbol:
        return infix(symbol, *args)
    if opcode == "fneg":
        if type.bits == 16:
            return Expr(f"{c_type(type)}{{u16({args[0].inside(ATOM)}.bits ^ 0x8000)}}")
        return Expr(f"-{args[0].inside(ATOM)}", LOOSE)
    return called(_of_type(_FLOAT_FUNCTIONS[opcode], type), *args)


# With an f at the end where C has one function for each type.
_FLOAT_FUNCTIONS = {
    "fma": "fma.", "fabs": "fabs.", "sqrt": "sqrt.", "floor": "floor.", "ceil": "ceil.",
    "trunc": "trunc.", "roundeven": "rint.", "copysign": "copysign.", "fmin": "lesser",
    "fmax": "greater", "fminimum": "minimum", "fmaximum": "maximum", "scalef": "scaled",
}  # fmt: skip


def _of_type(name: str, type: Type) -> str:
    return name.replace(".", "f" if type.elem == "f32" else "")


# -------------------------------------------------------------------- lanes


def reduced(opcode: str, lanes: Sequence[Expr], type: Type, name: Callable[[Expr], Expr]) -> Expr:
    """All lanes combined by halves; `name` gives a name to what stands in between."""
    width = 1 << (len(lanes) - 1).bit_length()
    parts = list(lanes)
    if opcode == "add" and type.elem == "i1":
        opcode = "xor"
    while width > 1:
        width //= 2
        pairs = zip(parts[:width], [*parts[width:], *[None] * width], strict=False)
        parts = [a if b is None else combined(opcode, [a, b], type) for a, b in pairs]
        if width > 1:
            parts = [name(part) for part in parts]
    return parts[0]
