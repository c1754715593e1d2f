"""Along which axis of each value a cluster is cut, once one of them is chosen.

Input: a cluster, and an axis of its seed. Output: `Along`, or why there is none. Invariant: a tile
of each value is made of tiles of the others, and of values from outside, whole or in tiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.axes import Axes, separate, summed
from stagejit.rewrites.driving.driver import describe
from stagejit.rewrites.tiling.clusters import Cluster, with_moves


class Apart(Exception):
    """A value that would have to be cut along two axes, or cannot be cut."""


@record
class Along:
    """cluster: with those that only move what it gives in tiles. axes: of each value, but those of
    which a tile gives a part of the sum. sums: of the ops that give those, the axes of their
    operands that are summed over."""

    cluster: Cluster
    axes: Mapping[Value, int]
    sums: Mapping[Op, Axes]

    def operands(self, op: Op) -> Axes:
        """Of an op of the cluster: along which axis a tile takes each operand; None: whole."""
        if op in self.sums:
            return self.sums[op]
        found = separate(op, self.axes[op.result])
        assert found is not None
        return found


def axes_along(graph: Graph, cluster: Cluster, axis: int) -> Along | str:
    """The axes of all; the reason where places along `axis` of the seed do not stay apart."""
    try:
        walk = _Walk(graph, cluster, axis)
        wider = with_moves(graph, cluster, [y for y in cluster.outputs if y.op not in walk.sums])
        if len(wider.ops) > len(cluster.ops):
            walk = _Walk(graph, wider, axis)
    except Apart as reason:
        return str(reason)
    return Along(walk.cluster, walk.axes, walk.sums)


class _Walk:
    def __init__(self, graph: Graph, cluster: Cluster, axis: int) -> None:
        self.graph, self.cluster = graph, cluster
        self.inside = frozenset(cluster.ops)
        self.axes: dict[Value, int] = {}
        self.sums: dict[Op, Axes] = {}
        self.pending: list[Value] = []
        self._give(self.cluster.seed.result, axis)
        while self.pending:
            value = self.pending.pop()
            self._operands(value.op)
            for user in self.graph.users(value):
                if user in self.inside:
                    self._result(user, value)

    def _give(self, value: Value, axis: int) -> None:
        known = self.axes.setdefault(value, axis)
        if known != axis:
            raise Apart(f"{describe(value.op)} is needed along two axes")
        self.pending.append(value)

    def _operands(self, op: Op) -> None:
        """The axes of operands, from that of the result."""
        found = separate(op, self.axes[op.result])
        if found is None:
            raise Apart(f"{describe(op)} does not keep places apart")
        self._give_operands(op, found)

    def _give_operands(self, op: Op, along: Axes) -> None:
        for operand, axis in zip(op.operands, along, strict=True):
            if operand.op in self.inside:
                if axis is None:
                    raise Apart(f"{describe(op)} needs all of {describe(operand.op)}")
                if self.axes.get(operand) != axis:
                    self._give(operand, axis)

    def _result(self, op: Op, value: Value) -> None:
        """The axis of a result, from that of an operand."""
        if op.result in self.axes or op in self.sums:
            return
        own, at = self.axes[value], op.operands.index(value)
        for axis in range(op.result.type.rank):
            found = separate(op, axis)
            if found is not None and found[at] == own:
                self._give(op.result, axis)
                return
        along = summed(op, at, own)
        if along is None or any(user in self.inside for user in self.graph.users(op.result)):
            raise Apart(f"{describe(op)} combines places")
        self.sums[op] = along
        self._give_operands(op, along)
