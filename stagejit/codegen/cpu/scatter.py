"""Kernels of `scatter` regions: updates written into, or combined with, an array at computed
places.

Input: a region whose anchor is a `scatter`; its result's buffer holds the operand already. Output:
its kernel. Invariant: deterministic. Updates of one element are applied in the order of the index
vectors, by one item: items differ in the batch they belong to, in the range of the destination that
they own, or in window elements along axes on which windows stay where they are.

Note [Windows that move]: where windows start at several places of an axis and are longer than 1
there, two of them may overlap, so that an element is element 5 of one and element 0 of another. Who
has element 5 of all windows must have element 0 of all, too.

Note [Owned ranges]: where windows are too small to share out, every item reads all index vectors
and applies those that start in its range of one axis, along which windows have size 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import element_code, region_seconds
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.loops import Loops, Walked, loops_of
from stagejit.codegen.elements.space import Space
from stagejit.codegen.elements.walk import E, Walk
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Do, Node, Parallel, When, Within, serial, vectors
from stagejit.codegen.target import Target
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.ir import Op
from stagejit.index.affine import Affine, Index, Var

_BLOCK = 64  # vectors of a window that one item takes: a page of it, for the prefetchers
# Cycles, of cores of the last years:
_INDEX = 4.0  # to read an index vector, compare and clamp it
_MISPREDICTED = 16.0  # of a branch
_MOVES = 2.0  # to load and store a vector
_FAR = 40.0  # until a line comes from the cache of all cores or from memory, some at a time


@dataclass(frozen=True, kw_only=True)
class _Nest(Loops):
    """Of elements of the updates. The first group of loops has independent iterations, the second
    is over index vectors, and the rest over the elements of a window.

    still: whether elements along the vector variable are of different destinations, see Note
    [Windows that move]. ranges: how many there are of axis `owned`, see Note [Owned ranges]."""

    still: bool
    owned: int
    ranges: int


def scatter_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region of kind `scatter`."""
    nest = _plan(region, target)
    seconds = region_seconds(region, target)
    return kernel_of(region, [nest], lambda *at: _Policy(*at).tree(), seconds, nest.choices)


# -------------------------------------------------------------------- planning


def _plan(region: ClosedRegion, target: Target) -> _Nest:
    op = region.anchor_op
    _, indices, updates = op.operands
    dims = _dims(op)

    def walk(footprint: Footprint, index: Index) -> Walked:
        footprint.value(updates, index)
        place = dims.operand_index(index, _starts(footprint, op, index))
        footprint.numbers.append(op.result.type.offset(place))
        return index, [], footprint.numbers[-1:]

    batch = dims.batch_axes(len(updates.shape))
    apart = {batch[axis] for axis in dims.index_batch_axes}
    if op.attrs["unique"]:
        apart = set(batch)
    several = [axis for axis in batch if axis not in apart]
    moving = _moving_axes(op) if any(updates.shape[axis] > 1 for axis in several) else frozenset()
    runs = [list(run) for _, run in groupby(dims.offset_axes, key=moving.__contains__)]
    groups = [sorted(apart), several, *runs]
    loops = loops_of(region, target, Space(updates.shape, "u"), groups, walk)
    free, _, *parts = loops.groups
    window = [var for part in parts for var in part]
    loops = loops.in_vectors(window[::-1], but=indices)
    still = not any(
        run[0] in moving and loops.vector in part for run, part in zip(runs, parts, strict=True)
    )
    owned, owners = _owners(region, free, loops.vector if still else None, loops.lanes, target)
    loops = replace(loops, choices=(*loops.choices, owners.choice))
    return _Nest(**vars(loops), still=still, owned=owned, ranges=owners.best)


def _dims(op: Op) -> GatherDims:
    """Of the gather that reads what a scatter writes."""
    updates = op.operands[2]
    return ScatterDims.of(op.attrs).as_gather(op.result.type.rank, updates.shape)


def _moving_axes(op: Op) -> frozenset[int]:
    """Axes of the updates along which windows may overlap; see Note [Windows that move]."""
    dims = _dims(op)
    rooms = dims.rooms(op.result.shape)
    return frozenset(
        own
        for axis, own in zip(dims.window_axes, dims.offset_axes, strict=True)
        if rooms.get(axis, 1) > 1 and dims.sizes[axis] > 1
    )


def _starts(
    walk: Walk[E], op: Op, index: Index, inside: list[E] | None = None
) -> dict[int, Affine]:
    """Where the window of element `index` of the updates starts. inside: see `Walk.standing_at`."""
    indices, dims, starts = op.operands[1], _dims(op), {}
    for component, (axis, room) in enumerate(dims.rooms(op.result.shape).items()):
        start = walk.value(indices, (*dims.batch_of(index), Affine((), component)))
        starts[axis] = walk.standing_at(start, indices.type.dtype, room, inside)
    return starts


def _owners(
    region: ClosedRegion, free: Sequence[Var], vector: Var | None, lanes: int, target: Target
) -> tuple[int, Ranked[int]]:
    """The axis of which ranges may be owned, and how many are, 1 for none."""
    op = region.anchor_op
    dims, shape = _dims(op), op.result.shape
    axes = [axis for axis in dims.start_axes if dims.sizes[axis] == 1 and shape[axis] > 1]
    axis = max(axes, key=lambda axis: shape[axis], default=-1)
    blocks = -(-vector.extent // (lanes * _BLOCK)) if vector else 1
    items = math.prod(var.extent for var in free) * blocks
    ways = [1]
    if axes and items < 2 * target.cores:
        wanted = (-(-workers // items) for workers in (target.cores, 2 * target.cores))
        ways += [min(count, shape[axis]) for count in wanted if count > 1]
    # One window costs what its vectors do, and a wait where its place is in no cache of the core.
    vectors = math.prod(dims.sizes) / blocks / max(lanes if vector else 1, 1)
    far = _FAR if op.result.type.nbytes > target.l2_nbytes else 0
    combine = far + vectors * (_MOVES + element_code(region))

    def cycles(ranges: int) -> float:
        """Cycles a window, of the core that has most to do. Each item of a range asks of each
        window whether it is its own: whether that is so is not to be predicted, unless windows are
        sorted, or few are its own."""
        rounds = -(-items * ranges // target.cores) / ranges  # of all windows of an item
        wrong = 0.0 if op.attrs["sorted"] else min(1 / ranges, 1 - 1 / ranges)
        return rounds * (ranges * (_INDEX + wrong * _MISPREDICTED) + combine)

    def text(ranges: int) -> str:
        return "items differ in windows" if ranges == 1 else f"{ranges} ranges of axis {axis}"

    return axis, cheapest("owners", ways, cycles, text, "cycles a window")


# -------------------------------------------------------------------- loops and statements


class _Policy:
    """The loops of one scatter, and what they do."""

    def __init__(self, nest: _Nest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.op, self.nest, self.elements = nest.region.anchor_op, nest, emitter.elements
        self.b, (self.into,) = emitter.b, memory
        self.range = Var(nest.ranges, "p")
        self.offset = Affine()  # of the element where the loops stand, in the destination
        self.inside: Register | None = None  # whether this item applies the window; None: always

    def tree(self) -> Parallel:
        nest = self.nest
        free, ordered, *window = nest.groups
        loops = [(var, 1) for var in free]
        if nest.ranges > 1:
            loops.append((self.range, 1))
        body: Node = Do("combine", self._combine)
        if nest.vector is not None:
            # One item takes all along it where windows move.
            whole = -(-nest.vector.extent // nest.lanes) * nest.lanes
            loops.append((nest.vector, min(nest.lanes * _BLOCK, whole) if nest.still else whole))
            body = vectors(nest.vector, nest.lanes, body)
        elements = [var for part in window for var in part if var is not nest.vector]
        inside = When("inside", lambda: self.inside, serial(elements, body))
        windows = serial(ordered, Within("starts", self._started, inside))
        return in_items(loops, windows, nest.target.cores)

    @contextmanager
    def _started(self) -> Iterator[None]:
        """One window, whose starts are read."""
        op, nest, elements = self.op, self.nest, self.elements
        conditions: list[Register] = []
        with elements.at():
            clips = op.attrs["mode"] == "clip"
            starts = _starts(elements, op, nest.index, None if clips else conditions)
            if nest.ranges > 1:
                conditions.append(self._owns(elements.scalar_index(starts[nest.owned])))
            self.inside = reduce(operator.and_, conditions) if conditions else None
            self.offset = op.result.type.offset(_dims(op).operand_index(nest.index, starts))
            yield

    def _owns(self, start: Register) -> Register:
        rooms = _dims(self.op).rooms(self.op.result.shape)
        size = -(-rooms[self.nest.owned] // self.nest.ranges)
        first = self.elements.position.env[self.range] * size
        return self.b.compare("lt", start - first, size, signed=False)

    def _combine(self) -> None:
        """One element, or a vector of them, of the destination."""
        dtype, fn = self.op.result.type.dtype, self.op.attrs["fn"]
        update = self.elements.value(self.op.operands[2], self.nest.index)
        if fn != "set":
            before = self.elements.load_at(self.op.result, self.into, self.offset)
            update = self.elements.combined(fn, dtype, [before, update])
        self.elements.store(update, dtype, self.into, self.offset)
