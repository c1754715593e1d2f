"""The two sides of a tiled product: which axes are rows and columns, and how operands are loaded.

Input: a plan. Output: `Sides`. Invariant: rows belong to one operand, columns to the other one,
axes of both to the grid; numbers of rows, columns and steps run through all positions once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.cuda.coalescing import sectors
from stagejit.codegen.cuda.contract.numbers import joined
from stagejit.codegen.cuda.contract.plan import Plan, Read
from stagejit.index.affine import Affine, Var

_WIDEST_NBYTES = 16  # of an access
_FEW = 0.01  # of a sector: what decides between equal costs


@record
class Side:
    """One operand. axes: its own, outermost first; number: of all of them. along: the variable that
    threads follow as they load it, the last of its axes or of the steps; lanes: neighbours along it
    that a thread loads at once."""

    read: Read
    axes: tuple[Var, ...]
    number: Var
    along: Var | None
    lanes: int

    @property
    def along_steps(self) -> bool:
        return self.along is not None and self.along not in self.axes


@record
class Sides:
    """rows, columns: stores run along the columns if they can. batch: axes that both have, or none.
    steps: what is summed over, outermost first; step: all of it. lanes: neighbours along the
    columns that may be stored at once."""

    rows: Side
    columns: Side
    batch: tuple[Var, ...]
    steps: tuple[Var, ...]
    step: Var
    lanes: int


def sides_of(plan: Plan) -> Sides:
    """The sides of a nest."""
    nest, (left, right) = plan.nest, plan.sources
    own = left.own(nest.axes, right), right.own(nest.axes, left)
    batch = tuple(var for var in nest.axes if var not in own[0] and var not in own[1])
    steps = _steps(plan)
    made = []
    for read, axes in zip((left, right), own, strict=True):
        axes = _in_order(plan, read, axes, steps)
        along = _along(read, [*axes[-1:], *steps[-1:]])
        lanes = 1 if along is None else neighbours(plan, read, along)
        made.append(Side(read, axes, joined(axes, "m"), along, lanes))
    rows, columns = sorted(made, key=lambda side: -_stored(plan, side.axes[-1:]))
    lanes = _stored_together(plan, columns.axes[-1]) if columns.axes else 1
    return Sides(rows, columns, batch, steps, joined(steps, "k"), lanes)


def _steps(plan: Plan) -> tuple[Var, ...]:
    """The one along which operands are cheapest to load comes last; one that is cut is first."""
    cut = plan.nest.cut
    whole = [var for var in plan.nest.reduce if cut is None or var is not cut.step]
    if whole:
        last = min(reversed(whole), key=lambda var: sum(_cost(r, var) for r in plan.sources))
        whole = [*(var for var in whole if var is not last), last]
    return (*([cut.step] if cut is not None and cut.step in plan.nest.reduce else []), *whole)


def _in_order(plan: Plan, read: Read, axes: Sequence[Var], steps: Sequence[Var]) -> tuple[Var, ...]:
    """The one that is cheapest to load along, or to store, comes last: what is loaded as often as
    there are tiles of the other side is stored once."""
    along_steps = min((_cost(read, var) for var in steps[-1:]), default=1.0)
    loads = max(plan.steps / 64, _FEW)

    def cost(var: Var) -> float:
        return loads * min(_cost(read, var), along_steps) + _stored(plan, [var])

    if not axes:
        return ()
    last = min(reversed(axes), key=cost)
    return (*(var for var in axes if var is not last), last)


def _cost(read: Read, var: Var) -> float:
    """Sectors that an element takes along a variable."""
    if var not in read.depends:
        return float(len(read.reads))
    return sum(sectors(form, var, value.type.dtype.itemsize) for value, form in read.reads)


def _along(read: Read, variables: Sequence[Var]) -> Var | None:
    return min(variables, key=lambda var: _cost(read, var), default=None)


def _stored(plan: Plan, variables: Sequence[Var]) -> float:
    """Sectors that the stores of an element take along a variable."""
    stores = zip(plan.region.stores, plan.offsets, strict=True)
    return sum(
        sectors(offset, var, store.value.type.dtype.itemsize)
        for store, offset in stores
        for var in variables
    ) or math.inf  # fmt: skip


# -------------------------------------------------------------------- neighbours at once


def neighbours(plan: Plan, read: Read, var: Var) -> int:
    """Elements along a variable that all reads move in one access."""
    if any(var in window.at.loop_vars() for window in read.windows.values()):
        return 1
    widest = max((value.type.dtype.itemsize for value, _ in read.reads), default=16)
    return _lanes(plan, [form for _, form in read.reads], var, widest)


def _stored_together(plan: Plan, var: Var) -> int:
    """The same of stores and of all that is read for them."""
    values = [*(store.value for store in plan.region.stores), *(value for value, _ in plan.after)]
    if any(offset.coeff(var) != 1 for offset in plan.offsets):
        return 1
    forms = [*plan.offsets, *(form for _, form in plan.after)]
    return _lanes(plan, forms, var, max(value.type.dtype.itemsize for value in values))


def _lanes(plan: Plan, forms: Sequence[Affine], var: Var, nbytes: int) -> int:
    lanes, cut = _WIDEST_NBYTES // nbytes, plan.nest.cut
    last = cut.last if cut is not None and var is cut.step else var.extent  # of a part of the sum
    while lanes > 1 and (
        var.extent % lanes or last % lanes or not all(_moves(f, var, lanes) for f in forms)
    ):
        lanes //= 2
    return lanes if plan.region.aligned and any(form.coeff(var) == 1 for form in forms) else 1


def _moves(form: Affine, var: Var, lanes: int) -> bool:
    """Whether neighbours are the same element, or neighbours that begin at a whole access."""
    steps = [form.const, *(coeff for v, coeff in form.terms if v is not var)]
    apart = form.coeff(var)
    whole = apart == 0 or (apart == 1 and not any(step % lanes for step in steps))
    return form.loops_only and whole
