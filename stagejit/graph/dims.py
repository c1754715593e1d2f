"""The dimension attributes of `conv`, `window`, `gather` and `scatter`, as typed values.

Input: an op's attributes, which hold the fields by name. Output: `ConvDims`, `WindowDims`,
`GatherDims` and `ScatterDims`, and the result shapes that they imply. Invariant: axis numbers are
plain ints, counted from the front.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Self

from stagejit.base.records import record
from stagejit.index.affine import Affine, Index

Axes = tuple[int, ...]
Shape = tuple[int, ...]


class _FromAttributes:
    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Self:
        """The fields of this class among an op's attributes; those with a default may be left out.
        Raises KeyError for a missing one."""
        values = {
            field.name: attrs[field.name]
            for field in fields(cls)  # type: ignore[arg-type]
            if field.name in attrs or field.default is MISSING
        }
        return cls(**values)


@record
class ConvDims(_FromAttributes):
    """`conv lhs, rhs`: a convolution without kernel flip.

    lhs_spec, out_spec: axes (batch, feature, *spatial); rhs_spec: (out_feature, in_feature,
        *spatial).
    padding[d]: elements added (or, where negative, removed) before and after spatial dimension d,
        after lhs_dilation has put zeros between elements.
    border: what is added; left out where it is zero. As if the operand went on and on beyond its
        edges with this value, before the dilation, which puts zeros between those elements too.
    feature_groups: input and output features split into as many groups, which do not mix.
    batch_groups: the batch splits into as many groups, each makes its share of output features.
    split: an axis of the kernel that is summed over, and the elements of a part: sums over the
        parts of that axis, of which the last may be shorter, are the result's axis 0. None: one.
    """

    lhs_spec: Axes
    rhs_spec: Axes
    out_spec: Axes
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    feature_groups: int
    batch_groups: int
    border: int | float = 0
    split: tuple[int, int] | None = None

    def parts(self, rhs: Shape) -> int:
        """How many parts the sums are split into."""
        return 1 if self.split is None else -(-rhs[self.split[0]] // self.split[1])

    def of_one(self, result: Shape) -> Shape:
        """The shape of one part of a result."""
        return result if self.split is None else result[1:]

    def result_shape(self, lhs: Shape, rhs: Shape) -> Shape:
        """Raises ValueError where operand shapes do not fit each other."""
        if lhs[self.lhs_spec[1]] != rhs[self.rhs_spec[1]] * self.feature_groups:
            raise ValueError(
                f"{lhs[self.lhs_spec[1]]} input features do not fit a kernel with "
                f"{rhs[self.rhs_spec[1]]} in {self.feature_groups} groups"
            )
        for what, size, groups in (
            ("batch", lhs[self.lhs_spec[0]], self.batch_groups),
            ("output features", rhs[self.rhs_spec[0]], self.feature_groups * self.batch_groups),
        ):
            if size % groups:
                raise ValueError(f"{what} {size} cannot be split into {groups} groups")
        sizes = [lhs[self.lhs_spec[0]] // self.batch_groups, rhs[self.rhs_spec[0]]]
        for d, (low, high) in enumerate(self.padding):
            padded = dilated(lhs[self.lhs_spec[2 + d]], self.lhs_dilation[d]) + low + high
            window = dilated(rhs[self.rhs_spec[2 + d]], self.rhs_dilation[d])
            fits = 0 <= window <= padded
            sizes.append((padded - window) // self.strides[d] + 1 if fits else 0)
        shape = [0] * len(sizes)
        for axis, size in zip(self.out_spec, sizes, strict=True):
            shape[axis] = size
        return tuple(shape) if self.split is None else (self.parts(rhs), *shape)


@record
class WindowDims(_FromAttributes):
    """`window x`: for each axis the size of the windows, their stride, what is added (or, where
    negative, removed) before and after the elements, and the distance of elements in a window.

    What is added is no element of any window. Elements of a window are its taps, in row-major
    order."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.sizes))

    def offsets(self, tap: Sequence[int]) -> tuple[int, ...]:
        """Where that tap of the first window lies in x."""
        return tuple(
            at * step - low
            for at, step, (low, _) in zip(tap, self.dilation, self.padding, strict=True)
        )

    def result_shape(self, x: Shape) -> Shape:
        """Raises ValueError where the fields do not fit the operand."""
        fields = self.sizes, self.strides, self.padding, self.dilation
        if any(len(field) != len(x) for field in fields):
            raise ValueError(f"windows of {len(self.sizes)} axes over an array of {len(x)}")
        if min((*self.sizes, *self.strides, *self.dilation), default=1) < 1:
            raise ValueError("sizes, strides and distances are at least 1")
        shape = []
        for extent, size, stride, (low, high), step in zip(x, *fields, strict=True):
            room = extent + low + high - dilated(size, step)
            shape.append(room // stride + 1 if room >= 0 else 0)
        return tuple(shape)


@record
class GatherDims(_FromAttributes):
    """`gather x, indices`: for each index vector (the last axis of `indices`) one window of x.

    start_axes[c]: axis of x that component c of an index vector moves along.
    operand_batch_axes, index_batch_axes: pairs of axes of x and `indices` walked together.
    collapsed_axes: axes of x, of window size 1, that the result does not have.
    offset_axes: axes of the result for the window's other axes, in order; the result's remaining
        axes are those of `indices` but the last.
    sizes: the window's size on every axis of x.
    """

    offset_axes: Axes
    collapsed_axes: Axes
    start_axes: Axes
    operand_batch_axes: Axes
    index_batch_axes: Axes
    sizes: tuple[int, ...]

    @property
    def window_axes(self) -> Axes:
        """Axes of x that the result has, in order."""
        dropped = {*self.collapsed_axes, *self.operand_batch_axes}
        return tuple(axis for axis in range(len(self.sizes)) if axis not in dropped)

    def batch_axes(self, result_rank: int) -> Axes:
        """Axes of the result that are axes of `indices`, in order."""
        return tuple(axis for axis in range(result_rank) if axis not in self.offset_axes)

    def row_size(self, result: Shape) -> int:
        """Elements of the innermost axes of the result that one index vector is for."""
        size = 1
        for axis in reversed(range(len(result))):
            if axis not in self.offset_axes:
                break
            size *= max(result[axis], 1)
        return size

    def reach(self, x: Shape) -> int:
        """Elements of x among which an index vector chooses."""
        return math.prod(n for axis, n in enumerate(x) if axis not in self.operand_batch_axes)

    def batch_of(self, index: Index) -> Index:
        """Which index vector is that of element `index` of the result."""
        return tuple(index[axis] for axis in self.batch_axes(len(index)))

    def operand_index(self, index: Index, starts: Mapping[int, Affine]) -> Index:
        """Where in x element `index` of the result lies; starts: of its window, by axes of x."""
        batch = self.batch_of(index)
        parts = [starts.get(axis, Affine()) for axis in range(len(self.sizes))]
        for axis, of_indices in zip(self.operand_batch_axes, self.index_batch_axes, strict=True):
            parts[axis] = batch[of_indices]
        for axis, own in zip(self.offset_axes, self.window_axes, strict=True):
            parts[own] = parts[own] + index[axis]
        return tuple(parts)

    def rooms(self, x: Shape) -> dict[int, int]:
        """Positions at which a window may start, by the axes that index vectors move along."""
        return {axis: max(x[axis] - self.sizes[axis] + 1, 1) for axis in self.start_axes}

    def result_shape(self, x: Shape, indices: Shape) -> Shape:
        """Raises ValueError where operand shapes do not fit the fields."""
        if len(self.sizes) != len(x) or any(
            not 0 <= size <= extent for size, extent in zip(self.sizes, x, strict=True)
        ):
            raise ValueError(f"window {self.sizes} does not fit in {x}")
        if not indices or indices[-1] != len(self.start_axes):
            raise ValueError(f"index vectors of {indices} do not have {len(self.start_axes)} items")
        rank = len(indices) - 1 + len(self.offset_axes)
        shape = [0] * rank
        for axis, own in zip(self.offset_axes, self.window_axes, strict=True):
            shape[axis] = self.sizes[own]
        for axis, size in zip(self.batch_axes(rank), indices[:-1], strict=True):
            shape[axis] = size
        return tuple(shape)


@record
class ScatterDims(_FromAttributes):
    """`scatter x, indices, updates`: each index vector says where in x one window of `updates`
    goes.

    window_axes: axes of `updates` that are axes of x, in order; its others are those of `indices`
        but the last.
    inserted_axes: axes of x, of window size 1, that `updates` does not have.
    start_axes, operand_batch_axes, index_batch_axes: as in `GatherDims`.
    """

    window_axes: Axes
    inserted_axes: Axes
    start_axes: Axes
    operand_batch_axes: Axes
    index_batch_axes: Axes

    def kept_axes(self, rank: int) -> Axes:
        """Axes of x (of this rank) that `updates` has, in order."""
        dropped = {*self.inserted_axes, *self.operand_batch_axes}
        return tuple(axis for axis in range(rank) if axis not in dropped)

    def batch_axes(self, updates_rank: int) -> Axes:
        """Axes of `updates` that are axes of `indices`, in order."""
        return tuple(axis for axis in range(updates_rank) if axis not in self.window_axes)

    def window(self, rank: int, updates: Shape) -> tuple[int, ...]:
        """The window's size on every axis of x."""
        sizes = [1] * rank
        for axis, own in zip(self.kept_axes(rank), self.window_axes, strict=True):
            sizes[axis] = updates[own]
        return tuple(sizes)

    def as_gather(self, rank: int, updates: Shape) -> GatherDims:
        """The gather that reads, from x of this rank, what the scatter writes."""
        return GatherDims(
            self.window_axes, self.inserted_axes, self.start_axes, self.operand_batch_axes,
            self.index_batch_axes, self.window(rank, updates),
        )  # fmt: skip

    def check(self, x: Shape, indices: Shape, updates: Shape) -> None:
        """Raises ValueError where operand shapes do not fit the fields."""
        if not indices or indices[-1] != len(self.start_axes):
            raise ValueError(f"index vectors of {indices} do not have {len(self.start_axes)} items")
        if len(updates) != len(indices) - 1 + len(self.window_axes):
            raise ValueError(f"updates {updates} do not fit indices {indices}")
        batch = tuple(updates[axis] for axis in self.batch_axes(len(updates)))
        if batch != indices[:-1]:
            raise ValueError(f"updates {updates} do not fit indices {indices}")
        window = self.window(len(x), updates)
        if any(size > extent for size, extent in zip(window, x, strict=True)):
            raise ValueError(f"window {window} does not fit in {x}")


def dilated(size: int, dilation: int) -> int:
    """The extent of `size` elements with `dilation - 1` holes between neighbours."""
    return 0 if size == 0 else (size - 1) * dilation + 1
