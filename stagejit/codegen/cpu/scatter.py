"""Kernels of `scatter` regions: updates written into, or combined with, an array at computed
places.

Input: a region whose anchor is a `scatter`; its result's buffer holds the operand already. Output:
its kernel. Invariant: deterministic. Updates of one element are applied in the order of the index
vectors, by one item: items differ in the batch they belong to, in the range of the destination that
they own, or in window elements along axes on which windows stay where they are. See the Notes of
`elements/scatters.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.scatters import UpdateLoops, Updates, dims_of, update_loops
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Do, Node, Parallel, When, Within, serial, vectors
from stagejit.codegen.target import Target
from stagejit.index.affine import Affine, Var

_BLOCK = 64  # vectors of a window that one item takes: a page of it, for the prefetchers
# Cycles, of cores of the last years:
_INDEX = 4.0  # to read an index vector, compare and clamp it
_MISPREDICTED = 16.0  # of a branch
_MOVES = 2.0  # to load and store a vector
_FAR = 40.0  # until a line comes from the cache of all cores or from memory, some at a time


@dataclass(frozen=True, kw_only=True)
class _Nest(UpdateLoops):
    """still: whether elements along the vector variable are of different destinations. ranges: how
    many there are of the owned axis."""

    still: bool
    ranges: int


def scatter_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `scatter`."""
    nest = _plan(region, target)
    seconds = region_seconds(region, target)
    return kernel_of(region, [nest], lambda *at: _Policy(*at).tree(), seconds, nest.choices)


# -------------------------------------------------------------------- planning


def _plan(region: ClosedRegion, target: Target) -> _Nest:
    loops = update_loops(region, target)
    _, indices, _ = loops.op.operands
    loops = loops.in_vectors(loops.window[::-1], but=indices)
    still = loops.vector not in loops.moving
    owners = _owners(loops, loops.vector if still else None, target)
    choices = (*loops.choices, owners.choice)
    return _Nest(**{**vars(loops), "choices": choices}, still=still, ranges=owners.best)


def _owners(loops: UpdateLoops, vector: Var | None, target: Target) -> Ranked[int]:
    """How many ranges are owned, 1 for none."""
    op, lanes, axis = loops.op, loops.lanes, loops.owned_axis
    dims, shape = dims_of(op), op.result.shape
    blocks = -(-vector.extent // (lanes * _BLOCK)) if vector else 1
    items = math.prod(var.extent for var in loops.free) * blocks
    ways = [1]
    if axis >= 0 and items < 2 * target.cores:
        wanted = (-(-workers // items) for workers in (target.cores, 2 * target.cores))
        ways += [min(count, shape[axis]) for count in wanted if count > 1]
    # One window costs what its vectors do, and a wait where its place is in no cache of the core.
    vectors = math.prod(dims.sizes) / blocks / max(lanes if vector else 1, 1)
    far = _FAR if op.result.type.nbytes > target.l2_nbytes else 0
    combine = far + vectors * (_MOVES + element_code(loops.region))

    def cycles(ranges: int) -> float:
        """Cycles a window, of the core that has most to do. Each item of a range asks of each
        window whether it is its own: whether that is so is not to be predicted, unless windows are
        sorted, or few are its own."""
        rounds = -(-items * ranges // target.cores) / ranges  # of all windows of an item
        wrong = 0.0 if op.attrs["sorted"] else min(1 / ranges, 1 - 1 / ranges)
        return rounds * (ranges * (_INDEX + wrong * _MISPREDICTED) + combine)

    def text(ranges: int) -> str:
        return "items differ in windows" if ranges == 1 else f"{ranges} ranges of axis {axis}"

    return cheapest("owners", ways, cycles, text, "cycles a window")


# -------------------------------------------------------------------- loops and statements


class _Policy:
    """The loops of one scatter, and what they do."""

    def __init__(self, nest: _Nest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.elements, (into,) = nest, emitter.elements, memory
        self.updates = Updates(nest, emitter.elements, into)
        self.range = Var(nest.ranges, "p")

    def tree(self) -> Parallel:
        nest = self.nest
        loops = [(var, 1) for var in nest.free]
        if nest.ranges > 1:
            loops.append((self.range, 1))
        body: Node = Do("combine", self.updates.combine)
        if nest.vector is not None:
            # One item takes all along it where windows move.
            whole = -(-nest.vector.extent // nest.lanes) * nest.lanes
            loops.append((nest.vector, min(nest.lanes * _BLOCK, whole) if nest.still else whole))
            body = vectors(nest.vector, nest.lanes, body)
        elements = [var for var in nest.window if var is not nest.vector]
        inside = When("inside", lambda: self.updates.inside, serial(elements, body))
        windows = serial(nest.ordered, Within("starts", self._window, inside))
        return in_items(loops, windows, nest.target.cores)

    def _window(self) -> AbstractContextManager[None]:
        return self.updates.window(self._owns if self.nest.ranges > 1 else None)

    def _owns(self, starts: Mapping[int, Affine]) -> Register:
        number = self.elements.position.env[self.range]
        return self.updates.in_range(starts, self.nest.owned_axis, self.nest.ranges, number)
