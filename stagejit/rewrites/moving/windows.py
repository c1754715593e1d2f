"""fold-pads, of windows: what is around or between the elements of a window's operand is left out.

Input: a `window` over an `insert_slice` into a `fill` of what its function does not notice. Output:
a window over the elements alone. Invariant: each element of the result is made of the same
elements. (Of a sum of zeros: a border of +0 is left out as one of -0 is, as in convolutions.)
"""

from __future__ import annotations

import math

import numpy as np

from stagejit.base.records import record
from stagejit.graph.dims import WindowDims
from stagejit.graph.functions import identity
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.windows import chooses
from stagejit.rewrites.algebra import scalar_of
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.rewrites.moving.pads import NAME, Pad, pad_of


@record
class _Along:
    """The windows that are left along one axis, whose results are there `times` each; of these, the
    ones from `first` on, `count` of them, are the results."""

    size: int
    stride: int
    padding: tuple[int, int]
    dilation: int
    count: int
    first: int = 0
    times: int = 1


@rewrite(NAME, roots="window", counts=True)
def pad_into_window(graph: Graph, op: Op) -> Outcome:
    """window (insert_slice %x into fill %v)  -->  window %x, with more padding

    window (insert_slice %x into fill %v strides (h))  -->  reshape (broadcast (window %x)): where
    windows of a multiple of h elements move over holes, h neighbours see the same elements."""
    pad = pad_of(op.operands[0])
    if pad is None:
        return None
    border = scalar_of(pad.border)
    if border is None:
        return declined("the border is known at run time only")
    if chooses(op) or border.item() != identity(op.attrs["fn"], op.result.type.dtype):
        return declined(f"{op.attrs['fn']} notices the border")
    if len(graph.uses(pad.op.result)) > 1:
        return declined("the pad has other readers")
    axes = [_along(pad, op, axis) for axis in range(op.result.type.rank)]
    found = [axis for axis in axes if axis is not None]
    if len(found) < len(axes):
        return declined("windows see different numbers of elements between the holes")
    return _built(graph, op, pad.source, found)


def _along(pad: Pad, op: Op, axis: int) -> _Along | None:
    """None where a window sees more elements than the one beside it, but for the ends."""
    dims, count = WindowDims.of(op.attrs), op.result.shape[axis]
    size, stride, step = dims.sizes[axis], dims.strides[axis], dims.dilation[axis]
    low, high = dims.padding[axis]
    low, high, hole = low + pad.low[axis], high + pad.high[axis], pad.strides[axis]
    if hole == 1:
        return _Along(size, stride, (low, high), step, count)
    if stride != 1 or step != 1 or size % hole:
        return None
    first = (hole - 1 - low) % hole  # so that the last of each `hole` windows begins at an element
    before, taps = (low + first - hole + 1) // hole, size // hole
    windows = -(-(count + first) // hole)
    after = windows - 1 + taps - pad.source.shape[axis] - before
    return _Along(taps, 1, (before, after), 1, count, first, hole)


def _built(graph: Graph, op: Op, made: Value, axes: list[_Along]) -> Value:
    if any(axis.size > 1 or axis.stride > 1 or axis.padding != (0, 0) for axis in axes):
        made = build(
            graph, "window", (made,), fn=op.attrs["fn"],
            sizes=tuple(axis.size for axis in axes), strides=tuple(axis.stride for axis in axes),
            padding=tuple(axis.padding for axis in axes),
            dilation=tuple(axis.dilation for axis in axes),
        )  # fmt: skip
    if all(axis.times == 1 for axis in axes):
        return made
    pairs = [
        (extent, axis.times) if axis.times > 1 else (extent,)
        for extent, axis in zip(made.shape, axes, strict=True)
    ]
    firsts = np.cumsum([0, *map(len, pairs)])[:-1]
    shape = tuple(size for pair in pairs for size in pair)
    made = build(graph, "broadcast", (made,), shape=shape, axes=tuple(map(int, firsts)))
    made = build(graph, "reshape", (made,), shape=tuple(map(math.prod, pairs)))
    offsets, sizes = tuple(axis.first for axis in axes), tuple(axis.count for axis in axes)
    if sizes == made.shape:
        return made
    ones = (1,) * len(sizes)
    return build(graph, "extract_slice", (made,), offsets=offsets, sizes=sizes, strides=ones)


RULES = (pad_into_window,)
