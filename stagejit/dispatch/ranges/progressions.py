"""What affine numbers run over: arithmetic progressions, and whether all of one is taken.

Input: affine forms. Output: first and last value, step, evenness; independence of several.
Invariant: what is called even takes every step, for certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.symbolic import Expr, Int, at_most
from stagejit.index.affine import Affine, Var, linearize


def independent(index: Sequence[Affine]) -> bool:
    """Whether the variables of the index take all combinations of their values."""
    seen: set[object] = set()
    divided: dict[Var, object] = {}
    for var in (var for part in index for var in part.vars()):
        key, divisor = _split_of(var)
        bases = {var} if var.operand is None else var.operand.loop_vars()
        if key in seen or any(divided.setdefault(base, divisor) != divisor for base in bases):
            return False
        seen.add(key)
    return True


def _split_of(var: Var) -> tuple[object, object]:
    """An identity of `var`, and of the division that it comes from. Quotient and remainder of a
    number that runs over all of `range(n * divisor)` take every combination: two variables, one
    division."""
    if var.operand is None:
        return var, None
    (first, last), stride, even = progression(var.operand)
    if even and stride == 1 and first == 0 and (last + 1) % var.divisor == 0:
        return (var.kind, var.divisor, var.operand), (var.divisor, var.operand)
    return var, var


def progression(part: Affine) -> tuple[tuple[int, int], int, bool]:
    """First and last value, the step between values, and whether every step of it is taken."""
    if any(var.extent == 0 for var in part.vars()):
        return (0, -1), 1, True
    if any(var.kind == "dynamic" for var in part.vars()):
        return part.range(), 1, False
    if any(isinstance(coeff, Expr) for _, coeff in part.terms):
        return part.range(), 1, _takes_every_step(part)
    steps = sorted((abs(coeff), var.extent) for var, coeff in part.terms)
    stride = math.gcd(*(step for step, _ in steps)) or 1
    covered, even = 1, True
    for step, extent in steps:
        even = even and step <= covered * stride
        covered += step // stride * (extent - 1)
    return part.range(), stride, even


def _takes_every_step(part: Affine) -> bool:
    """Whether every number between the least and the greatest value is taken for certain, also
    where coefficients are sizes, which nobody can sort."""
    rest = {var: coeff if at_most(0, coeff) else -coeff for var, coeff in part.terms}
    covered: Int = 1
    while rest:
        var = next((var for var, step in rest.items() if at_most(step, covered)), None)
        if var is None:
            return False
        covered = rest.pop(var) * (var.extent - 1) + covered
    return True


def covers_as_rows(shape: Sequence[int], index: Sequence[Affine], count: int) -> bool:
    """Whether the row-major offsets, in which reshapes are affine, touch `count` elements, one
    after the other."""
    offset = linearize(index, shape)
    if any(var.operand is not None for var in offset.vars()):
        return False
    (first, last), stride, even = progression(offset)
    return even and (last - first) // stride + 1 == count
