"""Windows at places that index vectors name: `gather` reads them, `scatter` updates them.

In the interpreter every window element is addressed by explicit index arrays, one for each axis of
the array, so the code follows the definition in `dims.py` line by line; updates are applied in
index order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagejit.graph.definition import Attrs, OpDef, Types, define, require
from stagejit.graph.dims import GatherDims, ScatterDims
from stagejit.graph.functions import SCATTER_FUNCTIONS
from stagejit.graph.ir import Op
from stagejit.graph.meaning.evaluator import Array, Evaluator, accumulated
from stagejit.graph.text.syntax import read_function, write_function
from stagejit.types import TensorType


def _gather(operands: Types, attrs: Attrs) -> TensorType:
    x, indices = operands
    require(indices.dtype.is_integer, "indices are integers")
    require(attrs["mode"] in ("clip", "fill", "promise"), f"unknown mode {attrs['mode']!r}")
    require(
        (attrs["mode"] == "fill") == (attrs["fill_value"] is not None),
        "a fill value belongs to the mode fill",
    )
    return TensorType(x.dtype, GatherDims.of(attrs).result_shape(x.shape, indices.shape))


def _scatter(operands: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = operands
    require(indices.dtype.is_integer, "indices are integers")
    require(attrs["mode"] in ("clip", "fill", "promise"), f"unknown mode {attrs['mode']!r}")
    require(
        x.dtype.kind in SCATTER_FUNCTIONS.get(attrs["fn"], ()),
        f"{attrs['fn']} is not defined for {x.dtype}",
    )
    require(x.dtype is updates.dtype, "operand and updates differ in element type")
    require(
        all(isinstance(attrs[name], bool) for name in ("unique", "sorted")),
        "unique and sorted are bools",
    )
    ScatterDims.of(attrs).check(x.shape, indices.shape, updates.shape)
    return x


# ------------------------------------------------------------------ meaning


def _value_of_gather(evaluator: Evaluator, op: Op, x: Array, indices: Array) -> Array:
    dims = GatherDims.of(op.attrs)
    starts, inside = _starts(dims, x.shape, indices, dims.sizes, op.attrs["mode"])
    places = _places(starts, dims.sizes, dims.window_axes)
    result_rank = op.result.type.rank
    batch = indices.ndim - 1
    value = x[tuple(places)] if places else np.broadcast_to(x, indices.shape[:-1])
    if op.attrs["mode"] == "fill":
        mask = inside.reshape(inside.shape + (1,) * (value.ndim - batch))
        value = np.where(mask, value, np.asarray(op.attrs["fill_value"], x.dtype))
    return np.moveaxis(value, range(value.ndim), [*dims.batch_axes(result_rank), *dims.offset_axes])


def _value_of_scatter(
    evaluator: Evaluator, op: Op, x: Array, indices: Array, updates: Array
) -> Array:
    dims = ScatterDims.of(op.attrs)
    window = dims.window(x.ndim, updates.shape)
    # XLA drops what breaks its promise.
    mode = "clip" if op.attrs["mode"] == "clip" else "fill"
    starts, inside = _starts(dims, x.shape, indices, window, mode)
    places = _places(starts, window, dims.kept_axes(x.ndim))
    ordered = updates.transpose(*dims.batch_axes(updates.ndim), *dims.window_axes)
    result = accumulated(x).copy() if op.attrs["fn"] != "set" else x.copy()
    shape = ordered.shape
    where = np.broadcast_to(inside.reshape(inside.shape + (1,) * (len(shape) - inside.ndim)), shape)
    index = tuple(np.broadcast_to(place, shape)[where] for place in places)
    values = ordered[where].astype(result.dtype)
    if not places:  # a scalar: every update has the same target
        index, result = (np.zeros(values.shape, int),), result.reshape(1)
    _apply(op.attrs["fn"], result, index, values)
    return result.reshape(x.shape)


def _apply(fn: str, target: Array, index: tuple[Array, ...], values: Array) -> None:
    if fn == "set":
        for k in range(values.size):  # in order: the last of several wins
            target[tuple(axis[k] for axis in index)] = values[k]
    elif target.dtype.kind == "b":
        {"min": np.logical_and, "max": np.logical_or}[fn].at(target, index, values)
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[fn]
        ufunc.at(target, index, values)


def _starts(
    dims: GatherDims | ScatterDims,
    shape: Sequence[int],
    indices: Array,
    window: Sequence[int],
    mode: str,
) -> tuple[list[Array], Array]:
    """For every axis of the array the window starts, and which windows lie within the array."""
    batch = indices.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in shape]
    inside = np.ones(batch, bool)
    for component, axis in enumerate(dims.start_axes):
        start = indices[..., component]
        if start.dtype.kind == "u":  # beyond int64 is beyond every array
            start = np.minimum(start, np.uint64(2**63 - 1))
        start = start.astype(np.int64)
        last = shape[axis] - window[axis]
        inside &= (start >= 0) & (start <= last)
        starts[axis] = np.clip(start, 0, max(last, 0))
    for axis, driver in zip(dims.operand_batch_axes, dims.index_batch_axes, strict=True):
        sizes = [-1 if i == driver else 1 for i in range(len(batch))]
        starts[axis] = np.broadcast_to(np.arange(batch[driver]).reshape(sizes), batch)
    return starts, inside if mode == "fill" else np.ones(batch, bool)


def _places(starts: list[Array], window: Sequence[int], kept: Sequence[int]) -> list[Array]:
    """Index arrays of shape batch + window: where each window element lies on every axis."""
    places = []
    for axis, start in enumerate(starts):
        place = start.reshape(start.shape + (1,) * len(kept))
        if axis in kept:
            sizes = [-1 if other == axis else 1 for other in kept]
            place = place + np.arange(window[axis]).reshape(sizes)
        places.append(place)
    return places


def _gather_element_flops(op: Op) -> float:
    return 4.0


def _scatter_flops(op: Op) -> int:
    return op.operands[2].type.size if op.attrs["fn"] != "set" else 0


def _updated(op: Op, result: int) -> int:
    return 0


define(
    OpDef(
        kind="gather",
        infer=_gather,
        interpret=_value_of_gather,
        is_indexed=True,
        element_flops=_gather_element_flops,
    )
)
define(
    OpDef(
        kind="scatter",
        infer=_scatter,
        interpret=_value_of_scatter,
        write=write_function,
        read=read_function,
        tied_operand=_updated,
        is_indexed=True,
        stands_alone=True,
        flops=_scatter_flops,
    )
)
