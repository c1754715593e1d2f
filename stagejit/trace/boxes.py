"""Recognises the gathers and scatters that touch one strided box.

Input: the start indices of a gather or scatter, as a constant or as a single computed vector.
Output: the `Box` that they cover, or None. Invariant: a `Box` names each element once, so writing
it needs no rule for duplicates; `x.at[2:5]`, `x.at[::2, 3]` and `x[i]` all become slices through
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Indexing:
    """How index vectors address windows of an array; shared by gather and scatter.

    start_axes[c] is the array axis of component c of each index vector. The array's
    operand_batch_axes are indexed by the position along index_batch_axes instead.
    window: the window's size on every axis of the array.
    """

    start_axes: tuple[int, ...]
    operand_batch_axes: tuple[int, ...]
    index_batch_axes: tuple[int, ...]
    window: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A strided box of an array. `drivers[axis]` is the index axis that moves along it, if any;
    `reversed_axes` are those along which it moves downwards."""

    offsets: tuple[int | Value, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    drivers: tuple[int | None, ...]
    reversed_axes: tuple[int, ...]


Placement = Box | Literal["nowhere"] | None


def find_box(
    emit: Emitter, indexing: Indexing, shape: Sequence[int], indices: Value, mode: str
) -> Placement:
    """The box that all index vectors cover together; "nowhere" where all are out of bounds."""
    limits = tuple(extent - size for extent, size in zip(shape, indexing.window, strict=True))
    value = emit.known(indices)
    if value is not None:
        return _constant_box(indexing, limits, value, mode)
    if math.prod(indices.type.shape[:-1]) != 1:
        return None  # several index vectors, each perhaps without components
    if mode == "fill":
        return None  # a computed index that may be out of bounds is not always written
    offsets: list[int | Value] = [0] * len(shape)
    for component, axis in enumerate(indexing.start_axes):
        offsets[axis] = emit.element(indices, (0,) * (indices.type.rank - 1) + (component,))
    rank = len(shape)
    return Box(tuple(offsets), indexing.window, (1,) * rank, (None,) * rank, ())


def _constant_box(
    indexing: Indexing, limits: tuple[int, ...], value: Array, mode: str
) -> Placement:
    starts = _starts(indexing, value)
    if mode == "fill":
        inside = [(start >= 0) & (start <= limits[axis]) for axis, start in starts.items()]
        in_bounds = np.logical_and.reduce([np.ones(value.shape[:-1], bool), *inside])
        if not in_bounds.any():
            return "nowhere"
        if not in_bounds.all():
            return None
    starts = {axis: np.clip(start, 0, limits[axis]) for axis, start in starts.items()}
    rank = len(limits)
    offsets, sizes, strides = [0] * rank, list(indexing.window), [1] * rank
    drivers: list[int | None] = [None] * rank
    backwards = []
    for axis, start in starts.items():
        line = _progression(start)
        if line is None:
            return None
        offsets[axis] = int(start.min())
        driver, step = line
        if driver is None:
            continue
        if indexing.window[axis] != 1 or driver in drivers:
            return None
        drivers[axis], sizes[axis], strides[axis] = driver, start.shape[driver], abs(step)
        if step < 0:
            backwards.append(axis)
    moving = {axis for axis, size in enumerate(value.shape[:-1]) if size != 1}
    if moving != {driver for driver in drivers if driver is not None}:
        return None  # several index vectors name one window
    return Box(tuple(offsets), tuple(sizes), tuple(strides), tuple(drivers), tuple(backwards))


def _starts(indexing: Indexing, value: Array) -> dict[int, Array]:
    """For each array axis that the indices move along, its start as an array over index vectors."""
    if value.dtype == np.uint64:  # beyond i64 is beyond every array
        value = np.minimum(value, np.uint64(np.iinfo(np.int64).max))
    starts = {
        axis: value[..., component].astype(np.int64)
        for component, axis in enumerate(indexing.start_axes)
    }
    batch = value.shape[:-1]
    for axis, driver in zip(indexing.operand_batch_axes, indexing.index_batch_axes, strict=True):
        sizes = [-1 if i == driver else 1 for i in range(len(batch))]
        starts[axis] = np.broadcast_to(np.arange(batch[driver]).reshape(sizes), batch)
    return starts


def _progression(start: Array) -> tuple[int | None, int] | None:
    """(axis, step) of an arithmetic progression along one axis; axis None for a constant."""
    if not start.size:
        return None
    moving = [
        axis
        for axis in range(start.ndim)
        if start.shape[axis] > 1 and np.any(np.diff(start, axis=axis))
    ]
    if not moving:
        return None, 0
    steps = np.unique(np.diff(start, axis=moving[0]))
    if len(moving) > 1 or len(steps) > 1:
        return None
    return moving[0], int(steps[0])
