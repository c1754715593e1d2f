"""Kernels of `reduce` regions: all stages of a row (maxima, sums, results) in one pass over the
kept space.

Input: a region whose reduces share a row space. Output: its kernel. A stage accumulates the
reduces that depend on no later one; the last pass stores. Expensive values that several stages
need are kept in the worker's scratch. Invariant: one item reads and writes its own rows only, so
items need no barrier.

Note [Two shapes of vectors]: where the contiguous variable is reduced, a row lies along the lanes
and ends in a horizontal merge ("inner"). Where it is kept, each lane is a row of its own and
several vectors of rows advance together ("outer"). See KERNELS.md, "Rows and reductions".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.rows.loops import RowLoops, StraightRows
from stagejit.codegen.cpu.rows.nest import RowNest
from stagejit.codegen.cpu.rows.panels import PanelLoops
from stagejit.codegen.elements.accesses import vector_cost
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.loops import Loops, Walked, loops_of
from stagejit.codegen.elements.space import Space
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.splits import is_uneven, last_part
from stagejit.index.affine import Index, Var

_ACROSS_LANES = 6.0  # what merging the lanes of one row costs, in memory operations
_WORTH_KEEPING = 8.0  # flops of a value that is cheaper to reload than to compute again


def reduce_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `reduce`."""
    nests = [_plan(region, space, target) for space in _spaces(region.anchor_op.operands[0])]
    choices = (*nests[0].choices, *_row_choices(nests[0]))  # the parts are alike
    return kernel_of(region, nests, _tree, region_seconds(region, target), choices)


def _tree(nest: RowNest, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
    policy = StraightRows if nest.straight else PanelLoops if nest.lanes_are_rows else RowLoops
    return policy(nest, emitter, memory).tree()


# -------------------------------------------------------------------- planning


def _spaces(operand: Value) -> list[Space]:
    """The rows: in one space, or all parts but the last, and that one, where it is shorter."""
    split, (parts, *inner) = operand.op, operand.shape or (1,)
    if not is_uneven(split):
        return [Space(operand.shape, "r")]
    axis, short = split.attrs["axis"], last_part(split)
    rest = (*inner[:axis], short, *inner[axis + 1 :])
    first = (parts - 1, *(0 for _ in inner))
    return [Space((parts - 1, *inner), "r"), Space((1, *rest), "r", first)]


def _plan(region: ClosedRegion, space: Space, target: Target) -> RowNest:
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
            if op.attrs["fn"] in ("argmax", "argmin"):
                footprint.numbers.append(index[op.attrs["axes"][0]])
        offsets, places = [], []
        for store, along in zip(region.stores, in_row, strict=True):
            at, of = (index, shape) if along else (kept, kept_shape)
            places.append(footprint.reshaped(at, of, store.value.shape))
            offsets.append(footprint.write(store, places[-1]))
        return index, places, offsets

    loops = loops_of(region, target, space, groups, walk, bound)
    loops = _with_vectors(loops, target).in_streams()
    stored = [
        tuple((n, at) for n, at in enumerate(loops.places) if in_row[n] is along)
        for along in (True, False)
    ]
    nest = RowNest(
        **vars(loops),
        stages=_stages(region, reduces),
        row_stores=stored[0],
        kept_stores=stored[1],
        straight=_straight(loops, target),
    )
    return nest if nest.straight else _with_cache(nest, shape)


def _row_choices(nest: RowNest) -> Iterator[Choice]:
    """How rows go through registers, and what passes keep."""
    length = math.prod(var.extent for var in nest.reduced)
    lie = "each lane is a row" if nest.lanes_are_rows else "rows lie along the lanes"
    how = "unrolled, in registers" if nest.straight else f"{len(nest.stages)} passes in loops"
    yield Choice("rows", f"{lie}; {how}: {length} elements a row")
    if nest.cached:
        kept = ", ".join(value.op.attrs.get("fn", value.op.kind) for value in nest.cached)
        yield Choice("keep", f"passes share {kept} in scratch rather than compute it again")


def _straight(loops: Loops, target: Target) -> bool:
    """Whether a row takes so few registers that all its passes fit in them, unrolled."""
    (kept, reduced), vector = loops.groups, loops.vector
    if vector is None:
        return False
    longest = _longest_straight(target, across=vector not in kept)
    if vector in kept:
        return math.prod(var.extent for var in reduced) <= longest
    return len(reduced) == 1 and -(-vector.extent // loops.lanes) <= longest


def _longest_straight(target: Target, *, across: bool) -> int:
    """Vectors of a row that is unrolled. across: a row lies along the lanes, so that its merges
    need registers too."""
    return target.vector_registers // (4 if across else 2)


def _stages(region: ClosedRegion, reduces: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
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


def _with_vectors(loops: Loops, target: Target) -> Loops:
    """Along the variable that loads best; see Note [Two shapes of vectors]."""
    (kept, reduced), forms, lanes = loops.groups, loops.forms, loops.lanes
    length = math.prod(var.extent for var in reduced)
    # The elements of a row that is unrolled lie between the lanes of vectors of rows.
    neighbours = length if length <= _longest_straight(target, across=False) else 0

    def cost(var: Var, _: Var | None) -> float:
        if var in kept:
            return vector_cost(forms, (), var, lanes, neighbours)
        return vector_cost(forms, (), var, lanes) + _ACROSS_LANES / length

    return loops.in_vectors((*reversed(reduced), *reversed(kept)), cost)


def _with_cache(nest: RowNest, shape: tuple[int, ...]) -> RowNest:
    """Keeps in scratch the row-space values that cost much and that several passes need, each at
    the element where the row stands: what is needed at other elements is computed again."""
    region, bound = nest.region, {op.result for stage in nest.stages for op in stage}
    passes = [[(op.operands[0], nest.index) for op in stage] for stage in nest.stages]
    passes.append([(region.stores[number].value, index) for number, index in nest.row_stores])
    elements, budget = nest.scratch_size, nest.target.l2_nbytes // 2
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
