"""Sums and the like of many updates at few computed places, in parts that workers share.

Input: a `scatter` that combines, a machine. Output: what parts of the updates make, each of a
destination of its own, then all of them combined. Invariant: what is combined is the same, in
another order, which depends on shapes and the machine only; 16-bit floats are rounded once.

Note [Owners]: on a GPU integers meet by atomics, in any order. Of floats the order decides, so
an owner of some places, a warp or a thread, looks at all index vectors and applies its own, one
after the other. So few places are few owners, each of which waits for memory all the time; with
parts there are as many more, who look at as many less.

Note [Cores]: one core takes index vectors one after the other, and has to have read all updates;
with a part for each core all of them read. `sharing.py` has the other ways to share.
"""

from __future__ import annotations

import math

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.graph.dims import ScatterDims
from stagejit.graph.functions import neutral
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.split.pieces import taken_along
from stagejit.rewrites.split.sharing import MERGED, Sharing
from stagejit.types import TensorType

_LOOK = 0.4e-9  # seconds that an owner takes to look at an index vector, of which it has 32 at once
_COMBINE = 0.2e-6  # to read, add and write elements of a window that it owns
_ABREAST = 32  # elements of a window that it has at once
_MOST_PARTS = 1024
# Bytes of a destination of which few updates meet at an end of it: each of them waits for a line of
# the other core's. Of 4,000 bytes, 3 updates in 100; two cores took longer for them than one.
_APART = 32 << 10
_WORTH = 0.7  # of the time in one piece


@record
class Updates:
    """axis: of the indices, along which parts follow each other. vectors: index vectors of a batch;
    batches: how many. places: that may have an owner. window, nbytes: elements of a window, and
    bytes of the destination, in the type of sums."""

    op: Op
    axis: int
    vectors: int
    batches: int
    places: int
    window: int
    nbytes: int

    @staticmethod
    def of(op: Op) -> Updates | None:
        """None where no two windows meet, or none are combined."""
        x, indices, updates = op.operands
        dims, dtype = ScatterDims.of(op.attrs), x.type.dtype
        if op.attrs["fn"] == "set" or op.attrs["unique"]:
            return None
        if not (dtype.is_float or dtype.is_integer) or not x.type.size or not updates.type.size:
            return None
        batch = indices.shape[:-1]
        several = [axis for axis in range(len(batch)) if axis not in dims.index_batch_axes]
        axis = max(several, key=lambda axis: batch[axis], default=-1)
        if axis < 0 or batch[axis] < 2:
            return None
        sizes = dims.window(x.type.rank, updates.shape)
        owned = [x.shape[axis] for axis in dims.start_axes if sizes[axis] == 1]
        batches = math.prod(batch[axis] for axis in dims.index_batch_axes)
        return Updates(
            op=op,
            axis=axis,
            vectors=math.prod(batch) // batches,
            batches=batches,
            places=max(owned, default=1),
            window=math.prod(sizes),
            nbytes=x.type.size * dtype.accumulator.itemsize,
        )

    def parts(self, machine: Machine, budget: int | None = None) -> tuple[int, str]:
        """How many pay most, and why; 1: none do. Their sums stay in the last cache, and within a
        budget of bytes."""
        most = min(_MOST_PARTS, self.op.operands[1].shape[self.axis] // 2)
        room = min(machine.l3s_nbytes, machine.l3s_nbytes if budget is None else budget)
        most = min(most, room // self.nbytes)
        if machine.owners_at_once:
            counts = [1 << bit for bit in range(most.bit_length())] if self._has_owners() else []
            seconds = {count: self._by_owners(count, machine) for count in counts or [1]}
        else:
            sharing = self._sharing(machine)
            seconds = {1: sharing.best(sharing.pieces, self.places)}
            if machine.cores <= most:
                seconds[machine.cores] = sharing.seconds_in_parts(machine.cores)
        best = min(seconds, key=lambda count: seconds[count])
        if best == 1 or seconds[best] > _WORTH * seconds[1]:
            return 1, ""
        whole, apart = 1e6 * seconds[1], 1e6 * seconds[best]
        return best, f"{whole:.3g} us in one piece, {apart:.3g} in {best} parts"

    def room(self, machine: Machine) -> int:
        """How many destinations there is room for in each part, of which it has the first: cores
        that write to one line wait for each other."""
        nbytes = self.nbytes
        if machine.owners_at_once or nbytes >= _APART:
            return 1
        return 1 + -(-machine.line_nbytes // nbytes)

    def _has_owners(self) -> bool:
        """Whether owners look at all index vectors; see Note [Owners]."""
        dtype, fn = self.op.result.type.dtype, self.op.attrs["fn"]
        return dtype.is_float and fn == "add"

    def _sharing(self, machine: Machine) -> Sharing:
        """See Note [Cores]."""
        nbytes = self.window * self.op.result.type.dtype.accumulator.itemsize
        return Sharing(
            machine=machine,
            vectors=self.vectors,
            batches=self.batches,
            pieces=-(-nbytes // machine.vector_nbytes),
            code=1.0,
            window_nbytes=nbytes,
            nbytes=self.nbytes // self.batches,
            sorted=self.op.attrs["sorted"],
        )

    def _by_owners(self, parts: int, machine: Machine) -> float:
        """With as many owners of each part as are best."""
        each, rounds = self.vectors / parts, -(-self.window // _ABREAST)

        def of_owners(owners: int) -> float:
            waves = max(parts * self.batches * owners / machine.owners_at_once, 1.0)
            return waves * (each * _LOOK + each / owners * _COMBINE * rounds)

        owners = [min(1 << bit, self.places) for bit in range(self.places.bit_length() + 1)]
        rest = 0.0
        if parts > 1:  # sums of parts are cleared, written and read
            rest = MERGED * parts * self.nbytes / machine.bandwidth + 3 * machine.start_seconds
        return min(map(of_owners, owners)) + rest


def split_scatter(graph: Graph, updates: Updates, parts: int, machine: Machine) -> Value:
    """scatter add %x, %i, %u  -->  %x + reduce of scatter add (zeros, parts of %i, parts of %u)"""
    op, axis = updates.op, updates.axis
    x, indices, given = op.operands
    dtype, dims, fn = x.type.dtype, ScatterDims.of(op.attrs), op.attrs["fn"]
    along = dims.batch_axes(given.type.rank)[axis]
    given = converted(graph, given, dtype.accumulator)
    tile = indices.shape[axis] // parts
    room = updates.room(machine)
    start = filled(
        graph, neutral(fn, dtype), TensorType(dtype.accumulator, (parts, room, *x.shape))
    )
    walked = tuple(own + (own > axis) for own in dims.index_batch_axes)
    attrs = {
        **op.attrs,
        "window_axes": tuple(own + (own > along) for own in dims.window_axes),
        "inserted_axes": (1, *(own + 2 for own in dims.inserted_axes)),
        "start_axes": tuple(own + 2 for own in dims.start_axes),
        "operand_batch_axes": (0, *(own + 2 for own in dims.operand_batch_axes)),
        "index_batch_axes": (axis, *walked),
    }
    both = ((indices, axis), (given, along))
    apart = [_apart(graph, value, at, parts, tile) for value, at in both]
    made = build(graph, op.kind, (start, *apart), **attrs)
    first = taken_along(graph, made, 1, 0, 1)
    total = build(graph, "reduce", (first,), fn=fn, axes=(0, 1))
    made = mapped(graph, fn, converted(graph, x, dtype.accumulator), total)
    if rest := indices.shape[axis] - parts * tile:
        last = [taken_along(graph, value, at, parts * tile, rest) for value, at in both]
        made = build(graph, op.kind, (made, *last), **op.attrs)
    return converted(graph, made, dtype)


def _apart(graph: Graph, value: Value, axis: int, parts: int, tile: int) -> Value:
    whole, shape = taken_along(graph, value, axis, 0, parts * tile), value.shape
    return build(graph, "reshape", (whole,), shape=(*shape[:axis], parts, tile, *shape[axis + 1 :]))
