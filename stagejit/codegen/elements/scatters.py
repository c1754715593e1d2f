"""Scatters: the loops over their updates, and what becomes of one.

Input: a region whose anchor is a `scatter`; its result's buffer holds the operand already. Output:
loops that say which iterations are independent, and the code of one window and one element.
Invariant: updates of one element are applied in the order of the index vectors, if that is the
order in which one item has them.

Note [Windows that move]: where windows start at several places of an axis and are longer than 1
there, two of them may overlap, so that an element is element 5 of one and element 0 of another. Who
has element 5 of all windows must have element 0 of all, too.

Note [Owned ranges]: where windows are too small to share out, every item reads all index vectors
and applies those that start in its range of one axis, along which windows have size 1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from itertools import groupby

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.loops import Loops, Walked, loops_of
from stagejit.codegen.places.space import Space
from stagejit.codegen.places.walk import E, Walk
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var


@record(kw_only=True)
class UpdateLoops(Loops):
    """Over elements of the updates. moving: of the variables of `window`, those along which windows
    may overlap, see Note [Windows that move]."""

    moving: frozenset[Var]

    @property
    def op(self) -> Op:
        return self.region.anchor_op

    @property
    def free(self) -> tuple[Var, ...]:
        """Whose iterations are independent."""
        return self.groups[0]

    @property
    def ordered(self) -> tuple[Var, ...]:
        """Over index vectors that may name the same places."""
        return self.groups[1]

    @property
    def window(self) -> tuple[Var, ...]:
        """Over the elements of a window."""
        return tuple(var for part in self.groups[2:] for var in part)

    @property
    def owned_axis(self) -> int:
        """The axis of which ranges may be owned, -1 for none; see Note [Owned ranges]."""
        dims, shape = dims_of(self.op), self.op.result.shape
        axes = [axis for axis in dims.start_axes if dims.sizes[axis] == 1 and shape[axis] > 1]
        return max(axes, key=lambda axis: shape[axis], default=-1)


def update_loops(region: ClosedRegion, target: Machine) -> UpdateLoops:
    """The loops of a region of kind `scatter`."""
    op = region.anchor_op
    _, _, updates = op.operands
    dims = dims_of(op)

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
    _, _, *parts = loops.groups
    moved = [part for run, part in zip(runs, parts, strict=True) if run[0] in moving]
    return UpdateLoops(**vars(loops), moving=frozenset(var for part in moved for var in part))


def dims_of(op: Op) -> GatherDims:
    """Of the gather that reads what a scatter writes."""
    updates = op.operands[2]
    return ScatterDims.of(op.attrs).as_gather(op.result.type.rank, updates.shape)


def evaluated_abreast(loops: UpdateLoops) -> list[Value]:
    """What several windows share the evaluation of: their places, and updates that are in no
    memory."""
    _, indices, updates = loops.op.operands
    return [indices, *([] if updates in loops.region.inputs else [updates])]


def _moving_axes(op: Op) -> frozenset[int]:
    """Axes of the updates along which windows may overlap; see Note [Windows that move]."""
    dims = dims_of(op)
    rooms = dims.rooms(op.result.shape)
    return frozenset(
        own
        for axis, own in zip(dims.window_axes, dims.offset_axes, strict=True)
        if rooms.get(axis, 1) > 1 and dims.sizes[axis] > 1
    )


def _starts(
    walk: Walk[E], op: Op, index: Index, inside: list[E] | None = None, *, clamps: bool = True
) -> dict[int, Affine]:
    """Where the window of element `index` of the updates starts. inside, clamps: see
    `Walk.standing_at`."""
    indices, dims, starts = op.operands[1], dims_of(op), {}
    for component, (axis, room) in enumerate(dims.rooms(op.result.shape).items()):
        start = walk.value(indices, (*dims.batch_of(index), Affine((), component)))
        starts[axis] = walk.standing_at(start, indices.type.dtype, room, inside, clamps=clamps)
    return starts


class Updates:
    """The updates of one scatter, in memory `into`. ranges: the variable of ranges that are owned.
    offset: in memory, of the element where the loops stand. inside: whether the window where they
    stand is applied; None: always."""

    def __init__(self, loops: UpdateLoops, elements: Elements, into: Memory, ranges: Var) -> None:
        self.op, self.loops, self.elements, self.into = loops.op, loops, elements, into
        self.ranges = ranges
        self.offset = Affine()
        self.inside: Register | None = None

    @contextmanager
    def window(self, *, own: bool = False, applied: bool = False) -> Iterator[None]:
        """One window, whose starts are read. own: it is applied if it starts in the range where the
        loops stand; applied: it is known that it is."""
        op, elements = self.op, self.elements
        conditions: list[Register] = []
        with elements.at():
            clips = op.attrs["mode"] == "clip"
            inside = None if applied or clips else conditions
            starts = _starts(elements, op, self.loops.index, inside, clamps=clips)
            if own:
                conditions.append(self._is_own(starts))
            self.inside = reduce(operator.and_, conditions) if conditions else None
            place = dims_of(op).operand_index(self.loops.index, starts)
            self.offset = op.result.type.offset(place)
            yield

    def _is_own(self, starts: Mapping[int, Affine]) -> Register:
        axis, number = self.loops.owned_axis, self.elements.position.env[self.ranges]
        size = -(-dims_of(self.op).rooms(self.op.result.shape)[axis] // self.ranges.extent)
        start = self.elements.scalar_index(starts[axis])
        return self.elements.b.compare("lt", start - number * size, size, signed=False)

    @contextmanager
    def abreast(self, along: Var, rows: int) -> Iterator[None]:
        """Inside, what so many windows along a variable need is there: where they start, and their
        elements, which are evaluated."""
        (_, indices, updates), index = self.op.operands, self.loops.index
        with self.elements.abreast(along, rows, evaluated_abreast(self.loops)):
            for component in range(indices.shape[-1]):
                at = (*dims_of(self.op).batch_of(index), Affine((), component))
                self.elements.make_abreast(indices, at)
            self.elements.make_abreast(updates, index)
            yield

    def update(self) -> Register:
        """The element of the updates where the loops stand, or a vector of them."""
        return self.elements.value(self.op.operands[2], self.loops.index)

    def combine(self) -> None:
        """One element, or a vector of them, of the destination."""
        dtype, fn = self.op.result.type.dtype, self.op.attrs["fn"]
        update = self.update()
        if fn != "set":
            before = self.elements.load_at(self.op.result, self.into, self.offset)
            update = self.elements.combined(fn, dtype, [before, update])
        self.elements.store(update, dtype, self.into, self.offset)
