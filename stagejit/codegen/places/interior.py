"""Where loops need not ask which of several values an element is: between the places that tell.

Input: the `Loops` of a map. Output: the largest box of their positions in which all that overlays
compare is known, as loops of its own. Invariant: what is evaluated at a position is as before.

Note [Interiors]: of what is put together of parts one is most of it, as a rule, and the others are
its border. Loops that were cut there would have a body for each of the parts, and along each axis;
two are enough. One evaluates what there is in the largest box between all cuts, without masks,
selects, or what lies elsewhere; the other one is for all else. Which of them it is, is asked for
each vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from stagejit.base.records import record, replace
from stagejit.codegen.places.loops import Loops
from stagejit.index.affine import Affine, Var

_LEAST_PART = 0.4  # of all vectors that a body of their own is worth


@record
class Interior:
    """`loops` whose variables start at 0 where those around them stand at `first`; variables
    that no cut concerns are the same. part: of all vectors."""

    loops: Loops
    first: Mapping[Var, tuple[int, Var]]
    part: float


def interior_of(loops: Loops) -> Interior | None:
    """The interior of loops with vectors; None where it is small, or not to be told."""
    vector, first, part = loops.vector, dict[Var, tuple[int, Var]](), 1.0
    for var, cuts in _cuts(loops).items():
        ends = sorted({0, var.extent, *(cut for cut in cuts if 0 < cut < var.extent)})
        low, high = max(itertools.pairwise(ends), key=lambda pair: pair[1] - pair[0])
        if high - low == var.extent:
            continue
        first[var] = low, Var(high - low, var.name)
        whole, inside = var.extent, high - low
        if var is vector:
            lanes = loops.lanes
            whole, inside = -(-whole // lanes), high // lanes - -(-low // lanes)
        part *= inside / whole
    if vector is None or not first or part < _LEAST_PART:
        return None
    mapping = {var: Affine.of(inner) + low for var, (low, inner) in first.items()}
    return Interior(_moved(loops, mapping), first, part)


def _cuts(loops: Loops) -> dict[Var, set[int]]:
    """Where along each loop the answer to some question changes; empty where that is not known of
    all questions."""
    found = dict[Var, set[int]]()
    for form, extent in loops.cuts:
        if len(form.terms) != 1 or not form.loops_only:
            return {}
        ((var, coeff),) = form.terms
        at = [-form.const, extent - form.const]  # the first ones at or behind an end of a part
        found.setdefault(var, set()).update(
            -(-each // coeff) if coeff > 0 else each // coeff + 1 for each in at
        )
    return found


def _moved(loops: Loops, mapping: Mapping[Var, Affine]) -> Loops:
    vector, ahead = loops.vector, loops.ahead
    new = {var: next(iter(form.vars()), var) for var, form in mapping.items()}
    if ahead is not None:
        reads = frozenset((value, form.substitute(mapping)) for value, form in ahead.reads)
        ahead = replace(ahead, var=new.get(ahead.var, ahead.var), reads=reads)
    return replace(
        loops,
        vector=new.get(vector, vector) if vector else None,
        index=tuple(part.substitute(mapping) for part in loops.index),
        places=tuple(tuple(part.substitute(mapping) for part in each) for each in loops.places),
        offsets=tuple(offset.substitute(mapping) for offset in loops.offsets),
        ahead=ahead,
    )
