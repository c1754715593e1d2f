"""What operations on constants give: loop bounds of fixed shapes, the sizes of what is left over.

Input: an opcode or predicate of the loop-nest IR, two 64-bit integers. Output: the result, None
where it is left to the machine. Invariant: what the machine would compute, wrapped to 64 bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "smin": min, "smax": max,
}  # fmt: skip
_DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "udiv": operator.floordiv, "sdiv": operator.floordiv, "urem": operator.mod,
    "srem": operator.mod,
}  # fmt: skip
# The second, or the first, operands that leave the other one as it is.
_SECOND = {**dict.fromkeys(("add", "sub", "shl", "lshr", "ashr", "or", "xor"), 0),
           **dict.fromkeys(("mul", "sdiv", "udiv"), 1)}  # fmt: skip
_FIRST = {"add": 0, "or": 0, "xor": 0, "mul": 1}


def simplified(
    opcode: str, x: float | None, y: float | None
) -> int | Literal["first", "second"] | None:
    """`opcode x, y` of operands of which None is not known: a number, or which of them it is.
    Divisions fold where the dividend is not negative and the divisor is positive."""
    if isinstance(x, int) and isinstance(y, int):
        a, b = wrapped(x), wrapped(y)
        if opcode in _ARITHMETIC:
            return wrapped(_ARITHMETIC[opcode](a, b))
        if opcode in _DIVISIONS and a >= 0 and b > 0:
            return _DIVISIONS[opcode](a, b)
    if y is not None and y == _SECOND.get(opcode):
        return "first"
    if x is not None and x == _FIRST.get(opcode):
        return "second"
    if (opcode == "mul" and 0 in (x, y)) or (opcode in ("srem", "urem") and y == 1):
        return 0
    return None


def of_positive(opcode: str, x: float | None, y: float | None, bits: int) -> int | None:
    """A sum or a product of positive numbers of so many bits that is one, too."""
    if opcode not in ("add", "mul"):
        return None
    a, b = positive(x, bits), positive(y, bits)
    return None if a is None or b is None else positive(_ARITHMETIC[opcode](a, b), bits)


def positive(number: float | None, bits: int) -> int | None:
    """An integer that has so many bits, and needs none for a sign."""
    is_one = isinstance(number, int) and not isinstance(number, bool)
    return int(number) if is_one and 0 <= number < 1 << (bits - 1) else None  # type: ignore


def folded_comparison(predicate: str, a: int, b: int) -> bool | None:
    """`icmp predicate a, b`; None for unsigned order."""
    if predicate.startswith("u"):
        return None
    compare: Callable[[int, int], bool] = getattr(operator, predicate[-2:])
    return compare(wrapped(a), wrapped(b))


def wrapped(number: int) -> int:
    """A number as 64 bits have it, with a sign."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
