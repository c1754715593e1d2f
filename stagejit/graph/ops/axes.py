"""Axes along which ops can be taken apart: a place of the result needs that place of operands.

Input: an op of one result, and an axis of that. Output: the axis of each operand that goes with it,
and the attributes of the same op on a part of it. Invariant: the op on parts gives the part.

What accumulates declares it (`OpDef.separate`); of elementwise ops, and of inserts of all that
there is along it, it is the same axis, and of views it follows from `pull`. (In MLIR's terms, the
tiling interface.)
"""

from __future__ import annotations

import math
from typing import Any

from stagejit.graph.ir import Op
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index, Var

Axes = tuple[int | None, ...]


def separate(op: Op, axis: int) -> Axes | None:
    """For each operand its axis of which a place along `axis` needs the same place only, None where
    it needs all of the operand; None for all where the op does not keep places apart."""
    known = op.definition
    if known.separate is not None:
        return known.separate(op, axis)
    if known.is_elementwise:
        return (axis,) * len(op.operands)
    if known.is_view and not known.splits and len(op.operands) == 1:
        return _of_view(op, axis)
    if known.is_insert or known.overlays:
        return _of_insert(op, axis)
    made_up = known.is_splat or known.counts or known.is_empty
    return (None,) * len(op.operands) if made_up else None


def summed(op: Op, operand: int, axis: int) -> Axes | None:
    """For each operand its axis of which places are summed with those of `axis` of one operand;
    None where they are not, or where partial sums cannot be put together."""
    return op.definition.summed(op, operand, axis) if op.definition.summed is not None else None


def _of_view(op: Op, axis: int) -> Axes | None:
    source, shape = op.operands[0].shape, op.result.shape
    if shape[axis] != 1 and op.definition.keeps_order:  # the two common ones, without index maps
        before = math.prod(shape[:axis])
        same = (at for at, extent in enumerate(source) if extent == shape[axis])
        return next(((at,) for at in same if math.prod(source[:at]) == before), None)
    if shape[axis] != 1 and op.definition.is_extract:
        return (axis,) if source[axis] == shape[axis] else None
    variables = [Var(extent) for extent in op.result.shape]
    index: Index = tuple(map(Affine.of, variables))
    pulled = pull_view(op, index)
    own = variables[axis]
    found = [at for at, part in enumerate(pulled) if own in part.loop_vars()]
    if not found:
        return (None,)
    at = found[0]
    whole = op.operands[0].shape[at] == op.result.shape[axis]
    return (at,) if len(found) == 1 and whole and pulled[at] == index[axis] else None


def _of_insert(op: Op, axis: int) -> Axes | None:
    """Along an axis of which the box has all places."""
    source, destination, *starts = op.operands
    whole = source.shape[axis] == destination.shape[axis] and op.attrs["offsets"][axis] == 0
    return (axis, axis, *(None for _ in starts)) if whole else None


def narrowed(op: Op, axis: int, extent: int) -> dict[str, Any]:
    """The attributes of `op` on `extent` places along an axis of its result."""
    attrs = dict(op.attrs)
    for name in ("shape", "sizes"):
        if name in attrs:
            shape = attrs[name]
            attrs[name] = (*shape[:axis], extent, *shape[axis + 1 :])
    return attrs
