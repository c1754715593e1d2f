"""A cluster as a loop over tiles.

Input: the parts of a tile, a number of places. Output: a `loop` op, and what stands for each output
of the cluster. Invariant: tiles cover each place once; what is summed over tiles is carried.

Note [Tiles outermost]: a loop takes slices along axis 0 and stacks its results along axis 0, so
that the tiles of a value are moved there first, which is a view where the axis is outermost.

Note [The rest]: where tiles of one size leave places over, those are one more tile, a shorter one,
after the loop: so each iteration has one size and one place in memory, and iterations may run side
by side, whatever the extent.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.functions import neutral
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.cloning import appended
from stagejit.rewrites.split.partial import converted, mapped
from stagejit.rewrites.split.pieces import joined_along, taken_along
from stagejit.rewrites.tiling.body import body_of, put_together, turned
from stagejit.rewrites.tiling.parts import TURNED, Parts
from stagejit.types import TensorType, i64


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


class TileLoop:
    """Builds the loop. places: along the axis, in each tile; trip: how many such tiles; rest: how
    many places the last tile has, which comes after them."""

    def __init__(self, parts: Parts, places: int) -> None:
        self.parts, self.graph, self.places = parts, parts.graph, places
        self.trip, self.rest = divmod(parts.extent, places)

    @property
    def tiles(self) -> int:
        """How many there are, of any size."""
        return self.trip + bool(self.rest)

    def build(self) -> dict[Value, Value]:
        """What stands for each output of the cluster."""
        parts = self.parts
        whole = [turned(self.graph, x) if axis == TURNED else x for x, axis in parts.whole]
        results = self._looped(whole)
        rest = self._after(results[: len(parts.sums)], whole) if self.rest else []
        made = {}
        for at, y in enumerate([*parts.sums, *parts.stacked]):
            if at < len(parts.sums):
                made[y] = converted(self.graph, (rest or results)[at], y.type.dtype)
                continue
            axis = parts.along.axes[y]
            made[y] = tiles_back(self.graph, results[at], axis)
            if rest:
                made[y] = joined_along(self.graph, made[y], rest[at], axis)
        return made

    def _looped(self, whole: Sequence[Value]) -> Sequence[Value]:
        """Sums over all tiles of one size, and their other results, stacked."""
        parts, graph = self.parts, self.graph
        functions = [put_together(y.op) for y in parts.sums]
        starts = [
            filled(graph, neutral(fn, x.dtype), x)
            for fn, x in zip(functions, parts.totals, strict=True)
        ]
        covered = self.trip * self.places
        slices = [
            tiles_first(graph, taken_along(graph, x, axis, 0, covered), axis, self.places)
            for x, axis in parts.slices
        ]
        slices += map(self._firsts, parts.steps)
        body = body_of(parts, self.places)
        tiles = body.outputs[len(starts) :]
        return graph.add(
            "loop",
            [*starts, *slices, *whole],
            [*parts.totals, *(TensorType(y.type.dtype, (self.trip, *y.shape)) for y in tiles)],
            parts.cluster.seed.loc,
            body=body,
            condition=None,
            trip=self.trip,
            carries=len(starts),
            xs=len(slices),
            reverse=False,
        ).results

    def _firsts(self, step: int) -> Value:
        """The number of the first place of each tile, of which the next one is `step` larger."""
        tile = build(self.graph, "iota", (), shape=(self.trip,), dtype=i64, axis=0)
        return mapped(self.graph, "mul", tile, filled(self.graph, self.places * step, tile.type))

    def _after(self, sums: Sequence[Value], whole: Sequence[Value]) -> list[Value]:
        """The same of the rest, which is what the graph does after the loop."""
        graph, covered = self.graph, self.trip * self.places
        slices = [taken_along(graph, x, axis, covered, self.rest) for x, axis in self.parts.slices]
        number = TensorType(i64, ())
        slices += [filled(graph, covered * step, number) for step in self.parts.steps]
        body = body_of(self.parts, self.rest)
        known = dict(zip(body.inputs, [*sums, *slices, *whole], strict=True))
        made = appended(graph, body.ops(), known)
        return [made[y] for y in body.outputs]
