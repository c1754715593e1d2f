"""Intervals of integers through scalar functions.

Input: for each operand the least and the greatest number that it may be. Output: the same of the
result. Invariant: numbers are Python's, which do not wrap; where the result might leave its
element type, it wraps, and may be anything of that type. A bool is 0 or 1.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence

import numpy as np

from stagejit.base.formulas import quotient
from stagejit.types import DType, bool_

Interval = tuple[int, int]  # both ends included

BOOL: Interval = (0, 1)


def whole(dtype: DType) -> Interval:
    """All numbers of an integer type, or of bool."""
    if dtype is bool_:
        return BOOL
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def hull(*parts: Interval) -> Interval:
    """Around all of them."""
    return min(low for low, _ in parts), max(high for _, high in parts)


def meet(a: Interval, b: Interval) -> Interval:
    """What is in both; the low end is above the high one where nothing is."""
    return max(a[0], b[0]), min(a[1], b[1])


def within(a: Interval, b: Interval) -> bool:
    """Whether all of `a` is in `b`."""
    return b[0] <= a[0] and a[1] <= b[1]


def fitting(found: Interval | None, dtype: DType) -> Interval:
    """`found`, or all of the type where it may be left or nothing is known."""
    everything = whole(dtype)
    return found if found is not None and within(found, everything) else everything


def of_function(fn: str, dtype: DType, operands: Sequence[Interval]) -> Interval:
    """Of `fn`, which gives `dtype`, over operands of an integer type or bool."""
    found: Interval | None = None
    if dtype is bool_:
        if fn == "not":
            fn, operands = "eq", (*operands, (0, 0))
        fn = _ON_BOOLS.get(fn, fn)
    if fn in _MONOTONE:
        found = _at_ends(_MONOTONE[fn], *operands)
    elif fn in _OTHERS:
        found = _OTHERS[fn](*operands)
    elif fn in ("population_count", "clz"):
        found = 0, dtype.bits
    elif fn.startswith("shift_"):
        found = _shifted(fn, dtype, *operands)
    return fitting(found, dtype)


# What a function of bools is as one of the numbers 0 and 1.
_ON_BOOLS = {"and": "min", "mul": "min", "or": "max", "add": "max", "xor": "ne"}

# Of integers: monotone in each operand as long as the others stay.
_MONOTONE: dict[str, Callable[..., int]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "not": operator.invert, "max": max, "min": min,
    "sign": lambda x: (x > 0) - (x < 0), "clamp": lambda low, x, high: min(max(x, low), high),
}  # fmt: skip


def _at_ends(fn: Callable[..., int], *operands: Interval) -> Interval:
    """Of a monotone function, which has its extremes where all operands have theirs."""
    found = [int(fn(*ends)) for ends in itertools.product(*operands)]
    return min(found), max(found)


def operand_given(fn: str, operands: Sequence[Interval]) -> int | None:
    """Which operand the result always is, where `fn` bounds, clamps or masks; None if that is not
    certain."""
    if fn == "rem":
        x, divisor = operands
        return 0 if x[0] >= 0 and x[1] < divisor[0] else None
    if fn == "and":  # with all bits up to some bit
        for at, (low, high) in enumerate(operands[::-1]):
            if low == high and not low & (low + 1) and within(operands[at], (0, low)):
                return at
        return None
    bound = abs if fn == "abs" else _MONOTONE[fn]
    always = ({at for at, end in enumerate(ends) if bound(*ends) == end}
              for ends in itertools.product(*operands))  # fmt: skip
    return min(set.intersection(*always), default=None)


def _equal(a: Interval, b: Interval) -> Interval:
    apart = _at_ends(operator.sub, a, b)
    return int(apart == (0, 0)), int(apart[0] <= 0 <= apart[1])


def _different(a: Interval, b: Interval) -> Interval:
    low, high = _equal(a, b)
    return 1 - high, 1 - low


def _quotient(a: Interval, b: Interval) -> Interval | None:
    """None where the divisor may be zero."""
    return None if b[0] <= 0 <= b[1] else _at_ends(quotient, a, b)


def _rest(a: Interval, b: Interval) -> Interval:
    """Of the sign of the dividend and not larger; smaller than the divisor, if that is not zero."""
    low, high = min(a[0], 0), max(a[1], 0)
    if b[0] <= 0 <= b[1]:
        return low, high
    smallest, largest = _absolute(b)
    if -smallest < a[0] and a[1] < smallest:
        return a
    return max(low, 1 - largest), min(high, largest - 1)


def _absolute(a: Interval) -> Interval:
    return max(a[0], -a[1], 0), max(-a[0], a[1])


def _and(a: Interval, b: Interval) -> Interval | None:
    """A number that is not negative has no bits beyond its own."""
    ends = [high for low, high in (a, b) if low >= 0]
    return (0, min(ends)) if ends else None


def _or(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return max(a[0], b[0]), (1 << max(a[1], b[1]).bit_length()) - 1


def _xor(a: Interval, b: Interval) -> Interval | None:
    either = _or(a, b)
    return None if either is None else (0, either[1])


_OTHERS: dict[str, Callable[..., Interval | None]] = {
    "eq": _equal,
    "ne": _different,
    "abs": _absolute,
    "square": lambda a: _at_ends(operator.mul, _absolute(a), _absolute(a)),
    "div": _quotient,
    "rem": _rest,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "select": lambda p, a, b: hull(a, b),
}


def _shifted(fn: str, dtype: DType, a: Interval, by: Interval) -> Interval | None:
    """By a known distance. A shift to the right takes the highest bit for a sign, or not."""
    distance, most = by
    if distance != most or not 0 <= distance < dtype.bits:
        return None
    if fn == "shift_left":
        return a[0] << distance, a[1] << distance
    same = a[0] >= 0 and a[1] < 1 << (dtype.bits - 1)
    if same or dtype.is_signed == (fn == "shift_right_arithmetic"):
        return a[0] >> distance, a[1] >> distance
    return None
