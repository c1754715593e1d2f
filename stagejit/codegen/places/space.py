"""The iteration space of a kernel: loop variables, and the index they form.

Input: a shape and the affine forms that a kernel will evaluate. Output: as few loop variables as
those forms allow. Invariant: every element of the shape is visited exactly once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from stagejit.index.affine import Affine, Index, SplitNeeded, Var, linearize

T = TypeVar("T")

_MOST_SPLITS = 32


class Space:
    """Loop variables in row-major order, and the index of the shape that they stand for.

    `dims[i]` are the variables of dimension i, outermost first; `first[i]` is where they start.
    """

    def __init__(self, shape: Sequence[int], name: str = "i", first: Sequence[int] = ()) -> None:
        self.name, self.first = name, tuple(first) or (0,) * len(shape)
        self.dims = [[Var(extent, name)] for extent in shape]

    def loops(self, axes: Iterable[int] | None = None) -> list[Var]:
        """The variables of some axes, or of all, that loop, outermost first."""
        some = range(len(self.dims)) if axes is None else axes
        return [var for axis in some for var in self.dims[axis] if var.extent != 1]

    @property
    def index(self) -> Index:
        dims = ([Affine.of(var) for var in dim] for dim in self.dims)
        sizes = ([var.extent for var in dim] for dim in self.dims)
        return tuple(map(operator.add, map(linearize, dims, sizes), self.first))

    def split(self, var: Var, inner: int) -> bool:
        """Iterate `var` as (extent // inner, inner); False if it is not a variable of this
        space."""
        for dim in self.dims:
            if var in dim:
                at = dim.index(var)
                dim[at : at + 1] = [Var(var.extent // inner, self.name), Var(inner, self.name)]
                return True
        return False


def refine(split: Callable[[Var, int], bool], evaluate: Callable[[bool], T]) -> T:
    """Split loop variables until `evaluate(strict)` meets no division that a split avoids. split:
    see `Space.split`."""
    for _ in range(_MOST_SPLITS):
        try:
            return evaluate(True)
        except SplitNeeded as needed:
            if not split(needed.var, needed.inner):
                break
    return evaluate(False)


def merge(
    variables: Sequence[Var], forms: Iterable[Affine], divided: Iterable[tuple[Affine, int]] = ()
) -> tuple[list[Var], dict[Var, Affine]]:
    """Fewer loops for the same forms: adjacent variables u, v become one where every form has
    coeff(u) == coeff(v) * extent(v), that is, where v runs on into u.

    divided: forms that views divide on the way to one of `forms`, with the divisors; either they
        or their remainders have to agree as well (Note [Beyond a dimension]).
    Returns the new variables and the substitution from old to new. The substituted forms are
    equal, the index of a single dimension need not be.

    Note [Beyond a dimension]: who evaluates a value at a substituted index goes through its views
    again. In `tile(x, (1, 3))[:, 27:52:2]` of x[3, 26], memory is at 26 i + 2 j + 1, so i and j
    could be one variable k of 39. But then the slice is asked for element (0, 27 + 2 k) of the
    repeated array; its remainder by 26 is that of 27 + 2 j, and what was 26 i is gone. Where the
    remainder is the same form as before, a difference can only go on into the quotient, that is,
    into a dimension without an upper bound.
    """
    current = list(variables)
    mapping: dict[Var, Affine] = {var: Affine.of(var) for var in current}
    live = list(dict.fromkeys(forms))
    pairs = list(dict.fromkeys(divided))
    derived = {
        inner
        for form in live
        for var in form.vars()
        if var.operand is not None
        for inner in var.operand.loop_vars()
    }
    at = len(current) - 2
    while at >= 0:
        outer, inner = current[at], current[at + 1]
        if (
            not {outer, inner} & derived
            and not any(_gap(form, outer, inner) for form in live)
            and all(_agrees(form, divisor, outer, inner) for form, divisor in pairs)
        ):
            joint = Var(outer.extent * inner.extent, inner.name)
            step = {outer: Affine(), inner: Affine.of(joint)}
            mapping = {var: form.substitute(step) for var, form in mapping.items()}
            live = list(dict.fromkeys(form.substitute(step) for form in live))
            pairs = [(form.substitute(step), divisor) for form, divisor in pairs]
            current[at : at + 2] = [joint]
        at -= 1
    return current, mapping


def _gap(form: Affine, outer: Var, inner: Var) -> int:
    """0 where `inner` runs on into `outer`."""
    return form.coeff(outer) - form.coeff(inner) * inner.extent


def _agrees(form: Affine, divisor: int, outer: Var, inner: Var) -> bool:
    """Whether quotient and remainder of a divided form mean the same once `inner` runs on."""
    if not _gap(form, outer, inner):
        return True
    remainder = form.divmod(divisor)[1]
    direct = all(var.operand is None for var in remainder.vars())
    return not _gap(remainder, outer, inner) and (
        direct or not {outer, inner} & remainder.loop_vars()
    )
