"""Arithmetic progressions: one dimension of a `Box`.

Input: two progressions, each an offset, a size and a stride. Output: what they have in common, what
is left of one beside the other, what is around both. Invariant: see Note [Symbolic offsets] in
`box.py`.
"""

from __future__ import annotations

import math
from typing import Any

from stagejit.base.symbolic import Int, Undecided, at_most, bounds, extremes, residue, symbols_in

Dim = tuple[Int, Any, int]  # offset, size, stride


def apart(a: Int, n: int, s: int, b: Int, m: int, t: int) -> bool:
    """Whether two arithmetic progressions (offset, size, stride), not empty, have for certain no
    element in common."""
    between = b - a
    numbers = isinstance(n, int) and isinstance(m, int)
    if numbers and isinstance(between, int):
        return not _common_from_zero(n, s, between, m, t)[1]
    if residue(between, math.gcd(s, t)) not in (None, 0):
        return True
    if numbers:
        low, high = bounds(between)
        return low > (n - 1) * s or high < (1 - m) * t
    return bounds(between - (n - 1) * s)[0] > 0 or bounds(between + (m - 1) * t)[1] < 0


def common(a: Int, n: int, s: int, b: Int, m: int, t: int) -> Dim:
    """Offset, size and stride of the elements common to two arithmetic progressions, or all of the
    first one where that is not known: what of it has settled, for one, has settled for all."""
    between = b - a
    if isinstance(between, int) and isinstance(n, int) and isinstance(m, int):
        first, count, stride = _common_from_zero(n, s, between, m, t)
        return a + first, count, stride
    if at_most(n, 0) or at_most(m, 0) or apart(a, n, s, b, m, t):
        return a, 0, 1
    one, other = (a, n, s), (b, m, t)
    if within(*one, *other):
        return one
    if within(*other, *one):
        return other
    return one


def certainly_common(a: Int, n: int, s: int, b: Int, m: int, t: int) -> Dim:
    """Offset, size and stride of elements of the first progression that are in the second one
    whatever symbols are: all of them, but where strides or sizes hide some."""
    between = b - a
    numbers = isinstance(n, int) and isinstance(m, int)
    if numbers and isinstance(between, int):
        return common(a, n, s, b, m, t)
    if within(a, n, s, b, m, t):
        return a, n, s
    if not numbers or s % t or residue(between, t) != 0:
        return a, 0, 1
    low, high = bounds(between)
    first, last = max(-(-high // s), 0), min((low + (m - 1) * t) // s, n - 1)
    return a + first * s, max(last - first + 1, 0), s


def _common_from_zero(n: int, s: int, b: int, m: int, t: int) -> tuple[int, int, int]:
    """The same for a progression that starts at 0."""
    step = math.gcd(s, t)
    lo, hi = max(0, b), min((n - 1) * s, b + (m - 1) * t)
    if b % step or hi < lo or n <= 0 or m <= 0:
        return lo, 0, 1
    period = s // step * t
    # First element of the first progression that the second one hits too.
    i = b // step * pow(s // step, -1, t // step) % (t // step) if t != step else 0
    first = i * s
    first += -((first - lo) // period) * period
    return (first, (hi - first) // period + 1, period) if first <= hi else (lo, 0, 1)


def within(a: Int, n: int, s: int, b: Int, m: int, t: int) -> bool:
    """Whether `a + s*i` (n items) lies for certain within `b + t*j` (m items)."""
    above = a - b
    if residue(above, t) != 0 or (s % t and not at_most(n, 1)):
        return False
    return at_most(0, above) and at_most(above + (n - 1) * s, (m - 1) * t)


def beside(a: Int, n: int, s: int, b: Int, m: int, t: int) -> list[Dim]:
    """`a + s*i` (n items) without `b + t*j` (m items, all of them among the former): those before,
    those after, and those between, a phase at a time."""
    distance = b - a
    if not all(symbol.is_size for symbol in symbols_in(distance)):
        raise Undecided("what is left beside a box at a symbolic offset has no certain size")
    before, last = distance // s, b + (m - 1) * t
    after = n - 1 - (distance + (m - 1) * t) // s
    phases = [(b + phase, m - 1, t) for phase in range(s, t, s)] if t > s and m > 1 else []
    found = [(a, before, s), (last + s, after, s), *phases]
    return [dim for dim in found if dim[1] > 0]


def union(a: Int, n: int, s: int, b: Int, m: int, t: int) -> Dim:
    """The smallest progression around two."""
    between = b - a
    if not (isinstance(between, int) and isinstance(n, int) and isinstance(m, int)):
        if s == t == 1 and at_most(a, b) and at_most(b, a + n) and at_most(a + n, b + m):
            return a, b + m - a, 1
        if s == t == 1 and at_most(b, a) and at_most(a, b + m) and at_most(b + m, a + n):
            return b, a + n - b, 1
        # Where sizes decide which end comes first, comparing them raises Undecided.
        ends = [extremes(x) for x in (a, a + (n - 1) * s, b, b + (m - 1) * t)]
        first = min(low for low, _ in ends)
        return first, max(high for _, high in ends) - first + 1, 1
    low, high = min(0, between), max((n - 1) * s, between + (m - 1) * t)
    step = math.gcd(between, s if n > 1 else 0, t if m > 1 else 0) or 1
    return a + low, (high - low) // step + 1, step


def is_union(whole: Dim, a: Dim, b: Dim) -> bool:
    """Whether the union of two progressions has no element besides theirs."""
    return bool(whole[1] == a[1] + b[1] - common(*a, *b)[1])
