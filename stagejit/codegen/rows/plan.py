"""Plans the rows of a `reduce` region: the loops, the passes over each row, and what they share.

Input: a region whose reduces share a row space. Output: a `RowNest` for each space of rows, with
neither vectors nor threads yet. Invariant: a stage has the reduces that depend on no later one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Walked, loops_of
from stagejit.codegen.places.space import Space
from stagejit.codegen.rows.nest import RowNest, Stage, reducer_of
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.moving.splits import is_uneven, last_part
from stagejit.index.affine import Index

_WORTH_KEEPING = 8.0  # flops of a value that is cheaper to reload than to compute again

R = TypeVar("R", bound=RowNest)


def row_nests(region: ClosedRegion, target: Machine) -> list[RowNest]:
    """One for all rows, or two where the parts of a split sum are uneven."""
    return [_nest(region, space, target) for space in _spaces(region.anchor_op.operands[0])]


def _spaces(operand: Value) -> list[Space]:
    """The rows: in one space, or all parts but the last, and that one, where it is shorter."""
    split, (parts, *inner) = operand.op, operand.shape or (1,)
    if not is_uneven(split):
        return [Space(operand.shape, "r")]
    axis, short = split.attrs["axis"], last_part(split)
    rest = (*inner[:axis], short, *inner[axis + 1 :])
    first = (parts - 1, *(0 for _ in inner))
    return [Space((parts - 1, *inner), "r"), Space((1, *rest), "r", first)]


def _nest(region: ClosedRegion, space: Space, target: Machine) -> RowNest:
    reduces = [op for op in region.ops if op.definition.is_reduce]
    shape, axes = reduces[0].operands[0].shape, reduces[0].attrs["axes"]
    bound = {op.result for op in reduces}
    groups = [
        [axis for axis in range(len(shape)) if (axis in axes) is ours] for ours in (False, True)
    ]
    in_row = [_in_row_space(store.value, shape, axes) for store in region.stores]

    def walk(footprint: Footprint, index: Index) -> Walked:
        kept = tuple(index[axis] for axis in groups[0])
        kept_shape = tuple(shape[axis] for axis in groups[0])
        for op in reduces:
            footprint.value(op.operands[0], index)
            footprint.asked.append((op.result, kept))
            if reducer_of(op).is_arg:
                footprint.numbers.append(index[op.attrs["axes"][0]])
        offsets, places = [], []
        for store, along in zip(region.stores, in_row, strict=True):
            at, of = (index, shape) if along else (kept, kept_shape)
            places.append(footprint.reshaped(at, of, store.value.shape))
            offsets.append(footprint.write(store, places[-1]))
        return index, places, offsets

    loops = loops_of(region, target, space, groups, walk, bound)
    stored = [
        tuple((n, at) for n, at in enumerate(loops.places) if in_row[n] is along)
        for along in (True, False)
    ]
    return RowNest(
        **vars(loops),
        stages=_stages(region, reduces),
        row_stores=stored[0],
        kept_stores=stored[1],
    )


def _stages(region: ClosedRegion, reduces: Sequence[Op]) -> tuple[Stage, ...]:
    """Reduces by pass: each one after those that its operand depends on."""
    inside = set(region.ops)
    passes: dict[Op, int] = {}
    for op in region.ops:  # topological order
        before = max(
            (passes[operand.op] for operand in op.operands if operand.op in inside), default=0
        )
        passes[op] = before + op.definition.is_reduce
    last = max(passes[op] for op in reduces)
    return tuple(tuple(op for op in reduces if passes[op] == level) for level in range(1, last + 1))


def _in_row_space(value: Value, shape: tuple[int, ...], axes: Sequence[int]) -> bool:
    """Whether a stored value has an element for each of the row space, not for each row."""
    kept = math.prod(extent for axis, extent in enumerate(shape) if axis not in axes)
    if value.shape == shape or value.type.size in (kept, math.prod(shape)):
        return value.shape == shape or value.type.size != kept
    raise InternalError(
        f"{value} is neither in the row space {shape} nor in the kept space",
        step="codegen",
        loc=value.op.loc,
    )


# -------------------------------------------------------------------- what passes share


def keeping(nest: R, budget: int) -> R:
    """Keeps in scratch, in so many bytes, the row-space values that cost much and that several
    passes need, each at the element where the row stands: what is needed at other elements is
    computed again."""
    region, bound = nest.region, {op.result for stage in nest.stages for op in stage}
    shape = nest.stages[0][0].operands[0].shape
    passes = [[(op.operands[0], nest.index) for op in stage] for stage in nest.stages]
    passes.append([(region.stores[number].value, index) for number, index in nest.row_stores])
    elements = nest.scratch_size
    chosen: set[Value] = set()
    before: set[Value] = set()  # what an earlier pass evaluated there
    for roots in passes:
        while True:
            flops = _evaluated(region, nest, roots, bound | chosen)
            kept = next(
                (
                    value
                    for value in reversed(flops)
                    if value in before - chosen
                    and value.shape == shape
                    and elements * value.type.dtype.itemsize <= budget
                    and flops[value] >= _WORTH_KEEPING
                ),
                None,
            )
            if kept is None:
                break
            chosen.add(kept)  # what it is computed from is needed no more
            budget -= elements * kept.type.dtype.itemsize
        before.update(flops)
    return replace(nest, cached=tuple(v for op in region.ops for v in op.results if v in chosen))


def _evaluated(
    region: ClosedRegion, nest: RowNest, roots: Sequence[tuple[Value, Index]], bound: set[Value]
) -> dict[Value, float]:
    """The values that one pass evaluates where the row stands, producers before consumers, and what
    it takes to compute each of them; of those that are no map's, nothing."""
    footprint = Footprint(region, bound)
    for value, index in roots:
        footprint.value(value, index)
    flops: dict[Value, float] = {}
    for value, index in footprint.evaluated:
        if index == nest.index:
            op, flops[value] = value.op, 0.0
            if function := function_of(op):
                before = sum(flops.get(operand, 0.0) for operand in set(op.operands))
                flops[value] = vmath.cost(function, value.type.dtype) + before
    return flops
