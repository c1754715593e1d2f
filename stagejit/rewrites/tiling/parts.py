"""What a tile of a cluster is made of.

Input: a cluster, the axes of its values. Output: `Parts`: values of which a tile takes some places
or all, what it makes of them, and what it gives. Invariant: they are the same for any number of
places, and for the graph as it is before a loop is built.
"""

from __future__ import annotations

import math

from stagejit.base.threads.locks import remembered
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.axes import separate, summed
from stagejit.rewrites.split.partial import summed_in
from stagejit.rewrites.tiling.along import Along
from stagejit.types import TensorType

# A value, and the axis of which a tile has some places; None: all of it, or a part of a sum;
# TURNED: all of it, with its last axis first.
Part = tuple[Value, int | None]
TURNED = -1


def is_sliced(axis: int | None) -> bool:
    """Whether a tile takes some places of a value."""
    return axis is not None and axis != TURNED


class Parts:
    """graph: that of the cluster. sums: outputs of which a tile gives a part of the sum; stacked:
    outputs of which it gives some places. all: parts, in the order of the graph."""

    def __init__(self, graph: Graph, along: Along) -> None:
        self.graph, self.along = graph, along
        self.cluster = cluster = along.cluster
        self.extent = cluster.seed.result.shape[along.axes[cluster.seed.result]]
        self.inside = frozenset(cluster.ops)
        self.sums = [y for y in cluster.outputs if y.op in along.sums]
        self.stacked = [y for y in cluster.outputs if y.op not in along.sums]
        self._made: dict[Part, bool] = {}
        self.all = self._found()
        self.taken = [part for part in self.all if not self.is_made(part)]  # from outside

    @remembered
    def slices(self) -> list[tuple[Value, int]]:
        """Values of which a tile takes some places, and along which axis."""
        return [(x, axis) for x, axis in self.taken if axis is not None and is_sliced(axis)]

    @remembered
    def flops(self) -> int:
        return sum(op.definition.flops(op) for op in self.cluster.ops)

    @remembered
    def whole(self) -> list[Part]:
        """Of which it takes all."""
        return [part for part in self.taken if not is_sliced(part[1])]

    @remembered
    def totals(self) -> list[TensorType]:
        """As what each of the sums is summed."""
        return [TensorType(summed_in(y.op), y.shape) for y in self.sums]

    @remembered
    def steps(self) -> list[int]:
        """See `step`: each that there is."""
        return list(dict.fromkeys(filter(None, map(self.step, self.all))))

    def _found(self) -> list[Part]:
        """All that the body makes or takes, in the order of the graph."""
        found = set[Part]()
        pending = list(map(self.part, self.cluster.outputs))
        while pending:
            part = pending.pop()
            if part not in found:
                found.add(part)
                pending += self.behind(part)
        place = self.cluster.surroundings.place
        return sorted(found, key=lambda part: (place(part[0].op), part[0].op.id))

    def part(self, value: Value) -> Part:
        """Of a value of the cluster."""
        return value, self.along.axes.get(value)

    def behind(self, part: Part) -> list[Part]:
        value, axis = part
        operands = value.op.operands
        if value.op in self.inside:
            along = self.along.operands(value.op)
            return [self._read(value.op, at, axis) for at, axis in enumerate(along)]
        if not self.is_made(part) or self.step(part):
            return []
        axes = None if axis is None else separate(value.op, axis)
        return list(zip(operands, axes or (None,) * len(operands), strict=True))

    def _read(self, op: Op, operand: int, axis: int | None) -> Part:
        """What an op of the cluster reads. A product has its sums along the first axis of what it
        reads whole, in each tile again: so vectors run along memory, and nobody packs."""
        value = op.operands[operand]
        if axis is None and op.definition.is_product and value.type.rank > 1:
            last = value.type.rank - 1
            if summed(op, operand, last) is not None and not self.is_made((value, None)):
                return value, TURNED
        return value, axis

    def is_made(self, part: Part) -> bool:
        """Whether the body makes it."""
        known = self._made.get(part)
        if known is None:
            known = self._made[part] = self._makes(part)
        return known

    def _makes(self, part: Part) -> bool:
        """What the cluster does, what is only another view, a function that nobody else evaluates
        and each tile has its own part of, and what is made up of numbers."""
        value, axis = part
        op = value.op
        if op in self.inside:
            return True
        if axis == TURNED:
            return False
        if axis is not None and separate(op, axis) is None and not self.step(part):
            return False
        known = op.definition
        if (
            known.is_splat
            or known.is_empty
            or (known.is_view and not known.splits and len(op.operands) == 1)
        ):
            return True
        own = axis is not None and known.is_elementwise and len(op.results) == 1
        if own and all(user in self.inside for user in self.graph.users(value)):
            return True
        return self.cluster.surroundings.is_made_up(value)

    def step(self, part: Part) -> int:
        """How much larger a number is than that of the place before, of positions along the axis,
        or of all elements in their order, of which it is the outermost axis; else 0."""
        value, axis = part
        known = value.op.definition
        if not is_sliced(axis) or value.op in self.inside:
            return 0
        assert axis is not None
        if known.counts:
            return int(value.op.attrs["axis"] == axis)
        line = known.keeps_order and known.is_view and _is_line(value.op.operands[0])
        outermost = math.prod(value.shape[:axis]) == 1
        if line and outermost and separate(value.op, axis) is None:
            return value.type.size // value.shape[axis]
        return 0


def _is_line(value: Value) -> bool:
    """Whether it is its own index, along its only axis."""
    return value.op.definition.counts and value.type.rank == 1
