"""read-placed: who reads a value that is also placed in a larger buffer reads it there.

Input: regions in order. Output: the same, some of which store a value one time less. Invariant: the
box that is read instead holds the value until its last reader has run.

Note [Clones]: what a reader evaluates refers to the value by identity, so the ops behind the new
slice are cloned, with their ids. Clones are in no graph; the values that a region stores keep the
names by which others know them (`Store.into`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stagejit.dispatch.accesses import write_of, writes_of
from stagejit.dispatch.in_place import says_where
from stagejit.dispatch.outputs import stored_outputs
from stagejit.dispatch.region import Draft, Store
from stagejit.dispatch.roots import Roots
from stagejit.dispatch.state import State
from stagejit.graph.ir import Op, Value
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex

NAME = "read-placed"

# Shorter contiguous runs than a cache line would waste most of what each one loads.
SHORTEST_RUN_NBYTES = 64


def read_where_placed(state: State, regions: Sequence[Draft]) -> list[Draft]:
    """store %v; store %v in %b  -->  store %v in %b, where readers of %v slice %b"""
    return _Readers(state, regions).run()


class _Readers:
    """`regions` as far as they are rewritten; `reading`: positions of those that read a value."""

    def __init__(self, state: State, regions: Sequence[Draft]) -> None:
        self.state, self.regions, self.roots = state, list(regions), Roots(regions)
        barriers = (op for op in state.order if op.definition.forwards)
        self.kept = {
            *stored_outputs(state.graph).values(),
            *(v for b in barriers for v in b.operands),
        }
        self.reading: dict[Value, list[int]] = {}
        self.writing: dict[Value, list[int]] = {}
        self.written: dict[Value, BoxIndex[tuple[int, Store]]] = {}
        for at, region in enumerate(regions):
            for value in region.inputs:
                self.reading.setdefault(value, []).append(at)
            for root in dict.fromkeys(self.roots[store.into] for store in region.stores):
                self.writing.setdefault(root, []).append(at)

    def run(self) -> list[Draft]:
        for at in range(len(self.regions)):
            for store in self.regions[at].stores:
                if not store.inserts and not store.into.op.definition.updates:
                    self._redirect(at, store)
        return self.regions

    def _redirect(self, at: int, plain: Store) -> None:
        """Has the readers of a plain store read another store of the same value."""
        value = plain.into
        others = [other for other in self.regions[at].stores
                  if other.value is plain.value and other.into is not value]  # fmt: skip
        if not others or value in self.kept:
            return
        reasons = [self._refuse(at, value, other) for other in others]
        chosen = [other for other, reason in zip(others, reasons, strict=True) if not reason]
        self.state.decide(NAME, value.op, bool(chosen), reasons[0] if not chosen else
                          "its readers read it where it is placed")  # fmt: skip
        if not chosen:
            return
        # The buffer that lives longest anyway: nothing has to stay alive for the readers.
        best = max(chosen, key=lambda other: self.writing[self.roots[other.into]][-1])
        box = self._box(at, best)
        assert box is not None
        for reader in self.reading.pop(value, []):
            self.regions[reader] = _reading(self.regions[reader], value, best.into, box)
            positions = self.reading.setdefault(best.into, [])
            positions.append(reader)
        region = self.regions[at]
        rest = tuple(store for store in region.stores if store is not plain)
        self.regions[at] = replace(region, stores=rest)

    def _box(self, at: int, store: Store) -> Box | None:
        """Where a store goes, None if that is not known before run time."""
        touch = write_of(self.regions[at], store, store.into)
        return touch.box if touch.exact and touch.box.static_offsets is not None else None

    def _refuse(self, at: int, value: Value, other: Store) -> str:
        """Why the readers of `value` cannot read it where `other` places it."""
        if not self.state.enabled(NAME):
            return f"{NAME} is disabled"
        box, readers = self._box(at, other), self.reading.get(value, [])
        if box is None or box.sizes != value.shape:
            return "where it is placed is known at run time only"
        if any(self.regions[reader].stands_alone for reader in readers):
            return "a reader wants it in memory of its own"
        if any(says_where(self.regions[reader], value) for reader in readers):
            return "it says where something is placed"
        run = _run_of(box, other.into.shape) * value.type.dtype.itemsize
        if run < min(SHORTEST_RUN_NBYTES, value.type.nbytes):
            return f"it is placed in pieces of {run} bytes"
        last = max(readers, default=at)
        for writer, store in self._writes_into(self.roots[other.into]).overlapping(box):
            itself = writer == at and store.into is other.into and store.inserts == other.inserts
            if at <= writer <= last and not itself:
                return "it is overwritten before its last reader has run"
        return ""

    def _writes_into(self, root: Value) -> BoxIndex[tuple[int, Store]]:
        """Every box of the buffer of `root` that a region writes, with its position and store.

        Rewrites of regions do not change it: the plain stores that they drop are the only ones
        into their buffers."""
        if root not in self.written:
            index = self.written[root] = BoxIndex()
            for at in self.writing[root]:
                region = self.regions[at]
                for store, touch in zip(region.stores, writes_of(region), strict=True):
                    if self.roots[store.into] is root:
                        index.add(touch.box, (at, store))
        return self.written[root]


def _run_of(box: Box, shape: Sequence[int]) -> int:
    """Elements of the box that lie side by side in a buffer of `shape`."""
    whole = [box.strides[d] == 1 and box.sizes[d] == shape[d] for d in range(len(shape))]
    first = next((d for d in reversed(range(len(shape))) if not whole[d]), 0)
    sizes = box.sizes[first:] if not shape or box.strides[first] == 1 else box.sizes[first + 1 :]
    return math.prod(sizes)


def _reading(region: Draft, value: Value, buffer: Value, box: Box) -> Draft:
    """The region, with `value` read in a box of `buffer`."""
    attrs = {"offsets": box.offsets, "sizes": box.sizes, "strides": box.strides}
    view = Op(value.op.id, "extract_slice", (buffer,), [value.type], attrs, value.op.loc)
    clones: dict[Value, Value] = {value: view.result}
    ops, anchor = [view], region.anchor
    for op in region.ops:
        clone = op
        if not op.definition.is_insert and any(operand in clones for operand in op.operands):
            operands = tuple(clones.get(operand, operand) for operand in op.operands)
            types = [result.type for result in op.results]
            clone = Op(op.id, op.kind, operands, types, op.attrs, op.loc)
            clones.update(zip(op.results, clone.results, strict=True))
            anchor = clone if op is anchor else anchor
        ops.append(clone)
    inputs = dict.fromkeys(buffer if read is value else read for read in region.inputs)
    stores = tuple(replace(store, value=clones.get(store.value, store.value))
                   for store in region.stores)  # fmt: skip
    return replace(region, ops=tuple(ops), inputs=tuple(inputs), stores=stores, anchor=anchor)
