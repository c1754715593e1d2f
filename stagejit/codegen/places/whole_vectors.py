"""Loops over whole vectors of what lies one after the other, from one short row to the next.

Input: the `Loops` of a map. Output: the same loops, of which the innermost ones are one that is
written out, so that it is known of each lane where it lies; and what all ways cost. Invariant: what
is stored, and where, is as before.

See Note [Whole vectors of rows] in `elements/overlays.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import replace
from stagejit.codegen.costs import element_code, widest_nbytes
from stagejit.codegen.places.accesses import loops_of
from stagejit.codegen.places.interior import interior_of
from stagejit.codegen.places.loops import Loops
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var, along

MOST_PICKED = 4  # vectors that the lanes of one are picked from
_MOST_IN_ROW = 4  # vectors of a row; of longer ones few lanes are left over
_MOST_VECTORS = 64  # that are written out
_MOST_CODE = 640  # operations of these; more where the other way is to go lane by lane
_MOST_CODE_FOR_LANES = 8 * _MOST_CODE
_LEAST_USED = 0.9  # part of the lanes of some rows together: more of them would gain little
_ASKED = 4.0  # operations of a vector that tell of each place of what is overlaid where it lies
_TURN = 2.0  # operations of a loop beside those of a row


def ways_in_whole_vectors(loops: Loops) -> list[Loops]:
    """The loops as they are, then as they may be besides; costs are those of loops and functions,
    too."""
    (variables,), region, vector = loops.groups, loops.region, loops.vector
    if vector is None or loops.lanes < 2 or len(variables) < 2:
        return [loops]
    count = -(-vector.extent // loops.lanes)
    must = bool(loops.compared) and not (loops.target.masks_lanes or interior_of(loops))
    plain = not any(op.definition.is_gather or op.definition.is_window for op in region.ops)
    if not plain or not (must or loops.compared or count <= _MOST_IN_ROW):
        return [loops]
    code, layers = element_code(region), 1 + sum(op.definition.overlays for op in region.ops)
    asked = layers * code + _ASKED * len(loops.cuts)
    rows = math.inf if must else loops.cost + (asked * count + _TURN) / vector.extent
    ways = [replace(loops, cost=rows)]
    for inner, steps in _innermost(variables, loops.target.vector_nbytes // widest_nbytes(region)):
        flat = _in_one(loops, inner, steps)
        if flat is not None and (cost := _operations(flat, code)) < math.inf:
            ways.append(replace(flat, cost=cost))
    return ways


def _innermost(variables: Sequence[Var], lanes: int) -> Iterator[tuple[Sequence[Var], int]]:
    """Loops that may become one, and how many steps of the one around them besides: so many that
    few lanes are left over."""
    for start in reversed(range(len(variables))):
        inner = variables[start:]
        size = math.prod(var.extent for var in inner)
        if size > _MOST_VECTORS * lanes:
            return
        if len(inner) > 1:
            yield inner, 1
        around = variables[start - 1].extent if start else 1
        for rows in range(2, around):
            used = rows * size / lanes
            if used > _MOST_VECTORS:
                break
            if around % rows == 0 and used >= _LEAST_USED * math.ceil(used):
                yield inner, rows
                break


def _in_one(loops: Loops, inner: Sequence[Var], rows: int) -> Loops | None:
    """With one loop for some inner ones, and for so many steps of the one around them; None where
    what is stored would have gaps."""
    (variables,) = loops.groups
    outer = list(variables[: -len(inner)])
    one = Var(rows * math.prod(var.extent for var in inner), inner[-1].name)
    rest, mapping = Affine.of(one), dict[Var, Affine]()
    for var in reversed(inner):
        rest, mapping[var] = rest.divmod(var.extent)
    if rows > 1:
        around = outer.pop()
        steps = Var(around.extent // rows, around.name)
        mapping[around] = Affine.of(steps) * rows + rest
        outer += [steps] if steps.extent > 1 else []
    offsets = tuple(offset.substitute(mapping) for offset in loops.offsets)
    compared = _moved(loops.compared, mapping)
    if any(form.loop_vars() - {one} for form in compared):
        return None  # not known before the kernel runs
    if not all(offset.loops_only and offset.coeff(one) == 1 for offset in offsets):
        return None
    widest = loops.target.vector_nbytes // widest_nbytes(loops.region)
    return replace(
        loops,
        groups=((*outer, one),),
        index=_moved(loops.index, mapping),
        places=tuple(_moved(place, mapping) for place in loops.places),
        offsets=offsets,
        reads=tuple((value, form.substitute(mapping)) for value, form in loops.reads),
        compared=compared,
        lanes=min(widest, 1 << (one.extent - 1).bit_length()),
        vector=one,
        between=None,
        written_out=True,
    )


def _moved(index: Index, mapping: Mapping[Var, Affine]) -> Index:
    return tuple(part.substitute(mapping) for part in index)


def _operations(flat: Loops, code: float) -> float:
    """Operations an element; infinite where they would be too much code."""
    vector, lanes = flat.vector, flat.lanes
    assert vector is not None
    total, starts = 0.0, range(0, vector.extent, lanes)
    layers = 1 + sum(op.definition.overlays for op in flat.region.ops)
    for first in starts:
        places = list(range(first, min(first + lanes, vector.extent)))
        total += sum(_picking(flat, value, form, places) for value, form in flat.reads)
    shuffles = (layers - 1) * flat.target.shuffle_cost(widest_nbytes(flat.region))
    total += len(starts) * (2 * len(flat.offsets) + layers * code + shuffles)
    most = _MOST_CODE_FOR_LANES if flat.compared else _MOST_CODE
    return total / vector.extent if total <= most else math.inf


def _picking(flat: Loops, value: Value, form: Affine, places: Sequence[int]) -> float:
    """Loads and shuffles of a vector whose lanes stand at these places of the loop."""
    vector, apart = flat.vector, [0] * len(places)
    assert vector is not None
    for var, factor in form.terms:
        if var is vector or vector in loops_of(var):
            added = along(var, vector, places)
            if added is None:
                return 2.0 * len(places)
            apart = [total + factor * each for total, each in zip(apart, added, strict=True)]
    first = min(apart)
    last = max(apart)
    if first == last:
        return 0.1
    vectors = -(-(last + 1 - first) // flat.lanes)
    if vectors > MOST_PICKED:
        return 2.0 * len(places)
    if vectors == 1 and all(each == first + at for at, each in enumerate(apart)):
        return 1.0
    shuffle = flat.target.shuffle_cost(value.type.dtype.itemsize)
    return vectors + max(vectors - 1, 1) * shuffle
