"""Indices that count: what index vectors are, each component by itself.

Input: the indices of a gather or scatter. Output: the interval of each component; where each is
`offset + stride * coordinate` and inside, the strided box that a gather reads. Invariant: no sum on
the way wraps, and no index of a box is out of bounds, so that no mode changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.slices import pull_view
from stagejit.index.affine import Affine, Index, Var
from stagejit.index.coordinates import coordinates
from stagejit.rewrites.insert_chains import is_placed, line
from stagejit.rewrites.intervals import Interval, hull, whole, within
from stagejit.rewrites.ranges import is_counted, range_of

MAX_STEPS = 64  # ops between an index and what counts
MAX_NESTED = 8  # index vectors that are put together of such that are
MAX_CONSTANT = 1 << 12  # elements of a constant that may count
MAX_NUMBER = 1 << 40  # in a constant that may count: an array has fewer elements


@dataclass(frozen=True)
class GatheredBox:
    """A strided box of an array. drivers[axis]: the axis of the indices that moves along it, if
    any; `reversed_axes` are those along which it moves downwards."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    drivers: tuple[int | None, ...]
    reversed_axes: tuple[int, ...]


def index_ranges(graph: Graph, indices: Value) -> tuple[Interval, ...]:
    """For each component of the index vectors, which are the last axis, what it may be."""
    return tuple(_component(graph, indices, at) for at in range(indices.shape[-1]))


def _component(graph: Graph, value: Value, at: int, depth: int = 0) -> Interval:
    found: list[Interval] = []
    while is_placed(value.op) and depth < MAX_NESTED:
        source, before = value.op.operands[:2]
        written = line(value.op, len(value.shape) - 1, source.shape[-1])
        if at in written:
            found.append(_component(graph, source, written.index(at), depth + 1))
            rest, whole_rest = source.shape[:-1], value.shape[:-1]
            if rest == whole_rest or before.op.definition.is_empty:
                return hull(*found)
        value = before
    if value.op.definition.is_constant and 0 < value.type.size <= MAX_CONSTANT:
        part = value.op.attrs["value"][..., at]
        return hull(*found, (int(part.min()), int(part.max())))
    return hull(*found, range_of(graph, value))


def box_of(graph: Graph, gather: Op) -> GatheredBox | None:
    """The box that all index vectors of a gather name together, each element once; None where
    there is none."""
    x, indices = gather.operands
    dims = GatherDims.of(gather.attrs)
    *batch, _ = indices.shape
    position = coordinates(tuple(batch))
    axis_of = {term: axis for axis, part in enumerate(position) for term in part.vars()}
    rank = x.type.rank
    offsets, sizes, strides = [0] * rank, list(dims.sizes), [1] * rank
    drivers: list[int | None] = [None] * rank
    backwards: list[int] = []
    for axis, driver in zip(dims.operand_batch_axes, dims.index_batch_axes, strict=True):
        drivers[axis], sizes[axis] = driver, batch[driver]
    for component, axis in enumerate(dims.start_axes):
        start = _affine(graph, indices, (*position, Affine((), component)))
        room = x.shape[axis] - dims.sizes[axis]
        if start is None or not within(start.range(), (0, room)):
            return None
        offsets[axis] = start.range()[0]
        moving = _only_term(start, axis_of)
        if start.is_const:
            continue
        if moving is None or dims.sizes[axis] != 1:
            return None
        driver, step = moving
        drivers[axis], sizes[axis], strides[axis] = driver, batch[driver], abs(step)
        if step < 0:
            backwards.append(axis)
    used = [driver for driver in drivers if driver is not None and batch[driver] != 1]
    if sorted(used) != [axis for axis, size in enumerate(batch) if size != 1]:
        return None  # several index vectors name one window, or one axis moves along two
    return GatheredBox(
        tuple(offsets), tuple(sizes), tuple(strides), tuple(drivers), tuple(sorted(backwards))
    )


def _only_term(start: Affine, axis_of: Mapping[Var, int]) -> tuple[int, int] | None:
    if len(start.terms) != 1:
        return None
    ((var, step),) = start.terms
    return (axis_of[var], step) if var in axis_of else None


def _affine(graph: Graph, value: Value, index: Index) -> Affine | None:
    """The element of `value` at `index`, as a sum over the variables of the index."""
    total, factor = Affine(), 1
    for _ in range(MAX_STEPS):
        op = value.op
        if not is_counted(value):
            return None
        if op.definition.counts:
            axis: int = op.attrs["axis"]
            return total + index[axis] * factor
        if op.definition.is_constant:
            element = _of_constant(op, index)
            return None if element is None else total + element * factor
        if op.definition.is_splat:
            value, index = op.operands[0], ()
        elif op.definition.is_view and None not in op.attrs.get("offsets", ()):
            value, index = op.operands[0], pull_view(op, index)
        elif op.definition.is_conversion and _is_kept(graph, op):
            value = op.operands[0]
        elif is_placed(op):
            inside = _inside(op, index)
            if inside == "perhaps":
                return None
            value, index = (op.operands[1], index) if inside is None else (op.operands[0], inside)
        else:
            split = _split(graph, op)
            if split is None:
                return None
            value, scale, more = split
            total, factor = total + more * factor, factor * scale
    return None


def _is_kept(graph: Graph, convert: Op) -> bool:
    source = convert.operands[0]
    return is_counted(source) and within(range_of(graph, source), whole(convert.result.type.dtype))


def _split(graph: Graph, op: Op) -> tuple[Value, int, int] | None:
    """`(value, scale, more)` where `op` is `value * scale + more`, and does not wrap."""
    fn = function_of(op)
    if fn == "neg":
        return _unwrapped(graph, op, op.operands[0], -1, 0)
    if fn not in ("add", "sub", "mul"):
        return None
    for x, other in (op.operands, op.operands[::-1]):
        low, high = range_of(graph, other)
        if low != high:
            continue
        if fn == "mul":
            return _unwrapped(graph, op, x, low, 0)
        if fn == "add":
            return _unwrapped(graph, op, x, 1, low)
        return _unwrapped(graph, op, x, *((1, -low) if x is op.operands[0] else (-1, low)))
    return None


def _unwrapped(
    graph: Graph, op: Op, x: Value, scale: int, more: int
) -> tuple[Value, int, int] | None:
    ends = [end * scale + more for end in range_of(graph, x)]
    fits = within((min(ends), max(ends)), whole(op.result.type.dtype))
    return (x, scale, more) if fits else None


def _inside(insert: Op, index: Index) -> Index | Literal["perhaps"] | None:
    """The index into what is inserted; None where the element lies elsewhere."""
    found = []
    for axis, (part, size) in enumerate(zip(index, insert.operands[0].shape, strict=True)):
        written, (low, high) = line(insert, axis, size), part.range()
        if not written or high < written[0] or written[-1] < low:
            return None
        if low == high and low not in written:
            return None
        if low == high:
            found.append(Affine((), written.index(low)))
        elif written.step == 1 and written[0] <= low and high <= written[-1]:
            found.append(part - written[0])
        else:
            return "perhaps"
    return tuple(found)


def _of_constant(op: Op, index: Index) -> Affine | None:
    """An element of a constant that counts along its axes."""
    array = op.attrs["value"]
    if not 0 < array.size <= MAX_CONSTANT or not is_counted(op.result):
        return None
    if max(abs(int(array.min())), abs(int(array.max()))) > MAX_NUMBER:
        return None
    wide = array.astype(np.int64)
    first = int(wide[(0,) * array.ndim])
    element, expected = Affine((), first), np.full(array.shape, first, wide.dtype)
    for axis, (part, size) in enumerate(zip(index, array.shape, strict=True)):
        if size > 1:
            step = int(wide[(0,) * axis + (1,) + (0,) * (array.ndim - axis - 1)]) - first
            line_shape = [size if other == axis else 1 for other in range(array.ndim)]
            expected = expected + (np.arange(size) * step).reshape(line_shape)
            element = element + part * step
    return element if bool((expected == wide).all()) else None
