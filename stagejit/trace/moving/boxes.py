"""Recognises the gathers and scatters that touch one strided box.

Input: the start indices of a gather or scatter, as a constant or as a single computed vector.
Output: the `Box` that they cover, or None. Invariant: a `Box` names each element once, so writing
it needs no rule for duplicates; `x.at[2:5]`, `x.at[::2, 3]` and `x[i]` all become slices through
here.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from stagejit.base.records import record
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter

Array = np.ndarray[Any, np.dtype[Any]]
Dims = GatherDims | ScatterDims
Sizes = tuple[int, ...]


@record
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
    emit: Emitter, dims: Dims, window: Sizes, shape: Sizes, indices: Value, mode: str
) -> Placement:
    """The box that all index vectors cover together; "nowhere" where all are out of bounds.

    window: its size on every axis of the array."""
    value = emit.known(indices)
    if value is not None:
        return _constant_box(dims, window, shape, value, mode)
    if math.prod(indices.type.shape[:-1]) != 1:
        return None  # several index vectors, each perhaps without components
    if mode == "fill":
        return None  # a computed index that may be out of bounds is not always written
    offsets: list[int | Value] = [0] * len(shape)
    for component, axis in enumerate(dims.start_axes):
        offsets[axis] = emit.element(indices, (0,) * (indices.type.rank - 1) + (component,))
    rank = len(shape)
    return Box(tuple(offsets), window, (1,) * rank, (None,) * rank, ())


def _constant_box(dims: Dims, window: Sizes, shape: Sizes, value: Array, mode: str) -> Placement:
    limits = tuple(extent - size for extent, size in zip(shape, window, strict=True))
    starts = _starts(dims, value)
    if mode == "fill":
        inside = [(start >= 0) & (start <= limits[axis]) for axis, start in starts.items()]
        in_bounds = np.logical_and.reduce([np.ones(value.shape[:-1], bool), *inside])
        if not in_bounds.any():
            return "nowhere"
        if not in_bounds.all():
            return None
    starts = {axis: np.clip(start, 0, limits[axis]) for axis, start in starts.items()}
    rank = len(limits)
    offsets, sizes, strides = [0] * rank, list(window), [1] * rank
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
        if window[axis] != 1 or driver in drivers:
            return None
        drivers[axis], sizes[axis], strides[axis] = driver, start.shape[driver], abs(step)
        if step < 0:
            backwards.append(axis)
    moving = {axis for axis, size in enumerate(value.shape[:-1]) if size != 1}
    if moving != {driver for driver in drivers if driver is not None}:
        return None  # several index vectors name one window
    return Box(tuple(offsets), tuple(sizes), tuple(strides), tuple(drivers), tuple(backwards))


def _starts(dims: Dims, value: Array) -> dict[int, Array]:
    """For each array axis that the indices move along, its start as an array over index vectors."""
    if value.dtype == np.uint64:  # beyond i64 is beyond every array
        value = np.minimum(value, np.uint64(np.iinfo(np.int64).max))
    starts = {
        axis: value[..., component].astype(np.int64)
        for component, axis in enumerate(dims.start_axes)
    }
    batch = value.shape[:-1]
    for axis, driver in zip(dims.operand_batch_axes, dims.index_batch_axes, strict=True):
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
    if len(moving) != 1:
        return None if moving else (None, 0)
    steps = np.diff(start, axis=moving[0])
    step = steps.flat[0]
    return (moving[0], int(step)) if (steps == step).all() else None
