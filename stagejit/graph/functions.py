"""The scalar functions of `map`, `reduce` and `cumulative`.

Input: a function's name and operand element types. Output: its arity, parameters and result element
type. Invariant: names and meanings are those of JAX's primitives, except `select` (predicate,
on_true, on_false) and `clamp` (low, x, high); meanings, as NumPy, are in `meaning/scalar.py`.

Note [Integer arithmetic]: integers wrap. `div` truncates towards zero, x / 0 is -1 (all bits set),
`rem` has the sign of the dividend and x rem 0 is x; the least integer divided by -1 is itself.
A shift by the width or more gives 0, or copies of the sign for the arithmetic right shift.

Note [Float comparison]: `max` and `min` give NaN if either operand is NaN; `ne` is true for NaN,
all other comparisons are false. `sign` keeps a zero's sign. `round` is `away` (halves away from
zero) or `even`. `threefry2x32` gives one `word` of two, for two words of key and two of counter.

Note [Conversion]: float to integer truncates towards zero, saturates, and takes NaN to 0; integer
to integer wraps; anything to bool is `x != 0`; to a narrower float rounds to nearest even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagejit.base.records import record
from stagejit.types import DType, bool_

_FLOAT = frozenset({"float"})
_NUMBER = frozenset({"int", "uint", "float"})
_INTEGER = frozenset({"int", "uint"})
_BITS = frozenset({"int", "uint", "bool"})
_ANY = frozenset({"int", "uint", "float", "bool"})


@record
class MapFunction:
    """arity: number of operands. kinds: element kinds that they may have. predicate: gives bool.
    params: names of its static parameters. bits: the only width that they may have, 0 for any."""

    arity: int
    kinds: frozenset[str]
    predicate: bool = False
    params: tuple[str, ...] = ()
    bits: int = 0

    def result_dtype(self, name: str, operands: Sequence[DType]) -> DType:
        """The element type of the result. Raises ValueError for operands that do not fit."""
        if len(operands) != self.arity:
            raise ValueError(f"{name} takes {self.arity} operands, not {len(operands)}")
        values = operands[1:] if name == "select" else operands
        if name == "select" and operands[0] is not bool_:
            raise ValueError(f"select takes a bool predicate, not {operands[0]}")
        if any(dtype is not values[0] for dtype in values):
            raise ValueError(f"{name} takes operands of one type, not {list(values)}")
        if values[0].kind not in self.kinds or self.bits not in (0, values[0].bits):
            raise ValueError(f"{name} is not defined for {values[0]}")
        return bool_ if self.predicate else values[0]


def _table(
    names: str, arity: int, kinds: frozenset[str], predicate: bool = False
) -> dict[str, MapFunction]:
    return {name: MapFunction(arity, kinds, predicate) for name in names.split()}


MAP_FUNCTIONS: dict[str, MapFunction] = {
    **_table("neg sign abs square", 1, _NUMBER),
    **_table(
        "floor ceil exp exp2 expm1 log log1p logistic tanh sin cos tan asin acos atan sinh cosh"
        " asinh acosh atanh sqrt rsqrt cbrt erf erfc erf_inv",
        1,
        _FLOAT,
    ),
    **_table("is_finite", 1, _FLOAT, predicate=True),
    **_table("not", 1, _BITS),
    **_table("population_count clz", 1, _INTEGER),
    "integer_pow": MapFunction(1, _NUMBER, params=("y",)),
    "round": MapFunction(1, _FLOAT, params=("rounding",)),
    "threefry2x32": MapFunction(4, frozenset({"uint"}), params=("word",), bits=32),
    **_table("add mul max min", 2, _ANY),
    **_table("sub div rem", 2, _NUMBER),
    **_table("pow nextafter atan2", 2, _FLOAT),
    **_table("and or xor", 2, _BITS),
    **_table("shift_left shift_right_arithmetic shift_right_logical", 2, _INTEGER),
    **_table("eq ne lt le gt ge", 2, _ANY, predicate=True),
    **_table("select", 3, _ANY),
    **_table("clamp", 3, _NUMBER),
}

# A bool adds as `or` and multiplies as `and`; its reductions are spelled with and, or, xor only.
REDUCE_FUNCTIONS: dict[str, frozenset[str]] = {
    "add": _NUMBER, "mul": _NUMBER, "max": _NUMBER, "min": _NUMBER,
    "and": _BITS, "or": _BITS, "xor": _BITS, "argmax": _ANY, "argmin": _ANY,
}  # fmt: skip

CUMULATIVE_FUNCTIONS: dict[str, frozenset[str]] = {
    "add": _NUMBER, "mul": _NUMBER, "max": _NUMBER, "min": _NUMBER, "logaddexp": _FLOAT,
}  # fmt: skip

WINDOW_FUNCTIONS: dict[str, frozenset[str]] = {
    "add": _NUMBER, "mul": _NUMBER, "max": _NUMBER, "min": _NUMBER,
    "and": _BITS, "or": _BITS, "xor": _BITS, "first_max": _NUMBER, "first_min": _NUMBER,
}  # fmt: skip

SCATTER_FUNCTIONS: dict[str, frozenset[str]] = {
    "set": _ANY, "add": _NUMBER, "mul": _NUMBER, "min": _ANY, "max": _ANY,
}  # fmt: skip


def identity(fn: str, dtype: DType) -> Any:
    """The neutral element of a reduction: what it gives for no elements at all."""
    if fn in ("add", "or", "xor"):
        return False if dtype is bool_ else 0
    if fn == "mul":
        return 1
    if fn == "and":
        return True if dtype is bool_ else np.invert(np.zeros((), dtype.numpy))
    if dtype.is_float:
        return -np.inf if fn == "max" else np.inf
    info = np.iinfo(dtype.numpy)
    return info.min if fn == "max" else info.max


def neutral(fn: str, dtype: DType) -> int | float | bool:
    """The same as a number that changes no result, whatever is combined with it: of float sums it
    is -0, for 0 + -0 is 0."""
    if fn == "logaddexp":
        return -np.inf
    if fn == "add" and dtype.is_float:
        return -0.0
    number: int | float | bool = np.asarray(identity(fn, dtype)).item()
    return float(number) if dtype.is_float else number


_TRANSCENDENTAL = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "erf_inv", "pow",
    "atan2",
})  # fmt: skip
TRANSCENDENTAL_FLOPS = 16.0
_FLOPS = {
    **dict.fromkeys(_TRANSCENDENTAL, TRANSCENDENTAL_FLOPS),
    **dict.fromkeys(("div", "rem", "sqrt", "rsqrt", "integer_pow"), 4.0),
    "threefry2x32": 100.0,  # 20 rounds of an addition, two shifts and two more
}


def element_flops(fn: str) -> float:
    """What one element costs, in additions, on no processor in particular."""
    return _FLOPS.get(fn, 1.0)
