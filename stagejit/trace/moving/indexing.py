"""Translations of `gather` and the scatter family.

Input: JAX's dimension numbers, modes and update functions. Output: slices where the indices cover
one box (see `boxes.py`), else one `gather` or `scatter`. Invariant: `mode` "fill" always carries
its fill value, and index vectors are the last axis of `indices`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from stagejit.graph.dims import Axes, GatherDims, ScatterDims
from stagejit.graph.ir import Value
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.emitter import Emitter
from stagejit.trace.moving.boxes import Box, find_box
from stagejit.trace.moving.wide_scatters import Scatter
from stagejit.trace.translation import Site, Translation, Unsupported, integers, translation
from stagejit.types import DType, bool_

_MODES = {
    GatherScatterMode.CLIP: "clip",
    GatherScatterMode.FILL_OR_DROP: "fill",
    GatherScatterMode.PROMISE_IN_BOUNDS: "promise",
}


def _mode(site: Site) -> str:
    value = site.params["mode"]
    mode = _MODES.get(
        GatherScatterMode.from_any(value) if value is not None else GatherScatterMode.CLIP
    )
    if mode is None:
        raise Unsupported(f"mode {value}")
    return mode


# --------------------------------------------------------------------- gather


def _gather(emit: Emitter, site: Site, x: Value, indices: Value) -> Value:
    mode, numbers = _mode(site), site.params["dimension_numbers"]
    fill = _fill_value(site.params["fill_value"], x.type.dtype) if mode == "fill" else None
    dims = GatherDims(
        offset_axes=integers(numbers.offset_dims),
        collapsed_axes=integers(numbers.collapsed_slice_dims),
        start_axes=integers(numbers.start_index_map),
        operand_batch_axes=integers(numbers.operand_batching_dims),
        index_batch_axes=integers(numbers.start_indices_batching_dims),
        sizes=integers(site.params["slice_sizes"]),
    )
    if not site.result.size:
        return emit.empty(site.result)
    box = find_box(emit, dims, dims.sizes, x.type.shape, indices, mode)
    if box == "nowhere":
        return emit.full(fill, site.result)
    if box is None:
        return emit.emit(
            "gather", (x, indices), site.result, **vars(dims), mode=mode, fill_value=fill
        )
    value = emit.reverse(emit.extract(x, box.offsets, box.sizes, box.strides), box.reversed_axes)
    # A window axis that index vectors drive has size 1 in the window: it stays as a unit axis.
    batch_axes = dims.batch_axes(site.result.rank)
    order = _axis_order(box, dims.window_axes, dims.offset_axes, batch_axes)
    return emit.reshape(emit.transpose(value, order), site.result.shape)


def _axis_order(box: Box, window_axes: Axes, positions: Axes, batch: Axes) -> list[int]:
    """Array axes in the order that their elements take in the result (or updates), in which window
    axes have `positions` and axes of the indices those in `batch`."""
    placed = dict(zip(window_axes, positions, strict=True))
    placed |= {axis: batch[at] for axis, at in enumerate(box.drivers) if at is not None}
    # Unit axes that the result does not have can go anywhere: the reshape drops them.
    return sorted(range(len(box.sizes)), key=lambda axis: placed.get(axis, -1))


def _fill_value(value: Any, dtype: DType) -> Any:
    """JAX's defaults: NaN, the least signed integer, the greatest unsigned one, True."""
    if value is not None:
        return fill_array(value, dtype.numpy).item()
    if dtype.is_float:
        return float("nan")
    if dtype is bool_:
        return True
    info = np.iinfo(dtype.numpy)
    return int(info.min) if dtype.is_signed else int(info.max)


def fill_array(value: Any, dtype: Any) -> Any:
    """A fill value as JAX takes it: cast as NumPy casts arrays, so that -1 is the greatest unsigned
    integer."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(value).astype(dtype)


# -------------------------------------------------------------------- scatter


def _scatter(fn: str) -> Translation:
    def rule(emit: Emitter, site: Site, x: Value, indices: Value, updates: Value) -> Value:
        _check_body(site, fn)
        if x.type.dtype is bool_ and fn in ("add", "sub", "mul"):
            raise Unsupported(f"scatter-{fn} of bools")
        return scatter(emit, site, fn, x, indices, updates)

    return translation(
        rule,
        "dimension_numbers",
        "indices_are_sorted",
        "unique_indices",
        "mode",
        "update_jaxpr",
        "update_consts",
    )


def scatter(emit: Emitter, site: Site, fn: str, x: Value, indices: Value, updates: Value) -> Value:
    """Updates combined into windows of `x`; through slices where the windows are one box."""
    mode, numbers = _mode(site), site.params["dimension_numbers"]
    dims = ScatterDims(
        window_axes=integers(numbers.update_window_dims),
        inserted_axes=integers(numbers.inserted_window_dims),
        start_axes=integers(numbers.scatter_dims_to_operand_dims),
        operand_batch_axes=integers(numbers.operand_batching_dims),
        index_batch_axes=integers(numbers.scatter_indices_batching_dims),
    )
    if not updates.type.size:
        return x
    # XLA drops an update that breaks its promise, and JAX relies on it: the derivative of
    # `x.at[i].min(y, mode="clip")` promises that i is in bounds.
    strict = "fill" if mode == "promise" else mode
    window, rank = dims.window(x.type.rank, updates.type.shape), updates.type.rank
    box = find_box(emit, dims, window, x.type.shape, indices, strict)
    if box == "nowhere":
        return x
    if box is not None:
        kept = dims.kept_axes(x.type.rank)
        order = _axis_order(box, kept, dims.window_axes, dims.batch_axes(rank))
        return _insert_box(emit, fn, x, _box_shaped(emit, updates, box, order), box)
    if fn == "sub":
        fn, updates = "add", emit.map("neg", updates)
    unique, ordered = (bool(site.params[name]) for name in ("unique_indices", "indices_are_sorted"))
    return Scatter(dims, fn, strict, unique, ordered, x, indices, updates).emitted(emit)


def _box_shaped(emit: Emitter, updates: Value, box: Box, order: list[int]) -> Value:
    """`updates` with the axes of the array: the inverse of what a gather of the box does."""
    value = emit.reshape(updates, [box.sizes[axis] for axis in order])
    inverse = [order.index(axis) for axis in range(len(order))]
    return emit.reverse(emit.transpose(value, inverse), box.reversed_axes)


def _insert_box(emit: Emitter, fn: str, x: Value, source: Value, box: Box) -> Value:
    if fn != "set":
        current = emit.extract(x, box.offsets, box.sizes, box.strides)
        source = emit.map(fn, current, source)
    return emit.insert(source, x, box.offsets, box.strides)


def _check_body(site: Site, fn: str) -> None:
    """Raises Unsupported where the update function is not the one that the primitive names."""
    body = site.params["update_jaxpr"]
    if body is None:
        return
    body = getattr(body, "jaxpr", body)
    if fn == "set":
        standard = not body.eqns and body.outvars[0] is body.invars[1]
    else:
        standard = [jax_name(eqn.primitive) for eqn in body.eqns] in ([fn], [f"{fn}_any"])
    if not standard:
        raise Unsupported("scatter with an update function of its own")


TRANSLATIONS: dict[str, Translation] = {
    "gather": translation(
        _gather,
        "dimension_numbers",
        "slice_sizes",
        "mode",
        "fill_value",
        "unique_indices",
        "indices_are_sorted",
    ),
    "scatter": _scatter("set"),
    "scatter-add": _scatter("add"),
    "scatter-sub": _scatter("sub"),
    "scatter-mul": _scatter("mul"),
    "scatter-min": _scatter("min"),
    "scatter-max": _scatter("max"),
}
