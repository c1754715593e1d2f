"""Which loops of a map repeat most of what it evaluates.

Input: the `Loops` of a map. Output: short loops that stand innermost, without code of their own:
what does not follow them is evaluated once for all of their steps. Invariant: what is stored, and
where, is as before.

Note [Repeated elements]: the gradient of a mean of 2x2 pixels stores each of its elements four
times. One loop after the other would evaluate it four times, from memory that is read again for
the second row of pixels; or it is stored first, which passes memory twice more. On two cores of a
Cascade Lake, `avgpool_grad_2x2_nhwc` took 3.1 ms where it was stored first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from stagejit.codegen.costs import operations
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Loops
from stagejit.index.affine import Var

_MOST_STEPS = 16  # of loops that repeat, together: each is a store
_SHARED = 0.5  # part of the work of one step that others do not do again
_MOST_CODE = 160  # operations that the other steps add


def repeats_of(loops: Loops, variables: Sequence[Var], between: Var | None) -> tuple[Var, ...]:
    """Of the variables those along which most work is shared, outermost first."""
    if not _may_repeat(loops, variables):
        return ()  # as of most maps, which need not be walked to know
    work = _work(loops)
    total = sum(cost for _, cost in work)
    chosen: tuple[Var, ...] = ()
    fixed = () if between is None else (between,)
    for var in reversed(variables):
        moved = frozenset((var, *chosen))
        steps = math.prod(each.extent for each in (*moved, *fixed))
        shared = sum(cost for follows, cost in work if follows.isdisjoint(moved))
        more = (total - shared) * (steps - 1)
        if steps <= _MOST_STEPS and shared >= _SHARED * total > 0 and more <= _MOST_CODE:
            chosen = (var, *chosen)
    return chosen


def _may_repeat(loops: Loops, variables: Sequence[Var]) -> bool:
    """Whether vectors are read, or counted, that a short loop may leave as they are."""
    short = {var for var in variables if var.extent <= _MOST_STEPS}
    followed = [form.loop_vars() for form in loops.forms]
    counts = any(op.definition.counts for op in loops.region.ops)
    return bool(short) and (
        counts or any(loops.vector in each and not short <= each for each in followed)
    )


def steps_of(variables: Sequence[Var]) -> list[dict[Var, int]]:
    """All steps of some variables, the last one fastest."""
    ranges = (range(var.extent) for var in variables)
    return [dict(zip(variables, step, strict=True)) for step in itertools.product(*ranges)]


def _work(loops: Loops) -> list[tuple[frozenset[Var], float]]:
    """The loops that each vector read and each operation on vectors follow, and what it costs. What
    is the same for all lanes leaves the loop over vectors in any case."""
    region = loops.region
    footprint, found = Footprint(region), []
    for store, place in zip(region.stores, loops.places, strict=True):
        footprint.value(store.value, place)
    for value, index in footprint.evaluated:
        need, definition = footprint.known((value, index)), value.op.definition
        read = value in region.inputs
        if (
            need is None
            or not (read or definition.is_elementwise)
            or loops.vector not in need.loops
        ):
            continue
        found.append((need.loops, 1.0 if read else operations(value.op)))
    return found
