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
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cpu.rows.loops import StraightRows, VectorRows
from stagejit.codegen.cpu.rows.nest import VectorNest
from stagejit.codegen.cpu.rows.panels import PanelLoops
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Parallel
from stagejit.codegen.places.accesses import vector_cost
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.rows.nest import RowNest
from stagejit.codegen.rows.plan import keeping, row_nests
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_ACROSS_LANES = 6.0  # what merging the lanes of one row costs, in memory operations


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
    return target.vector_registers // (4 if across else 2)


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
