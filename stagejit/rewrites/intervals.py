"""Intervals of integers through scalar functions.

Input: for each operand the least and the greatest number that it may be. Output: the same of the
result. Invariant: numbers are Python's, which do not wrap; where the result might leave its
element type, it wraps, and may be anything of that type. A bool is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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


def of_function(fn: str, dtype: DType, operands: list[Interval]) -> Interval:
    """Of `fn`, which gives `dtype`, over operands of an integer type or bool."""
    if fn in _COMPARISONS:
        return _COMPARISONS[fn](*operands)
    if dtype is bool_:
        rule = _OF_BOOLS.get({"add": "or", "mul": "and", "max": "or", "min": "and"}.get(fn, fn))
        return rule(*operands) if rule else BOOL
    if fn in ("population_count", "clz"):
        return 0, dtype.bits
    if fn.startswith("shift_"):
        return fitting(_shifted(fn, dtype, *operands), dtype)
    found = _OF_INTEGERS.get(fn)
    return fitting(found(*operands) if found else None, dtype)


# ------------------------------------------------------------------------------- comparisons


def _decided(true: bool, false: bool) -> Interval:
    return (1, 1) if true else (0, 0) if false else BOOL


def _less(a: Interval, b: Interval) -> Interval:
    return _decided(a[1] < b[0], a[0] >= b[1])


def _equal(a: Interval, b: Interval) -> Interval:
    return _decided(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0])


def _not(a: Interval) -> Interval:
    return 1 - a[1], 1 - a[0]


_COMPARISONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "lt": _less,
    "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _not(_less(a, b)),
    "le": lambda a, b: _not(_less(b, a)),
    "eq": _equal,
    "ne": lambda a, b: _not(_equal(a, b)),
}

_OF_BOOLS: dict[str, Callable[..., Interval]] = {
    "not": _not,
    "and": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "or": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "select": lambda p, a, b: hull(a, b),
}

# ------------------------------------------------------------------------------- arithmetic


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _quotient(a: Interval, b: Interval) -> Interval | None:
    """Towards zero; None where the divisor may be zero."""
    if b[0] <= 0 <= b[1]:
        return None
    corners = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in a for y in b]
    inside = [0] if a[0] <= 0 <= a[1] else []
    return min(corners + inside), max(corners + inside)


def _rest(a: Interval, b: Interval) -> Interval:
    """Of the sign of the dividend and not larger; smaller than the divisor, if that is not zero."""
    low, high = min(a[0], 0), max(a[1], 0)
    if b[0] <= 0 <= b[1]:
        return low, high
    smallest = min(abs(b[0]), abs(b[1]))
    if -smallest < a[0] and a[1] < smallest:
        return a
    largest = max(abs(b[0]), abs(b[1])) - 1
    return max(low, -largest), min(high, largest)


def _absolute(a: Interval) -> Interval:
    ends = abs(a[0]), abs(a[1])
    return (0 if a[0] <= 0 <= a[1] else min(ends)), max(ends)


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


def _sign(a: Interval) -> Interval:
    return (a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)


def _clamped(low: Interval, x: Interval, high: Interval) -> Interval:
    """min(max(x, low), high)"""
    return (
        min(max(x[0], low[0]), high[0]),
        min(max(x[1], low[1]), high[1]),
    )


_OF_INTEGERS: dict[str, Callable[..., Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _absolute,
    "square": lambda a: _product(_absolute(a), _absolute(a)),
    "sign": _sign,
    "div": _quotient,
    "rem": _rest,
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "clamp": _clamped,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "not": lambda a: (-1 - a[1], -1 - a[0]),
    "select": lambda p, a, b: hull(a, b),
}


def _shifted(fn: str, dtype: DType, a: Interval, by: Interval) -> Interval | None:
    """By a known distance. A shift to the right takes the highest bit for a sign, or not."""
    least, most = by
    same = a[0] >= 0 and a[1] < 1 << (dtype.bits - 1)
    if least != most or not 0 <= least < dtype.bits:
        return None
    if fn == "shift_left":
        return a[0] << least, a[1] << least
    if same or dtype.is_signed == (fn == "shift_right_arithmetic"):
        return a[0] >> least, a[1] >> least
    return None
