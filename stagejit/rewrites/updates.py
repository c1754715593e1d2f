"""select-updates: what is kept or updated, as a predicate says, is updated by what it chooses.

Input: a `select` of an update of a value, or of that value itself, which is what a solver does that
accepts a step, a sequence that is finished, or a cache that stays as it was. Output: an update by a
select of what is written and what lies there. Invariant: elements that are not written are the
same either way, so nobody chooses between them; what is dropped is dropped still.

Note [Dropped updates]: a scatter of one window is an insert of it, but that a window which is not
within is dropped: there what lies at the place that the insert clamps to is written again. One of
several windows keeps none where all of their places are outside: that wants a predicate that is the
same for all elements, or for all of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stagejit.graph.dims import ScatterDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import Declined, Outcome, declined, rewrite
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.types import DType, TensorType, bool_, i32, i64

NAME = "select-updates"

# Updates of updates that are looked at. More of them take most of the time themselves.
MAX_CHAIN = 8


@rewrite(NAME, roots="map", functions="select", counts=True)
def select_into_update(graph: Graph, op: Op) -> Outcome:
    """select %p, (insert_slice %u into %x), %x  -->  insert_slice (select %p, %u, (box of %x)) into
    %x, in either order; so a scatter"""
    predicate, *branches = op.operands
    for at, updated in enumerate(branches):
        kept = branches[1 - at]
        if updated is kept or not (chain := _updates(updated, kept)):
            continue
        if any(len(graph.uses(update.result)) > 1 for update in chain):
            return declined("what it updates is read by others, too")
        if sum(_written(update).type.size for update in chain) >= kept.type.size:
            return declined("the updates are as large as what they update")
        result: Value = kept
        for update in chain:
            made = _chosen(graph, update, result, predicate, at)
            if isinstance(made, Declined):
                return made
            result = made
        return result
    return None


def _updates(updated: Value, kept: Value) -> list[Op]:
    """The inserts and scatters that make `updated` of `kept`, in order; none where others do."""
    found: list[Op] = []
    while updated is not kept:
        op = updated.op
        known = op.definition
        if not (known.is_insert or known.is_scatter) or len(found) == MAX_CHAIN:
            return []
        found.append(op)
        updated = op.operands[1 if known.is_insert else 0]
    return found[::-1]


def _written(update: Op) -> Value:
    return update.operands[0 if update.definition.is_insert else 2]


def _chosen(graph: Graph, update: Op, into: Value, predicate: Value, at: int) -> Value | Declined:
    """The update of `into` where the predicate chooses its branch `at`, and `into` elsewhere."""
    if update.definition.is_insert:
        source, _, *starts = update.operands
        offsets, strides = update.attrs["offsets"], update.attrs["strides"]
        place = _Place(graph, starts, offsets, source.shape, strides)
        return place.written(into, source, place.read(into), predicate, at, update)
    if _is_one_window(update):
        return _inserted(graph, update, into, predicate, at)
    return _moved_outside(graph, update, into, predicate, at)


class _Place:
    """A box, of a value of the shape that it is a box of."""

    def __init__(
        self,
        graph: Graph,
        starts: Sequence[Value],
        offsets: Sequence[int | None],
        sizes: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        self.graph, self.starts, self.sizes = graph, starts, tuple(sizes)
        self.attrs: dict[str, Any] = {"offsets": tuple(offsets), "strides": tuple(strides)}

    def read(self, x: Value) -> Value:
        if x.op.definition.is_splat:  # as a view of it: there is no other reader of the whole
            return build(self.graph, "fill", x.op.operands, shape=self.sizes)
        operands = (x, *self.starts)
        return build(self.graph, "extract_slice", operands, sizes=self.sizes, **self.attrs)

    def written(
        self, x: Value, new: Value, old: Value, predicate: Value, at: int, update: Op
    ) -> Value:
        pair = (new, old) if at == 0 else (old, new)
        chosen = mapped(self.graph, "select", self.read(predicate), *pair)
        operands = (chosen, x, *self.starts)
        return build(self.graph, "insert_slice", operands, update.loc, **self.attrs)


# ------------------------------------------------------------------------------------- scatters


def _is_one_window(update: Op) -> bool:
    """Whether a scatter has one index vector, whose window is a box that numbers are put into."""
    x, indices, updates = update.operands
    dims = ScatterDims.of(update.attrs)
    return (
        indices.type.size == len(dims.start_axes) > 0
        and x.type.has_numbers
        and not dims.operand_batch_axes
        and tuple(sorted(dims.window_axes)) == tuple(dims.window_axes)
        and updates.type.size > 0
        and (update.attrs["fn"] == "set" or x.type.dtype is not bool_)
        and (indices.type.dtype.is_signed or indices.type.dtype.bits < i64.bits)
    )


def _inserted(graph: Graph, update: Op, into: Value, predicate: Value, at: int) -> Value:
    """A scatter of one window as an insert: see Note [Dropped updates]."""
    _, indices, updates = update.operands
    dims, shape = ScatterDims.of(update.attrs), into.shape
    window = dims.window(len(shape), updates.shape)
    starts = dict(zip(dims.start_axes, _components(graph, indices), strict=True))
    offsets = [None if axis in starts else 0 for axis in range(len(shape))]
    ordered = [starts[axis] for axis in sorted(starts)]
    place = _Place(graph, ordered, offsets, window, (1,) * len(shape))
    old = place.read(into)
    new = build(graph, "reshape", (updates,), shape=window)
    if update.attrs["fn"] != "set":
        new = mapped(graph, update.attrs["fn"], old, new)
    if update.attrs["mode"] != "clip":
        inside: Value | None = None
        for axis, start in starts.items():
            low, high = (filled(graph, n, start.type) for n in (0, shape[axis] - window[axis]))
            kept = mapped(graph, "eq", mapped(graph, "clamp", low, start, high), start)
            inside = kept if inside is None else mapped(graph, "and", inside, kept)
        assert inside is not None
        new = mapped(graph, "select", build(graph, "fill", (inside,), shape=window), new, old)
    return place.written(into, new, old, predicate, at, update)


def _components(graph: Graph, indices: Value) -> list[Value]:
    """The numbers of the only index vector, as offsets."""
    count = indices.type.size
    vector = build(graph, "reshape", (indices,), shape=(count,))
    if indices.type.dtype not in (i32, i64):
        vector = converted(graph, vector, _wide(indices.type))
    parts = [
        build(graph, "extract_slice", (vector,), offsets=(n,), sizes=(1,), strides=(1,))
        for n in range(count)
    ]
    return [build(graph, "reshape", (part,), shape=()) for part in parts]


def _wide(type: TensorType) -> DType:
    """A signed type that has all numbers of this one, which is none of 64 bits without a sign."""
    dtype = type.dtype
    return i64 if dtype.bits - dtype.is_signed >= i32.bits else i32


def _moved_outside(
    graph: Graph, update: Op, into: Value, predicate: Value, at: int
) -> Value | Declined:
    """A scatter whose windows are outside where the predicate keeps what there is."""
    _, indices, updates = update.operands
    dims, shape = ScatterDims.of(update.attrs), into.shape
    chosen = _for_indices(graph, predicate, dims, indices)
    if chosen is None:
        return declined("the predicate varies along what is scattered")
    if not dims.start_axes:
        return declined("it is scattered along no axis")
    if not indices.type.dtype.is_signed and indices.type.dtype.bits == i64.bits:
        return declined("places are numbers of 64 bits without a sign")
    places = converted(graph, indices, _wide(indices.type))
    if update.attrs["mode"] == "clip":
        window = dims.window(len(shape), updates.shape)
        last = {shape[axis] - window[axis] for axis in dims.start_axes}
        if len(last) > 1:
            return declined("places are clamped differently along each axis")
        low, high = (filled(graph, n, places.type) for n in (0, last.pop()))
        places = mapped(graph, "clamp", low, places, high)
    outside = filled(graph, -1, places.type)
    pair = (places, outside) if at == 0 else (outside, places)
    places = mapped(graph, "select", chosen, *pair)
    attrs = dict(update.attrs) | {"mode": "fill"}
    return build(graph, "scatter", (into, places, updates), update.loc, **attrs)


def _for_indices(graph: Graph, predicate: Value, dims: ScatterDims, indices: Value) -> Value | None:
    """The predicate of each index vector, where it is one for the whole window."""
    op = predicate.op
    if op.definition.is_splat:
        return build(graph, "fill", op.operands, shape=indices.shape)
    if not op.definition.repeats:
        return None
    drivers = dict(zip(dims.operand_batch_axes, dims.index_batch_axes, strict=True))
    if not drivers.keys() >= set(op.attrs["axes"]):
        return None
    axes = tuple(drivers[axis] for axis in op.attrs["axes"])
    return build(graph, "broadcast", op.operands, shape=indices.shape, axes=axes)


RULES = (select_into_update,)
