"""A cluster as a loop over tiles.

Input: a cluster, the axes of its values, a number of places. Output: a `loop` op, and what stands
for each output of the cluster. Invariant: the body has the cluster's ops on one tile, and what is
evaluated where it is read; what is summed over tiles is carried.

Note [Tiles outermost]: a loop takes slices along axis 0 and stacks its results along axis 0, so
that the tiles of a value are moved there first, which is a view where the axis is outermost.
"""

from __future__ import annotations

import math

from stagejit.graph.functions import neutral
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.graph.ops.axes import narrowed, separate, summed
from stagejit.rewrites.partial import converted, mapped, summed_in
from stagejit.rewrites.tiling.along import Along
from stagejit.types import TensorType, i32, i64


def tiles_first(graph: Graph, value: Value, axis: int, places: int) -> Value:
    """%x of [.., n, ..]  -->  [n / places, .., places, ..]"""
    shape = value.shape
    apart = (*shape[:axis], shape[axis] // places, places, *shape[axis + 1 :])
    split = build(graph, "reshape", (value,), shape=apart)
    order = (axis, *(each for each in range(len(apart)) if each != axis))
    return _transposed(graph, split, order)


def tiles_back(graph: Graph, value: Value, axis: int) -> Value:
    """%x of [tiles, .., places, ..]  -->  [.., tiles * places, ..]"""
    order = (*range(1, axis + 1), 0, *range(axis + 1, value.type.rank))
    moved = _transposed(graph, value, order)
    shape = moved.shape
    joined = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return build(graph, "reshape", (moved,), shape=joined)


def _transposed(graph: Graph, value: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return value
    return build(graph, "transpose", (value,), permutation=order)


# A value, and the axis of which a tile has some places; None: all of it, or a part of a sum;
# TURNED: all of it, with its last axis first.
Part = tuple[Value, int | None]
TURNED = -1


def is_sliced(axis: int | None) -> bool:
    """Whether a tile takes some places of a value."""
    return axis is not None and axis != TURNED


def turned(graph: Graph, value: Value, *, back: bool = False) -> Value:
    """%x of [.., n, k]  -->  [k, .., n], or back"""
    last = value.type.rank - 1
    order = (*range(1, last + 1), 0) if back else (last, *range(last))
    return build(graph, "transpose", (value,), permutation=order)


class TileLoop:
    """Builds the loop. graph: that of the cluster; places: along the axis, in each tile."""

    def __init__(self, graph: Graph, along: Along, places: int) -> None:
        self.graph, self.along, self.places = graph, along, places
        self.cluster = cluster = along.cluster
        seed = cluster.seed.result
        self.trip = seed.shape[along.axes[seed]] // places
        self.inside = frozenset(cluster.ops)
        self.sums = [y for y in cluster.outputs if y.op in along.sums]
        self.stacked = [y for y in cluster.outputs if y.op not in along.sums]
        self.made_inside: dict[Part, bool] = {}  # as the graph is before the loop is built
        self.parts = self._parts()
        self.body = Graph("tile")
        self.made: dict[Part, Value] = {}
        self.first: dict[int, Value] = {}  # number of the first place of a tile, by step

    @property
    def taken(self) -> list[Part]:
        """What the body takes from outside."""
        return [part for part in self.parts if not self._is_made(part)]

    def build(self) -> dict[Value, Value]:
        """What stands for each output of the cluster."""
        starts = [filled(self.graph, neutral(_fn(y.op), x.dtype), x) for y, x in self._totals()]
        before = [
            self.body.add_input(f"sum{at}", x.type, donated=True) for at, x in enumerate(starts)
        ]
        slices = [(x, axis) for x, axis in self.taken if axis is not None and axis != TURNED]
        whole = [part for part in self.taken if not is_sliced(part[1])]
        constants = [turned(self.graph, x) if axis == TURNED else x for x, axis in whole]
        operands = [tiles_first(self.graph, value, axis, self.places) for value, axis in slices]
        for value, axis in slices:
            self.made[value, axis] = self._input(value, axis)
        for step in dict.fromkeys(filter(None, map(self._step, self.parts))):
            operands.append(self._firsts(step))
            self.first[step] = self.body.add_input(f"first{step}", TensorType(i64, ()))
        for part, value in zip(whole, constants, strict=True):
            taken = self._input(value, None)
            self.made[part] = turned(self.body, taken, back=True) if part[1] == TURNED else taken
        for part in self.parts:
            if step := self._step(part):
                self.made[part] = self._positions(part, step)
            elif self._is_made(part):
                self.made[part] = self._clone(part)
        sums = [
            mapped(self.body, _fn(y.op), total, self.made[y, None])
            for y, total in zip(self.sums, before, strict=True)
        ]
        tiles = [self.made[self._part(y)] for y in self.stacked]
        self.body.set_outputs([*sums, *tiles])
        loop = self.graph.add(
            "loop",
            [*starts, *operands, *constants],
            [
                *(total.type for total in sums),
                *(TensorType(y.type.dtype, (self.trip, *y.shape)) for y in tiles),
            ],
            self.cluster.seed.loc,
            body=self.body,
            condition=None,
            trip=self.trip,
            carries=len(sums),
            xs=len(operands),
            reverse=False,
        )
        return {
            y: converted(self.graph, result, y.type.dtype)
            if y in self.sums
            else tiles_back(self.graph, result, self.along.axes[y])
            for y, result in zip([*self.sums, *self.stacked], loop.results, strict=True)
        }

    # ---------------------------------------------------------------- parts

    def _parts(self) -> list[Part]:
        """All that the body makes or takes, in the order of the graph."""
        found = set[Part]()
        pending = list(map(self._part, self.cluster.outputs))
        while pending:
            part = pending.pop()
            if part not in found:
                found.add(part)
                pending += self._behind(part)
        place = self.cluster.surroundings.place
        return sorted(found, key=lambda part: (place(part[0].op), part[0].op.id))

    def _part(self, value: Value) -> Part:
        """Of a value of the cluster."""
        return value, self.along.axes.get(value)

    def _behind(self, part: Part) -> list[Part]:
        value, axis = part
        operands = value.op.operands
        if value.op in self.inside:
            along = self.along.operands(value.op)
            return [self._read(value.op, at, axis) for at, axis in enumerate(along)]
        if not self._is_made(part) or self._step(part):
            return []
        axes = None if axis is None else separate(value.op, axis)
        return list(zip(operands, axes or (None,) * len(operands), strict=True))

    def _read(self, op: Op, operand: int, axis: int | None) -> Part:
        """What an op of the cluster reads. A product has its sums along the first axis of what it
        reads whole, in each tile again: so vectors run along memory, and nobody packs."""
        value = op.operands[operand]
        if axis is None and op.definition.is_product and value.type.rank > 1:
            last = value.type.rank - 1
            if summed(op, operand, last) is not None and not self._is_made((value, None)):
                return value, TURNED
        return value, axis

    def _is_made(self, part: Part) -> bool:
        """Whether the body makes it."""
        known = self.made_inside.get(part)
        if known is None:
            known = self.made_inside[part] = self._makes(part)
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
        if axis is not None and separate(op, axis) is None and not self._step(part):
            return False
        known = op.definition
        if known.is_splat or (known.is_view and not known.splits and len(op.operands) == 1):
            return True
        own = axis is not None and known.is_elementwise and len(op.results) == 1
        if own and all(user in self.inside for user in self.graph.users(value)):
            return True
        return self.cluster.surroundings.is_made_up(value)

    def _step(self, part: Part) -> int:
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

    def _shape(self, value: Value, axis: int | None) -> tuple[int, ...]:
        shape = value.shape
        return shape if axis is None else (*shape[:axis], self.places, *shape[axis + 1 :])

    def _input(self, value: Value, axis: int | None) -> Value:
        type = TensorType(value.type.dtype, self._shape(value, axis))
        return self.body.add_input(f"x{len(self.body.inputs)}", type)

    def _firsts(self, step: int) -> Value:
        """The number of the first place of each tile, of which the next one is `step` larger."""
        tile = build(self.graph, "iota", (), shape=(self.trip,), dtype=i64, axis=0)
        return mapped(self.graph, "mul", tile, filled(self.graph, self.places * step, tile.type))

    def _totals(self) -> list[tuple[Value, TensorType]]:
        """Results that are sums over tiles, and as what they are summed."""
        return [(y, TensorType(summed_in(y.op), y.shape)) for y in self.sums]

    # ---------------------------------------------------------------- ops

    def _clone(self, part: Part) -> Value:
        value, axis = part
        op = value.op
        attrs = dict(op.attrs) if axis is None else narrowed(op, axis, self.places)
        operands = [self.made[each] for each in self._behind(part)]
        if op in self.along.sums:
            if op.definition.is_product:
                attrs["dtype"] = summed_in(op)
            else:
                operands = [converted(self.body, x, summed_in(op)) for x in operands]
        if op.definition.is_constant:
            return self.body.add(op.kind, (), value.type, op.loc, **attrs).result
        return build(self.body, op.kind, operands, op.loc, **attrs)

    def _positions(self, part: Part, step: int) -> Value:
        """The numbers of the places of a tile: added as integers, which are exact, or wrap as those
        of the whole do; floats are rounded once, as there."""
        value, axis = part
        assert axis is not None
        shape, dtype = self._shape(value, axis), value.type.dtype
        exact = dtype if dtype.is_integer else i32 if value.type.size < 2**31 else i64
        if value.op.definition.counts:
            own = build(self.body, "iota", (), shape=shape, dtype=exact, axis=axis)
        else:
            line = build(self.body, "iota", (), shape=(math.prod(shape),), dtype=exact, axis=0)
            own = build(self.body, "reshape", (line,), shape=shape)
        start = converted(self.body, self.first[step], exact)
        everywhere = build(self.body, "broadcast", (start,), shape=shape, axes=())
        return converted(self.body, mapped(self.body, "add", own, everywhere), dtype)


def _is_line(value: Value) -> bool:
    """Whether it is its own index, along its only axis."""
    return value.op.definition.counts and value.type.rank == 1


def _fn(op: Op) -> str:
    """What puts the sums of tiles together."""
    return "add" if op.definition.is_product else str(op.attrs["fn"])
