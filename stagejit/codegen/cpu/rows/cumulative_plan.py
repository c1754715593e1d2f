"""The loops of a `cumulative` region.

Input: a closed region whose anchor is a `cumulative` op. Output: a `Nest`. Invariant: the loops
along the axis, in order, visit its elements in the order of accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.accesses import vector_cost
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.loops import Loops, Walked, loops_of
from stagejit.codegen.elements.space import Space
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var


@dataclass(frozen=True, kw_only=True)
class Nest(Loops):
    """kept: item loops; axis: loops along the axis, in order of accumulation."""

    kept: tuple[Var, ...]
    axis: tuple[Var, ...]


def plan(region: ClosedRegion, target: Target) -> Nest:
    op = region.anchor_op
    shape, axis = op.result.shape, op.attrs["axis"]
    space = Space(shape, "c")

    def walk(strict: bool) -> Walked:
        footprint, parts = Footprint(region, {op.result}, strict=strict), list(space.index)
        if op.attrs["reverse"]:
            parts[axis] = Affine((), shape[axis] - 1) - parts[axis]
        index = tuple(parts)
        footprint.value(op.operands[0], index)
        footprint.asked.append((op.result, index))
        places = [footprint.reshaped(index, shape, store.value.shape) for store in region.stores]
        return footprint, index, places, list(map(footprint.write, region.stores, places))

    groups = (range(axis), (axis,), range(axis + 1, len(shape)))
    loops = loops_of(region, target, space, groups, walk)
    before, along, after = loops.groups
    kept = (*before, *after)

    def cost(var: Var, _: Var | None) -> float:
        return vector_cost(loops.forms, loops.offsets, var, loops.lanes)

    chosen = loops.in_vectors((*reversed(kept), *along[-1:]), cost).in_streams()
    return Nest(**vars(chosen), kept=kept, axis=along)
