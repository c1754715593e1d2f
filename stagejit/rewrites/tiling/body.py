"""What is done for one tile, as a graph.

Input: the parts of a tile, a number of places. Output: a graph of what is summed so far, of slices,
of the numbers of first places, and of what is read whole, in that order; it gives the sums and the
places of other outputs. Invariant: it has the cluster's ops on so many places, and what is
evaluated where it is read.
"""

from __future__ import annotations

import math

from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.axes import narrowed
from stagejit.rewrites.split.partial import converted, mapped, summed_in
from stagejit.rewrites.tiling.parts import TURNED, Part, Parts
from stagejit.types import TensorType, i32, i64


def body_of(parts: Parts, places: int) -> Graph:
    """The graph of a tile of so many places."""
    return _Body(parts, places).graph


def put_together(op: Op) -> str:
    """The function that puts the sums of tiles together."""
    return "add" if op.definition.is_product else str(op.attrs["fn"])


def turned(graph: Graph, value: Value, *, back: bool = False) -> Value:
    """%x of [.., n, k]  -->  [k, .., n], or back"""
    last = value.type.rank - 1
    order = (*range(1, last + 1), 0) if back else (last, *range(last))
    return build(graph, "transpose", (value,), permutation=order)


class _Body:
    def __init__(self, parts: Parts, places: int) -> None:
        self.parts, self.places = parts, places
        self.graph = Graph("tile")
        self.made: dict[Part, Value] = {}
        self.first: dict[int, Value] = {}  # number of the first place of a tile, by step
        sums = self._inputs()
        for part in parts.all:
            if step := parts.step(part):
                self.made[part] = self._positions(part, step)
            elif parts.is_made(part):
                self.made[part] = self._clone(part)
        totals = [
            mapped(self.graph, put_together(y.op), total, self.made[y, None])
            for y, total in zip(parts.sums, sums, strict=True)
        ]
        self.graph.set_outputs([*totals, *(self.made[parts.part(y)] for y in parts.stacked)])

    def _inputs(self) -> list[Value]:
        """Makes all; returns the sums so far."""
        sums = [
            self.graph.add_input(f"sum{at}", type, donated=True)
            for at, type in enumerate(self.parts.totals)
        ]
        for x, along in self.parts.slices:
            self.made[x, along] = self._input(x, along)
        for step in self.parts.steps:
            self.first[step] = self.graph.add_input(f"first{step}", TensorType(i64, ()))
        for part in self.parts.whole:
            value, axis = part
            if axis == TURNED:
                last = value.type.rank - 1
                shape = (value.shape[last], *value.shape[:last])
                taken = self._named(TensorType(value.type.dtype, shape))
                self.made[part] = turned(self.graph, taken, back=True)
            else:
                self.made[part] = self._input(value, None)
        return sums

    def _shape(self, value: Value, axis: int | None) -> tuple[int, ...]:
        shape = value.shape
        return shape if axis is None else (*shape[:axis], self.places, *shape[axis + 1 :])

    def _input(self, value: Value, axis: int | None) -> Value:
        return self._named(TensorType(value.type.dtype, self._shape(value, axis)))

    def _named(self, type: TensorType) -> Value:
        return self.graph.add_input(f"x{len(self.graph.inputs)}", type)

    def _clone(self, part: Part) -> Value:
        value, axis = part
        op = value.op
        attrs = dict(op.attrs) if axis is None else narrowed(op, axis, self.places)
        operands = [self.made[each] for each in self.parts.behind(part)]
        if op in self.parts.along.sums:
            if op.definition.is_product:
                attrs["dtype"] = summed_in(op)
            else:
                operands = [converted(self.graph, x, summed_in(op)) for x in operands]
        if op.definition.is_constant:
            return self.graph.add(op.kind, (), value.type, op.loc, **attrs).result
        return build(self.graph, op.kind, operands, op.loc, **attrs)

    def _positions(self, part: Part, step: int) -> Value:
        """The numbers of the places of a tile: added as integers, which are exact, or wrap as those
        of the whole do; floats are rounded once, as there."""
        value, axis = part
        assert axis is not None
        shape, dtype = self._shape(value, axis), value.type.dtype
        exact = dtype if dtype.is_integer else i32 if value.type.size < 2**31 else i64
        if value.op.definition.counts:
            own = build(self.graph, "iota", (), shape=shape, dtype=exact, axis=axis)
        else:
            line = build(self.graph, "iota", (), shape=(math.prod(shape),), dtype=exact, axis=0)
            own = build(self.graph, "reshape", (line,), shape=shape)
        start = converted(self.graph, self.first[step], exact)
        everywhere = build(self.graph, "broadcast", (start,), shape=shape, axes=())
        return converted(self.graph, mapped(self.graph, "add", own, everywhere), dtype)
