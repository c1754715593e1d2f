"""Where a `window` reads: its taps as elements of the operand, for a dry run.

Input: the op and the index at which its result is wanted. Output: the reads that it takes, and what
is compared with bounds. Invariant: these are the reads of `elements/windows.py`, or for many taps
those at the ends of each axis.

Note [Runs]: behind an axis that windows leave there may be few elements that no window goes along,
such as the channels of an image. Whether a tap is inside then also tells its place among all
elements of axis and run together, so the loops along them may become one, with full vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from stagejit.graph.dims import WindowDims
from stagejit.graph.ir import Op
from stagejit.index.affine import Affine, Index, linearize

MOST_STRAIGHT = 64  # taps that stand in the code one by one; a loop goes over more
_SHORT_RUN = 32  # elements; in vectors along longer runs all lanes are inside, or none is


def window_reads(op: Op, index: Index) -> Iterator[Index]:
    """The indices at which the operand is read, for all taps; those that leave it moved inside."""
    dims = WindowDims.of(op.attrs)
    ends = [{0, size - 1} for size in dims.sizes]
    many = math.prod(dims.sizes) > MOST_STRAIGHT
    for tap in itertools.product(*ends) if many else dims.taps:
        yield tuple(
            _moved_inside(part * stride, first, extent)
            for part, stride, first, extent in zip(
                index, dims.strides, dims.offsets(tap), op.operands[0].shape, strict=True
            )
        )


def _moved_inside(part: Affine, first: int, extent: int) -> Affine:
    """`part + first`, or as near to it as its least value is an index: where it is clamped, the
    least of all is read."""
    low = part.range()[0]
    return part + min(max(first, -low), extent - 1 - low)


def window_numbers(op: Op, index: Index) -> Iterator[Affine]:
    """The parts of the index that are compared with the bounds of the operand."""
    dims = WindowDims.of(op.attrs)
    for axis in open_axes(op):
        shape = run_behind(op, axis)
        scaled = index[axis] * dims.strides[axis]
        yield linearize((scaled, *index[axis + 1 :]), (0, *shape)) if shape else index[axis]


def open_axes(op: Op) -> list[int]:
    """Axes along which some window leaves the operand. Not by the range of an index: that of loops
    which have become one reaches beyond an axis, and goes on in the next row."""
    dims, found = WindowDims.of(op.attrs), []
    for axis, (extent, count) in enumerate(zip(op.operands[0].shape, op.result.shape, strict=True)):
        first = -dims.padding[axis][0]
        last = first + (count - 1) * dims.strides[axis]
        if first < 0 or last + (dims.sizes[axis] - 1) * dims.dilation[axis] >= extent:
            found.append(axis)
    return found


def run_behind(op: Op, axis: int) -> tuple[int, ...]:
    """The shape of the run behind an axis, see Note [Runs]; empty where there is none."""
    dims, shape = WindowDims.of(op.attrs), op.operands[0].shape[axis + 1 :]
    plain = all(
        (dims.sizes[other], dims.strides[other], *dims.padding[other]) == (1, 1, 0, 0)
        for other in range(axis + 1, len(dims.sizes))
    )
    return shape if plain and 1 < math.prod(shape) < _SHORT_RUN else ()
