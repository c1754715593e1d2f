"""The loops of a `cumulative` region.

Input: a closed region whose anchor is a `cumulative` op. Output: a `Nest`. Invariant: the loops
along the axis, in order, visit its elements in the order of accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.codegen.choices import cheapest_vector
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import widest_nbytes
from stagejit.codegen.elements.accesses import lanes_of, vector_cost
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.space import Space, merge, refine
from stagejit.codegen.kernel import Choice
from stagejit.codegen.target import Target
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var


@dataclass(frozen=True)
class Nest:
    """kept: item loops; axis: loops along the axis, in order of accumulation; vector: one of them
    all."""

    index: Index
    places: tuple[Index, ...]  # of each store's value
    kept: tuple[Var, ...]
    axis: tuple[Var, ...]
    vector: Var | None
    lanes: int
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]
    choice: Choice


def plan(region: ClosedRegion, target: Target) -> Nest:
    op = region.anchor_op
    shape, axis = op.result.shape, op.attrs["axis"]
    space = Space(shape, "c")

    def index_of() -> Index:
        index = list(space.index)
        if op.attrs["reverse"]:
            index[axis] = Affine((), shape[axis] - 1) - index[axis]
        return tuple(index)

    def walk(strict: bool) -> tuple[Footprint, list[Affine], list[Index]]:
        footprint = Footprint(region, {op.result}, strict=strict)
        index = index_of()
        footprint.visit(op.operands[0], index)
        footprint.asked.append((op.result, index))
        places = [footprint.reshaped(index, shape, store.value.shape) for store in region.stores]
        return footprint, list(map(footprint.write, region.stores, places)), places

    footprint, offsets, places = refine([space], walk)
    before, along, after = space.dims[:axis], space.dims[axis], space.dims[axis + 1 :]
    groups = [
        [v for dim in dims for v in dim if v.extent != 1] for dims in (before, [along], after)
    ]
    merged = [merge(group, footprint.forms, footprint.divided) for group in groups]
    mapping = {var: form for _, forms in merged for var, form in forms.items()}
    kept, inner = (*merged[0][0], *merged[2][0]), tuple(merged[1][0])
    reads = tuple((value, form.substitute(mapping)) for value, form in footprint.reads)
    new_offsets = tuple(form.substitute(mapping) for form in offsets)
    lanes = target.vector_nbytes // widest_nbytes(region)
    forms = [form for _, form in reads]
    ranked = cheapest_vector(
        (*reversed(kept), *inner[-1:]), lambda var, _: vector_cost(forms, new_offsets, var, lanes)
    )
    vector, _ = ranked.best
    substituted = [
        tuple(part.substitute(mapping) for part in index) for index in (index_of(), *places)
    ]
    return Nest(
        substituted[0],
        tuple(substituted[1:]),
        kept,
        inner,
        vector,
        lanes_of(forms, new_offsets, vector, lanes),
        new_offsets,
        reads,
        ranked.choice,
    )
