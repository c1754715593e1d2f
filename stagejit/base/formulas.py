"""Formulas of integers as text: how the host computes an offset from the scalars that it knows.

Input: operands, or a text that was made here. Output: the text, or its value. Invariant: the text
is a Python expression over names and integers of any size; where a machine integer wraps it says
so, as in `i32(pos + 64)`. Truth is 1 and 0.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stagejit.base.symbolic import Int

_INFIX = {
    "add": "+", "sub": "-", "mul": "*",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and": "and", "or": "or",
}  # fmt: skip
_WIDTHS = {f"{sign}{bits}": (sign, bits) for sign in "iu" for bits in (8, 16, 32, 64)}


def written(fn: str, *operands: Int) -> str:
    """The formula of a function of formulas; `select` and `clamp` take operands as `map` does.

    It is in brackets where it needs them as a part of another one; see `bare`."""
    texts = [_closed(str(operand)) for operand in operands]
    if fn in _INFIX:
        return f"({texts[0]} {_INFIX[fn]} {texts[1]})"
    if fn == "select":
        test, on_true = (t if " if " in t else bare(t) for t in texts[:2])
        return f"({on_true} if {test} else {bare(texts[2])})"
    texts = [bare(text) for text in texts]
    return f"{fn}({', '.join([texts[1], texts[0], texts[2]] if fn == 'clamp' else texts)})"


def bare(text: str) -> str:
    """The formula without brackets around all of it."""
    return text[1:-1] if text.startswith("(") and _closes_last(text[1:]) else text


def renamed(text: str, inputs: Sequence[str]) -> str:
    """The formula with the names of inputs in place of `x0`, `x1`, ..."""
    return re.sub(r"\bx(\d+)\b", lambda found: inputs[int(found[1])], text)


def evaluate(text: str, values: Mapping[str, Int]) -> Any:
    """The value of a formula. Symbolic values go through sums and products only.

    Raises ValueError for what is no formula, KeyError for a name without a value."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as fault:
        raise ValueError(f"not a formula: {text!r}") from fault
    return _value(tree, values)


def names_in(text: str) -> frozenset[str]:
    """The names that a formula reads."""
    nodes = ast.walk(ast.parse(text, mode="eval"))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) - _CALLS.keys()


def wrapped(value: int, dtype: str) -> int:
    """What an integer type of this name makes of a value."""
    sign, bits = _WIDTHS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if sign == "i" and value >> (bits - 1) else value


def remainder(a: int, b: int) -> int:
    """With the sign of the dividend; see `graph.functions`, Note [Integer arithmetic]."""
    return a if b == 0 else (abs(a) % abs(b)) * (-1 if a < 0 else 1)


def quotient(a: int, b: int) -> int:
    """Towards zero."""
    return -1 if b == 0 else abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def _closed(text: str) -> str:
    """In brackets, unless it is one name, number, call or bracket."""
    name, bracket, rest = text.partition("(")
    if text.isidentifier() or text.isdigit():
        return text
    closed = bracket and (not name or name in _CALLS) and _closes_last(rest)
    return text if closed else f"({text})"


def _closes_last(rest: str) -> bool:
    """Whether the bracket that is open before `rest` closes at its end only."""
    depth = 1
    for at, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return at == len(rest) - 1
    return False


def _clamped(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


def _wrapper(dtype: str) -> Callable[[int], int]:
    return lambda value: wrapped(value, dtype)


_CALLS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "clamp": _clamped, "rem": remainder, "div": quotient,
    **{dtype: _wrapper(dtype) for dtype in _WIDTHS},
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def _value(tree: ast.expr, values: Mapping[str, Int]) -> Any:
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not _value(operand, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return int(_COMPARE[type(op)](_value(left, values), _value(right, values)))
        case ast.BoolOp(op=op, values=parts):
            found = [bool(_value(part, values)) for part in parts]
            return int(all(found) if isinstance(op, ast.And) else any(found))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, values) else orelse, values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS:
            return _CALLS[name](*(_value(arg, values) for arg in args))
    raise ValueError(f"not part of a formula: {ast.unparse(tree)}")
