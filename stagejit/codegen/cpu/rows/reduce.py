"""Kernels of `reduce` regions: all stages of a row (maxima, sums, results) in one pass over the
kept space.

Input: a region whose reduces share a row space. Output: its kernel. The last pass stores. Expensive
values that several stages need are kept in the worker's scratch. Invariant: one item reads and
writes its own rows only, so items need no barrier.

Note [Two shapes of vectors]: where the contiguous variable is reduced, a row lies along the lanes
and ends in a horizontal merge ("inner"). Where it is kept, each lane is a row of its own and
several vectors of rows advance together ("outer").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import operations, region_seconds
from stagejit.codegen.cpu.rows.loops import StraightRows, VectorNest, VectorRows
from stagejit.codegen.cpu.rows.panels import PanelLoops
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.places.accesses import vector_cost
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.rows.nest import RowNest, reducer_of
from stagejit.codegen.rows.plan import keeping, row_nests
from stagejit.codegen.target import Target
from stagejit.graph.ops.elementwise import function_of
from stagejit.index.affine import Var

_ACROSS_LANES = 6.0  # memory operations that it takes to merge the lanes of one row
_AS_MEMORY = 0.5  # memory operations that take as long as one flop of each lane, two a cycle


def reduce_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `reduce`."""
    nests = [_plan(rows, target) for rows in row_nests(region, target)]
    choices = (*nests[0].choices, *_row_choices(nests[0]))  # the parts are alike
    return kernel_of(region, nests, _tree, region_seconds(region, target), choices, target)


def _tree(nest: VectorNest, emitter: Emitter, memory: Sequence[Memory]) -> Parallel:
    policy = StraightRows if nest.straight else PanelLoops if nest.lanes_are_rows else VectorRows
    return policy(nest, emitter, memory).tree()


# -------------------------------------------------------------------- planning


def _plan(rows: RowNest, target: Target) -> VectorNest:
    loops = _with_vectors(rows, target)
    straight = _straight(loops, target)
    streams = loops.in_streams(reads=loops.vector in loops.groups[0] and not straight)
    nest = VectorNest(**vars(streams), straight=straight)
    return nest if nest.straight else keeping(nest, target.l2_nbytes // 2)


def _row_choices(nest: VectorNest) -> Iterator[Choice]:
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
    return target.vector_registers // (4 if across else 1)


def _with_vectors(rows: RowNest, target: Target) -> RowNest:
    """Along the variable that takes the fewest operations; see Note [Two shapes of vectors]. Where
    rows lie along the lanes, their last vectors have lanes that nobody wants, and what follows a
    row is computed in one lane."""
    (kept, reduced), forms, lanes = rows.groups, rows.forms, rows.lanes
    stored = [rows.offsets[number] for number, _ in rows.row_stores]
    length = math.prod(var.extent for var in reduced)
    # The elements of a row that is unrolled lie between the lanes of vectors of rows.
    neighbours = length if length <= _longest_straight(target, across=False) else 0
    inside, behind, merges = _operations(rows)
    full = _AS_MEMORY / target.lanes("f32")  # operations that an element takes, if all lanes do

    def cost(var: Var, _: Var | None) -> float:
        wasted = -(-var.extent // lanes) * lanes / var.extent
        if var in kept:
            moved = vector_cost(forms, stored, var, lanes, neighbours)
            return moved + (inside + behind / length) * full * wasted
        ends = behind * full * lanes + merges * _ACROSS_LANES
        return vector_cost(forms, stored, var, lanes) + inside * full * wasted + ends / length

    return rows.in_vectors((*reversed(reduced), *reversed(kept)), cost)


def _operations(rows: RowNest) -> tuple[float, float, int]:
    """Of an element of a row, of what follows a row, and to merge what two lanes came to."""
    reduces = [op for stage in rows.stages for op in stage]
    # Of a greatest element's place, both are chosen by a comparison.
    merges = sum(3 if reducer_of(op).is_arg else 1 for op in reduces)
    size, inside, behind = reduces[0].operands[0].type.size, float(merges), 0.0
    for op in rows.region.ops:
        if function_of(op) is not None:
            if op.result.type.size == size:
                inside += operations(op)
            else:
                behind += operations(op)
    return inside, behind, merges
