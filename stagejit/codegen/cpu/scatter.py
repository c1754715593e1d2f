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
from collections.abc import Iterator, Mapping, Sequence
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
from stagejit.graph.dims import ScatterDims
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
    """Of elements of the updates; their place in the destination is told but for the starts. The
    first group of loops has independent iterations, the second is over index vectors, and the rest
    over the elements of a window.

    still: whether elements along the vector variable are of different destinations, see Note
    [Windows that move]. owned: the axis of Note [Owned ranges], or None, and ranges the number of
    them."""

    still: bool
    owned: int | None
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
    dims = ScatterDims.of(op.attrs)

    def walk(footprint: Footprint, index: Index) -> Walked:
        footprint.value(updates, index)
        starts, place = _starts(footprint, op, index), _place(op, index)
        footprint.numbers.append(_offset(op, place, starts))
        return index, [place], footprint.numbers[-1:]

    batch = dims.batch_axes(len(updates.shape))
    apart = {batch[axis] for axis in dims.index_batch_axes}
    if op.attrs["unique"]:
        apart = set(batch)
    several = [axis for axis in batch if axis not in apart]
    moving = _moving_axes(op) if any(updates.shape[axis] > 1 for axis in several) else frozenset()
    runs = [list(run) for _, run in groupby(dims.window_axes, key=moving.__contains__)]
    groups = [sorted(apart), several, *runs]
    loops = loops_of(region, target, Space(updates.shape, "u"), groups, walk)
    free, _, *parts = loops.groups
    window = [var for part in parts for var in part]
    loops = loops.in_vectors(window[::-1], but=indices)
    still = not any(
        run[0] in moving and loops.vector in part for run, part in zip(runs, parts, strict=True)
    )
    owners = _owners(region, free, loops.vector if still else None, loops.lanes, target)
    loops = replace(loops, choices=(*loops.choices, owners.choice))
    owned, ranges = owners.best
    return _Nest(**vars(loops), still=still, owned=owned, ranges=ranges)


def _rooms(op: Op) -> dict[int, int]:
    """Positions at which a window may start, by the axis that index vectors move along."""
    dims, shape = ScatterDims.of(op.attrs), op.result.shape
    window = dims.window(len(shape), op.operands[2].shape)
    return {axis: max(shape[axis] - window[axis] + 1, 1) for axis in dims.start_axes}


def _moving_axes(op: Op) -> frozenset[int]:
    """Axes of the updates along which windows may overlap; see Note [Windows that move]."""
    dims, rooms = ScatterDims.of(op.attrs), _rooms(op)
    kept = dims.kept_axes(op.result.type.rank)
    return frozenset(
        own
        for axis, own in zip(kept, dims.window_axes, strict=True)
        if rooms.get(axis, 1) > 1 and op.operands[2].shape[own] > 1
    )


def _starts(
    walk: Walk[E], op: Op, index: Index, inside: list[E] | None = None
) -> dict[int, Affine]:
    """Where the window of element `index` of the updates starts. inside: see `Walk.standing_at`."""
    indices, starts = op.operands[1], {}
    batch = [index[axis] for axis in ScatterDims.of(op.attrs).batch_axes(len(index))]
    for component, (axis, room) in enumerate(_rooms(op).items()):
        start = walk.value(indices, (*batch, Affine((), component)))
        starts[axis] = walk.standing_at(start, indices.type.dtype, room, inside)
    return starts


def _offset(op: Op, place: Index, starts: Mapping[int, Affine]) -> Affine:
    """In the destination, of a place that is relative to its start."""
    moved = (part + starts.get(axis, Affine()) for axis, part in enumerate(place))
    return op.result.type.offset(tuple(moved))


def _place(op: Op, index: Index) -> Index:
    """Where element `index` of the updates goes, relative to its start."""
    dims, rank = ScatterDims.of(op.attrs), op.result.type.rank
    batch = [index[axis] for axis in dims.batch_axes(len(index))]
    parts = [Affine()] * rank
    for axis, driver in zip(dims.operand_batch_axes, dims.index_batch_axes, strict=True):
        parts[axis] = batch[driver]
    for axis, position in zip(dims.kept_axes(rank), dims.window_axes, strict=True):
        parts[axis] = index[position]
    return tuple(parts)


def _owners(
    region: ClosedRegion, free: Sequence[Var], vector: Var | None, lanes: int, target: Target
) -> Ranked[tuple[int | None, int]]:
    """The axis whose ranges are owned, and how many ranges; (None, 1) for none."""
    op = region.anchor_op
    dims, shape = ScatterDims.of(op.attrs), op.result.shape
    window = dims.window(len(shape), op.operands[2].shape)
    axes = [axis for axis in dims.start_axes if window[axis] == 1 and shape[axis] > 1]
    blocks = -(-vector.extent // (lanes * _BLOCK)) if vector else 1
    items = math.prod(var.extent for var in free) * blocks
    ways: list[tuple[int | None, int]] = [(None, 1)]
    if axes and items < 2 * target.cores:
        axis = max(axes, key=lambda axis: shape[axis])
        wanted = (-(-workers // items) for workers in (target.cores, 2 * target.cores))
        ways += [(axis, min(count, shape[axis])) for count in wanted if count > 1]
    # One window costs what its vectors do, and a wait where its place is in no cache of the core.
    vectors = math.prod(window) / blocks / max(lanes if vector else 1, 1)
    far = _FAR if op.result.type.nbytes > target.l2_nbytes else 0
    combine = far + vectors * (_MOVES + element_code(region))

    def cycles(way: tuple[int | None, int]) -> float:
        """Cycles a window, of the core that has most to do. Each item of a range asks of each
        window whether it is its own: whether that is so is not to be predicted, unless windows are
        sorted, or few are its own."""
        ranges = way[1]
        rounds = -(-items * ranges // target.cores) / ranges  # of all windows of an item
        if ranges == 1:
            return -(-items // target.cores) * (_INDEX + combine)
        own = 1 / ranges
        wrong = 0.0 if op.attrs["sorted"] else min(own, 1 - own)
        return rounds * (ranges * (_INDEX + wrong * _MISPREDICTED) + combine)

    return cheapest("owners", ways, cycles, _way_in_words, "cycles a window")


def _way_in_words(way: tuple[int | None, int]) -> str:
    axis, ranges = way
    return "items differ in windows" if axis is None else f"{ranges} ranges of axis {axis}"


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
        if nest.owned is not None:
            loops.append((self.range, 1))
        if nest.vector:
            loops.append((nest.vector, self._block()))
        elements = self._elements([var for part in window for var in part])
        inside = When("inside", lambda: self.inside, elements)
        windows = serial(ordered, Within("starts", self._started, inside))
        return in_items(loops, windows, nest.target.cores)

    def _block(self) -> int:
        """Elements along the vector variable that one item takes: all where windows move."""
        assert self.nest.vector is not None
        whole = -(-self.nest.vector.extent // self.nest.lanes) * self.nest.lanes
        return min(self.nest.lanes * _BLOCK, whole) if self.nest.still else whole

    @contextmanager
    def _started(self) -> Iterator[None]:
        """One window, whose starts are read."""
        op, nest, elements = self.op, self.nest, self.elements
        conditions: list[Register] = []
        with elements.at():
            clips = op.attrs["mode"] == "clip"
            starts = _starts(elements, op, nest.index, None if clips else conditions)
            if nest.owned is not None:
                conditions.append(self._owns(elements.scalar_index(starts[nest.owned])))
            self.inside = reduce(operator.and_, conditions) if conditions else None
            self.offset = _offset(op, nest.places[0], starts)
            yield

    def _owns(self, start: Register) -> Register:
        assert self.nest.owned is not None
        size = -(-_rooms(self.op)[self.nest.owned] // self.nest.ranges)
        first = self.elements.position.env[self.range] * size
        return self.b.compare("lt", start - first, size, signed=False)

    def _elements(self, window: Sequence[Var]) -> Node:
        """All elements of the window that belong to this item."""
        body: Node = Do("combine", self._combine)
        if self.nest.vector is not None:
            body = vectors(self.nest.vector, self.nest.lanes, body)
        return serial([var for var in window if var is not self.nest.vector], body)

    def _combine(self) -> None:
        """One element, or a vector of them, of the destination."""
        dtype, fn = self.op.result.type.dtype, self.op.attrs["fn"]
        update = self.elements.value(self.op.operands[2], self.nest.index)
        if fn != "set":
            before = self.elements.load_at(self.op.result, self.into, self.offset)
            update = self.elements.combined(fn, dtype, [before, update])
        self.elements.store(update, dtype, self.into, self.offset)
