"""Transforms of few complex numbers, as chains of sums in registers.

Input: pairs of arrays, one for each element, and a sign: 1, or -1 for the inverse transform.
Output: pairs of the transform, not scaled. Invariant: two halves share what they can: differences
are turned once (even counts), and elements that are as far from the first one in both directions
are added before they are multiplied (odd counts).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagejit.trace.complex.arithmetic import product
from stagejit.trace.complex.parts import Pair
from stagejit.trace.fourier.roots import roots


def transformed(x: Sequence[Pair], sign: int) -> list[Pair]:
    count = len(x)
    if count == 1:
        return list(x)
    return _odd(x, sign) if count % 2 else _even(x, sign)


def _even(x: Sequence[Pair], sign: int) -> list[Pair]:
    """The transforms of every other element, one turned: their sums, and their differences."""
    count = len(x)
    first, second = transformed(x[::2], sign), transformed(x[1::2], sign)
    sums, differences = [], []
    for number, (y, z) in enumerate(zip(first, second, strict=True)):
        if 4 * number == count:
            sums.append(_a_quarter_on(y, z, sign))
            differences.append(_a_quarter_on(y, z, -sign))
        else:
            z = _turned(z, sign * number, count)
            sums.append(_sum(y, z))
            differences.append(_difference(y, z))
    return sums + differences


def _odd(x: Sequence[Pair], sign: int) -> list[Pair]:
    count, half = len(x), len(x) // 2
    first, ahead, behind = x[0], x[1 : half + 1], x[:half:-1]
    sums = [_sum(*pair) for pair in zip(ahead, behind, strict=True)]
    differences = [_difference(*pair) for pair in zip(ahead, behind, strict=True)]
    total = first
    for each in sums:
        total = _sum(total, each)
    result = [total, *[total] * (count - 1)]
    for number in range(1, half + 1):
        turns = roots(sign * number * np.arange(1, half + 1), count)
        even, (p, q) = first, _scaled(differences[0], turns[0].imag)
        for turn, each in zip(turns, sums, strict=True):
            even = _sum(even, _scaled(each, turn.real))
        for turn, each in zip(turns[1:], differences[1:], strict=True):
            p, q = _sum((p, q), _scaled(each, turn.imag))
        result[number] = _a_quarter_on(even, (p, q), -1)
        result[count - number] = _a_quarter_on(even, (p, q), 1)
    return result


def _sum(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def _difference(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def _scaled(x: Pair, number: float) -> Pair:
    return x[0] * number, x[1] * number


def _a_quarter_on(x: Pair, y: Pair, sign: int) -> Pair:
    """x and, a quarter of a turn further, y: clockwise, or for -1 the other way."""
    if sign > 0:
        return x[0] + y[1], x[1] - y[0]
    return x[0] - y[1], x[1] + y[0]


def _turned(x: Pair, number: int, count: int) -> Pair:
    """`number` of `count` steps of a turn, clockwise, less than half of one."""
    if not number:
        return x
    turn = complex(roots(number, count))
    if 8 * number % count:
        return product(x, (x[0].like(turn.real), x[0].like(turn.imag)))
    # An eighth, or three: both parts of the turn are as large.
    total, difference = x[0] + x[1], x[1] - x[0]
    if turn.real * turn.imag < 0:
        return total * turn.real, difference * turn.real
    return difference * -turn.real, total * turn.real
