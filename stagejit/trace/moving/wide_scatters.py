"""Scatters that sum or multiply 16-bit floats: in f32, and rounded once, as reductions do.

Input: a `Scatter`. Output: the ops that update the array, of which none combines two updates of one
element in 16 bits. Invariant: updates of one element are combined in the order of their index
vectors.

Note [Two forms]: f32 values of the whole array are right for all windows, and where the array is
new they are its sums. But an array that is much larger than its updates, a table whose gradient it
is or what a loop carries, is not to be converted for a few of them. Then index vectors are numbered
by the place that they name: equal ones have one number, which a sort finds. What goes to one number
is summed in f32, in an array as large as the updates. Each index vector sets the windows at its
place to what was there combined with the sum of its number; several set the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stagejit.base.records import record
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.functions import identity
from stagejit.graph.ir import Value
from stagejit.graph.ops.sorting import LONGEST_ROW
from stagejit.trace.emitter import Emitter
from stagejit.trace.moving.sorting import sort
from stagejit.types import TensorType, bool_, i32, i64

# Bytes that are moved: of an element of the array, to f32 and back; of an element of the updates in
# the compact form; and what it costs to sort, number and look up an index vector, in such bytes.
_CONVERTED, _COMPACT, _NUMBERED = 8, 28, 600


@record
class Scatter:
    """The attributes and operands of a `scatter`. mode: "clip" or "fill"."""

    dims: ScatterDims
    fn: str
    mode: str
    unique: bool
    sorted: bool
    x: Value
    indices: Value
    updates: Value

    @property
    def window(self) -> tuple[int, ...]:
        """The size of a window on every axis of the array."""
        return self.dims.window(self.x.type.rank, self.updates.shape)

    @property
    def rooms(self) -> list[int]:
        """Positions at which a window may start, for each axis of the array."""
        return [n - size + 1 for n, size in zip(self.x.shape, self.window, strict=True)]

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of all index vectors."""
        return self.indices.shape[:-1]

    @property
    def combines_in_16_bits(self) -> bool:
        """Whether several updates of a 16-bit element may be summed or multiplied."""
        dtype = self.x.type.dtype
        if self.unique or self.fn not in ("add", "mul") or dtype.accumulator is dtype:
            return False
        drivers = self.dims.index_batch_axes
        return any(n != 1 for axis, n in enumerate(self.batch) if axis not in drivers)

    def emitted(self, emit: Emitter) -> Value:
        """As an op, or as those that make it exact."""
        if not self.combines_in_16_bits:
            return self._op(emit)
        if self._is_compact():
            return _compact(emit, self)
        wide = self.x.type.dtype.accumulator
        x, updates = emit.convert(self.x, wide), emit.convert(self.updates, wide)
        return emit.convert(replace(self, x=x, updates=updates)._op(emit), self.x.type.dtype)

    def _op(self, emit: Emitter) -> Value:
        return emit.emit(
            "scatter", (self.x, self.indices, self.updates), self.x.type, **vars(self.dims),
            fn=self.fn, mode=self.mode, unique=self.unique, sorted=self.sorted,
        )  # fmt: skip

    def _is_compact(self) -> bool:
        """Whether the compact form is right, and cheaper."""
        if not all(value.type.has_numbers for value in (self.x, self.indices, self.updates)):
            return False
        if any(self.rooms[axis] > 1 and self.window[axis] > 1 for axis in self.dims.start_axes):
            return False  # windows at different places may overlap
        vectors = math.prod(self.batch)
        cost = _NUMBERED * vectors + _COMPACT * self.updates.type.size
        return vectors < LONGEST_ROW and cost < _CONVERTED * self.x.type.size

    def gathered(self, emit: Emitter) -> Value:
        """What is there, in f32, for each element of the updates."""
        dims = self.dims
        places = GatherDims(
            offset_axes=dims.window_axes,
            collapsed_axes=dims.inserted_axes,
            start_axes=dims.start_axes,
            operand_batch_axes=dims.operand_batch_axes,
            index_batch_axes=dims.index_batch_axes,
            sizes=self.window,
        )
        type, dtype = TensorType(self.x.type.dtype, self.updates.shape), self.x.type.dtype
        found = emit.emit(
            "gather", (self.x, self.indices), type, **vars(places), mode="clip", fill_value=None
        )
        return emit.convert(found, dtype.accumulator)


def _compact(emit: Emitter, whole: Scatter) -> Value:
    """The second form of Note [Two forms]."""
    dtype, fn = whole.x.type.dtype, whole.fn
    window = [whole.updates.shape[axis] for axis in whole.dims.window_axes]
    type = TensorType(dtype.accumulator, (math.prod(whole.batch), *window))
    sums = replace(
        whole,
        dims=ScatterDims(whole.dims.window_axes, (0,), (0,), (), ()),
        mode="clip",
        sorted=False,
        x=emit.full(identity(fn, type.dtype), type),
        indices=_numbers(emit, whole),
        updates=emit.convert(whole.updates, type.dtype),
    )
    sums = replace(sums, x=sums.emitted(emit))
    made = emit.map(fn, whole.gathered(emit), sums.gathered(emit))
    return replace(whole, fn="set", updates=emit.convert(made, dtype)).emitted(emit)


def _numbers(emit: Emitter, whole: Scatter) -> Value:
    """For each index vector a number, as an index vector, which those at the same place share."""
    count = math.prod(whole.batch)
    type = TensorType(i32, (count,))
    keys, order = sort(emit, [emit.reshape(_places(emit, whole), (count,))], 0, 1, count, (0, 1))
    later, before = (emit.extract(keys, (at,), (count - 1,)) for at in (1, 0))
    steps = emit.convert(emit.map("ne", later, before), i32)
    steps = emit.insert(steps, emit.full(0, type), (1,))
    ranks = emit.emit("cumulative", (steps,), type, fn="add", axis=0, reverse=False)
    dims, at = ScatterDims((), (0,), (0,), (), ()), emit.reshape(order, (count, 1))
    one_each = Scatter(dims, "set", "clip", True, False, emit.full(0, type), at, ranks)
    return emit.reshape(one_each.emitted(emit), (*whole.batch, 1))


def _places(emit: Emitter, whole: Scatter) -> Value:
    """For each index vector a number that tells where it points to, one for all that are dropped,
    which share sums that nobody reads."""
    batch, drivers = whole.batch, whole.dims.index_batch_axes
    sizes = [whole.rooms[axis] for axis in whole.dims.start_axes]
    place, inside = emit.full(0, TensorType(i64, batch)), emit.full(True, TensorType(bool_, batch))
    for at, size in enumerate(sizes):
        part = emit.extract(whole.indices, (0,) * len(batch) + (at,), (*batch, 1))
        part = emit.convert(emit.start_index(emit.reshape(part, batch)), i64)
        kept = emit.map("max", part, emit.const(0, i64))
        kept = emit.map("min", kept, emit.const(size - 1, i64))
        inside = emit.map("and", inside, emit.map("eq", part, kept))
        place = emit.map("add", emit.map("mul", place, emit.const(size, i64)), kept)
    for axis in drivers:
        place = emit.map("mul", place, emit.const(batch[axis], i64))
        place = emit.map("add", place, emit.iota(TensorType(i64, batch), axis))
    if whole.mode == "fill":
        place = emit.map("select", inside, place, emit.const(-1, i64))
    several = math.prod([*sizes, *(batch[axis] for axis in drivers)])
    return emit.convert(place, i32) if several < 2**31 else place
