"""Sums of many floats at few computed places, in parts, for machines whose workers own places.

Input: a `scatter` that adds floats, a machine. Output: sums of parts of the updates, each into
zeros of its own, then their sum. Invariant: what is summed is the same, in another order, which
depends on shapes and the machine only; 16-bit floats are rounded once.

Note [Owners]: integers meet by atomics, in any order. Of floats the order decides, so on a GPU an
owner of some places, a warp or a thread, looks at all index vectors and applies its own, one after
the other. So few places are few owners, each of which waits for memory all the time; with parts
there are as many more, who look at as many less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagejit.graph.dims import ScatterDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.machine import Machine
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.split.pieces import taken_along
from stagejit.types import TensorType

_LOOK = 0.4e-9  # seconds that an owner takes to look at an index vector, of which it has 32 at once
_COMBINE = 0.2e-6  # to read, add and write elements of a window that it owns
_ABREAST = 32  # elements of a window that it has at once
_MOST_PARTS = 1024
_WORTH = 0.7  # of the time in one piece


@dataclass(frozen=True)
class Updates:
    """vectors: index vectors, all along the first axis of indices and updates. places: that may
    have an owner. nbytes: of the destination, in the type of sums."""

    op: Op
    vectors: int
    places: int
    window: int
    nbytes: int

    @staticmethod
    def of(op: Op) -> Updates | None:
        """None where the order of sums does not matter, or windows are named in another form."""
        x, indices, updates = op.operands
        dims, dtype = ScatterDims.of(op.attrs), x.type.dtype
        if op.attrs["fn"] != "add" or not dtype.is_float or op.attrs["unique"]:
            return None
        first = dims.batch_axes(updates.type.rank)
        if dims.operand_batch_axes or indices.type.rank != 2 or first != (0,):
            return None
        if not x.type.size or not updates.type.size:
            return None
        sizes = dims.window(x.type.rank, updates.shape)
        owned = [x.shape[axis] for axis in dims.start_axes if sizes[axis] == 1]
        nbytes = x.type.size * dtype.accumulator.itemsize
        window = math.prod(sizes)
        return Updates(op, indices.shape[0], max(owned, default=1), window, nbytes)

    def parts(self, machine: Machine, budget: int | None = None) -> tuple[int, str]:
        """How many pay most, and why; 1: none do. Their sums stay in the last cache, and within a
        budget of bytes."""
        if not machine.owners_at_once:
            return 1, ""
        room = min(machine.l3s_nbytes, machine.l3s_nbytes if budget is None else budget)
        most = min(_MOST_PARTS, self.vectors // 2, room // self.nbytes)
        counts = [1 << bit for bit in range(most.bit_length())] or [1]
        seconds = {count: self._seconds(count, machine) for count in counts}
        best = min(seconds, key=lambda count: seconds[count])
        if best == 1 or seconds[best] > _WORTH * seconds[1]:
            return 1, ""
        whole, apart = 1e6 * seconds[1], 1e6 * seconds[best]
        return best, f"{whole:.3g} us in one piece, {apart:.3g} in {best} parts"

    def _seconds(self, parts: int, machine: Machine) -> float:
        """With as many owners of each part as are best."""
        each, rounds = self.vectors / parts, -(-self.window // _ABREAST)

        def of_owners(owners: int) -> float:
            waves = max(parts * owners / machine.owners_at_once, 1.0)
            return waves * (each * _LOOK + each / owners * _COMBINE * rounds)

        owners = [min(1 << bit, self.places) for bit in range(self.places.bit_length() + 1)]
        rest = 0.0
        if parts > 1:  # sums of parts are cleared, written and read
            rest = 3 * parts * self.nbytes / machine.bandwidth + 3 * machine.start_seconds
        return min(map(of_owners, owners)) + rest


def split_scatter(graph: Graph, updates: Updates, parts: int) -> Value:
    """scatter add %x, %i, %u  -->  %x + reduce of scatter add (zeros, parts of %i, parts of %u)"""
    op = updates.op
    x, indices, given = op.operands
    dtype, dims = x.type.dtype, ScatterDims.of(op.attrs)
    given = converted(graph, given, dtype.accumulator)
    tile = updates.vectors // parts
    shape = parts, *x.shape
    zeros = filled(graph, -0.0, TensorType(dtype.accumulator, shape))
    attrs = {
        **op.attrs,
        "window_axes": tuple(axis + 1 for axis in dims.window_axes),
        "inserted_axes": tuple(axis + 1 for axis in dims.inserted_axes),
        "start_axes": tuple(axis + 1 for axis in dims.start_axes),
        "operand_batch_axes": (0,),
        "index_batch_axes": (0,),
    }
    apart = [_apart(graph, value, parts, tile) for value in (indices, given)]
    sums = build(graph, op.kind, (zeros, *apart), **attrs)
    total = build(graph, "reduce", (sums,), fn="add", axes=(0,))
    made = mapped(graph, "add", converted(graph, x, dtype.accumulator), total)
    if rest := updates.vectors - parts * tile:
        last = [taken_along(graph, value, 0, parts * tile, rest) for value in (indices, given)]
        made = build(graph, op.kind, (made, *last), **op.attrs)
    return converted(graph, made, dtype)


def _apart(graph: Graph, value: Value, parts: int, tile: int) -> Value:
    whole = taken_along(graph, value, 0, 0, parts * tile)
    return build(graph, "reshape", (whole,), shape=(parts, tile, *value.shape[1:]))
