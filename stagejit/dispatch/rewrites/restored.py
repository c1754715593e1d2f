"""Who overwrites comes after who reads, also when a dispatch has become several.

Input: a graph of dispatches, and an order of its ops in which all is right. Output: the same with
edges for all of that order that matters. Invariant: an edge that is added points forward in the
order.

One dispatch that reads a and b, and returns x and y, puts who made a before who reads y; of two
that are in its place, one may read a and the other one return y. So all buffers are looked at, not
only those that the new dispatches touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagejit.dispatch.rewrites.order import wait
from stagejit.dispatch.rewrites.views import Views, reshaped
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import destination_of
from stagejit.index.box_index import BoxIndex


def restore_order(graph: Graph, views: Views, ops: Sequence[Op]) -> None:
    """%r = f %x; %y = g into %x  -->  %r = f %x; %1 = after %x, %r; %y = g into %1"""
    _Restored(graph, views, ops).run()


class _Restored:
    """`before`: for each op those that its edges put before it, as a bit set of ids. readers: by
    memory, who read it since somebody last overwrote some; `read`: what those read that did not
    come first anyway."""

    def __init__(self, graph: Graph, views: Views, ops: Sequence[Op]) -> None:
        self.graph, self.views, self.ops = graph, views, ops
        self.position = {op: at for at, op in enumerate(ops)}
        self.before: dict[Op, int] = {}
        self.readers: dict[Value, list[Op]] = {}
        self.read: dict[Value, BoxIndex[Op]] = {}

    def run(self) -> None:
        for op in self.ops:
            known = 0
            for value in op.operands:
                known |= self._until(value.op)
            updates = [value for value in op.results if destination_of(value) is not None]
            self.before[op] = self._order(updates, known) if updates else known
            for memory in self._read_by(op):
                self.readers.setdefault(memory, []).append(op)

    def _order(self, updates: Sequence[Value], known: int) -> int:
        """Adds what is missing before an op that overwrites; returns what comes before it then."""
        found: dict[Op, None] = {}
        for value in updates:
            memory = self.views.memory(value)
            index = self._read_of(memory, known)
            if index is not None:
                for box in self.views.boxes_of(value):
                    found |= dict.fromkeys(index.taken(reshaped(box, value, memory)))
        late: list[Op] = []
        for reader in sorted(found, key=self.position.__getitem__, reverse=True):
            if not known >> reader.id & 1 and reader.results:
                known |= self._until(reader)
                late.append(reader)
        if late:
            wait(self.graph, late[::-1], updates[0])
        return known

    def _read_of(self, memory: Value, known: int) -> BoxIndex[Op] | None:
        """What is read of a buffer by those who are not known to come first. Nobody asks for the
        others again: all that is written there later comes after what is written now."""
        for op in self.readers.pop(memory, ()):
            if known >> op.id & 1:
                continue
            values = {value for value in op.operands if self.views.memory(value) is memory}
            for value, box in self.views.reads(op, values):
                index = self.read.setdefault(memory, BoxIndex())
                index.add(reshaped(box, value, memory), op)
        return self.read.get(memory)

    def _read_by(self, op: Op) -> Iterable[Value]:
        """The memory that an op reads, or may read."""
        values = () if op.definition.forwards else op.operands
        return dict.fromkeys(map(self.views.memory, values))

    def _until(self, op: Op) -> int:
        return self.before.get(op, 0) | 1 << op.id
