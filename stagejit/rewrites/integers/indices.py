"""known-ranges: what integers cannot be is not compared, clamped, wrapped or filled for.

Input: an op on integers, or a gather or scatter. Output: one of its operands, a number, or the
same without a mask. Invariant: results are the same for all arguments; what might wrap is
anything (see `ranges.py`).
"""

from __future__ import annotations

from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.integers.intervals import Interval, hull, operand_given, within
from stagejit.rewrites.integers.ranges import is_counted, range_of, range_where
from stagejit.rewrites.moving.insert_chains import is_placed
from stagejit.types import bool_

NAME = "known-ranges"

MAX_NESTED = 8  # index vectors that are put together of such that are
MAX_CONSTANT = 1 << 12  # elements of a constant of which each component is looked at


@rewrite(NAME, roots="map")
def known_number(graph: Graph, op: Op) -> Outcome:
    """map fn %x, ... that can be one number only  -->  fill (const)"""
    if not is_counted(op.result) or not all(map(is_counted, op.operands)):
        return None
    low, high = range_of(graph, op.result)
    return filled(graph, low, op.result.type, op.loc) if low == high else None


@rewrite(NAME, roots="map", functions="max min clamp rem abs and")
def bound_that_holds(graph: Graph, op: Op) -> Outcome:
    """map max %x, %low  -->  %x, where %x is never less; so min, clamp, rem, abs, and"""
    if not all(map(is_counted, op.operands)):
        return None
    at = operand_given(op.attrs["fn"], [range_of(graph, x) for x in op.operands])
    return None if at is None else op.operands[at]


@rewrite(NAME, roots="map", functions="and")
def implied_condition(graph: Graph, op: Op) -> Outcome:
    """map and %p, %q  -->  %p, where %q holds wherever %p does"""
    if op.result.type.dtype is not bool_:
        return None
    for p, q in (op.operands, op.operands[::-1]):
        if range_where(graph, q, p) == (1, 1):
            return p
    return None


@rewrite(NAME, roots="gather")
def gather_in_bounds(graph: Graph, op: Op) -> Outcome:
    """gather mode="fill" whose windows are all within  -->  gather mode="clip\""""
    if op.attrs["mode"] != "fill":
        return None
    x, indices = op.operands
    if not _inside(graph, x, indices, GatherDims.of(op.attrs).sizes, op.attrs["start_axes"]):
        return declined("an index may be out of bounds")
    attrs = dict(op.attrs) | {"mode": "clip", "fill_value": None}
    return build(graph, "gather", op.operands, op.loc, **attrs)


@rewrite(NAME, roots="scatter")
def scatter_in_bounds(graph: Graph, op: Op) -> Outcome:
    """scatter mode="fill" whose windows are all within  -->  scatter mode="clip\""""
    if op.attrs["mode"] != "fill":
        return None
    x, indices, updates = op.operands
    window = ScatterDims.of(op.attrs).window(x.type.rank, updates.shape)
    if not _inside(graph, x, indices, window, op.attrs["start_axes"]):
        return declined("an index may be out of bounds")
    return build(graph, "scatter", op.operands, op.loc, **dict(op.attrs) | {"mode": "clip"})


def _inside(
    graph: Graph, x: Value, indices: Value, window: tuple[int, ...], axes: tuple[int, ...]
) -> bool:
    """Whether each component of the index vectors, which are the last axis, leaves room."""
    return all(
        within(_component(graph, indices, at), (0, x.shape[axis] - window[axis]))
        for at, axis in enumerate(axes)
    )


def _component(graph: Graph, value: Value, at: int, depth: int = 0) -> Interval:
    found: list[Interval] = []
    while is_placed(value.op) and depth < MAX_NESTED:
        source, before = value.op.operands[:2]
        inside, rest = divmod(at - value.op.attrs["offsets"][-1], value.op.attrs["strides"][-1])
        if rest == 0 and 0 <= inside < source.shape[-1]:
            found.append(_component(graph, source, inside, depth + 1))
            if source.shape[:-1] == value.shape[:-1] or before.op.definition.is_empty:
                return hull(*found)
        value = before
    if value.op.definition.is_constant and 0 < value.type.size <= MAX_CONSTANT:
        part = value.op.attrs["value"][..., at]
        return hull(*found, (int(part.min()), int(part.max())))
    return hull(*found, range_of(graph, value))


RULES = (
    known_number,
    bound_that_holds,
    implied_condition,
    gather_in_bounds,
    scatter_in_bounds,
)
