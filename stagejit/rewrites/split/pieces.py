"""Pieces of a value along one axis, taken and put.

Input: values of a graph. Output: ops in it. Invariant: what is all of a value is the value.
"""

from __future__ import annotations

from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops import build


def taken_along(graph: Graph, x: Value, axis: int, start: int, size: int) -> Value:
    """`size` places from `start` on."""
    offsets, sizes = _only(x, axis, start), list(x.shape)
    sizes[axis] = size
    if tuple(sizes) == x.shape:
        return x
    strides = (1,) * x.type.rank
    return build(graph, "extract_slice", (x,), offsets=offsets, sizes=tuple(sizes), strides=strides)


def put_along(graph: Graph, x: Value, into: Value, axis: int, start: int) -> Value:
    """`into` with `x` from place `start` on."""
    offsets, strides = _only(x, axis, start), (1,) * x.type.rank
    return build(graph, "insert_slice", (x, into), offsets=offsets, strides=strides)


def joined_along(graph: Graph, first: Value, second: Value, axis: int) -> Value:
    """`second` after `first`."""
    extent = first.shape[axis] + second.shape[axis]
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
    empty = build(graph, "empty", (), shape=shape, dtype=first.type.dtype)
    made = put_along(graph, first, empty, axis, 0)
    return put_along(graph, second, made, axis, first.shape[axis])


def _only(x: Value, axis: int, start: int) -> tuple[int, ...]:
    return tuple(start if at == axis else 0 for at in range(x.type.rank))
