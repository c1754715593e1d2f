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
    second = [_turned(y, sign * number, count) for number, y in enumerate(second)]
    pairs = list(zip(first, second, strict=True))
    return [_sum(*pair) for pair in pairs] + [_difference(*pair) for pair in pairs]


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
        result[number] = _sum(even, (-q, p))
        result[count - number] = _sum(even, (q, -p))
    return result


def _sum(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def _difference(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def _scaled(x: Pair, number: float) -> Pair:
    return x[0] * number, x[1] * number


def _turned(x: Pair, number: int, count: int) -> Pair:
    """`number` of `count` steps of a turn, clockwise."""
    if not number:
        return x
    if 4 * abs(number) == count:
        return (x[1], -x[0]) if number > 0 else (-x[1], x[0])
    turn = complex(roots(number, count))
    return product(x, (x[0].like(turn.real), x[0].like(turn.imag)))
