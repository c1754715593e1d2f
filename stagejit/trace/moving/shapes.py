"""Translations of primitives that move elements: views, slices, and the insert/extract normal form.

Input: JAX primitives such as `concatenate`, `pad`, `dynamic_update_slice`. Output: `reshape`,
`transpose`, `broadcast`, `extract_slice`, and `insert_slice` into an explicit destination.
Invariant: no padded or concatenated value exists except as its destination, so a later stage sees
in one form every place that a producer could write to.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, integers, translation
from stagejit.types import TensorType


def _iota(emit: Emitter, site: Site) -> Value:
    return emit.iota(site.result, int(site.params["dimension"]))


def _empty(emit: Emitter, site: Site) -> Value:
    """JAX promises zeros nowhere, but its CPU lowering gives them, and programs rely on it."""
    return emit.full(0, site.result)


def _broadcast_in_dim(emit: Emitter, site: Site, x: Value) -> Value:
    axes = integers(site.params["broadcast_dimensions"])
    return emit.broadcast(x, site.result.shape, axes)


def _reshape(emit: Emitter, site: Site, x: Value) -> Value:
    if site.params.get("dimensions") is not None:
        x = emit.transpose(x, integers(site.params["dimensions"]))
    return emit.reshape(x, site.result.shape)


def _squeeze(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.reshape(x, site.result.shape)


def _transpose(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.transpose(x, integers(site.params["permutation"]))


def _rev(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.reverse(x, integers(site.params["dimensions"]))


def _tile(emit: Emitter, site: Site, x: Value) -> Value:
    """(a, b) tiled by (m, n)  -->  broadcast to (m, a, n, b), reshaped to (m*a, n*b)"""
    repeats = integers(site.params["reps"])
    if len(repeats) != x.type.rank:
        raise Unsupported("tile with a rank other than its operand's")
    shape = [size for pair in zip(repeats, x.type.shape, strict=True) for size in pair]
    axes = range(1, 2 * x.type.rank, 2)
    return emit.reshape(emit.broadcast(x, shape, axes), site.result.shape)


# -------------------------------------------------------------------- extract


def _slice(emit: Emitter, site: Site, x: Value) -> Value:
    strides = site.params["strides"]
    return emit.extract(
        x,
        integers(site.params["start_indices"]),
        site.result.shape,
        None if strides is None else integers(strides),
    )


def _split(emit: Emitter, site: Site, x: Value) -> list[Value]:
    return _consecutive(emit, x, int(site.params["axis"]), site.results)


def _unstack(emit: Emitter, site: Site, x: Value) -> list[Value]:
    axis = int(site.params["axis"])
    pieces = [_with_unit_axis(type, axis) for type in site.results]
    return [
        emit.reshape(piece, type.shape)
        for piece, type in zip(_consecutive(emit, x, axis, pieces), site.results, strict=True)
    ]


def _consecutive(emit: Emitter, x: Value, axis: int, types: Sequence[TensorType]) -> list[Value]:
    """Adjacent boxes along `axis`, one for each type."""
    results, start = [], 0
    for type in types:
        offsets = [0] * x.type.rank
        offsets[axis] = start
        results.append(emit.extract(x, offsets, type.shape))
        start += type.shape[axis]
    return results


def _dynamic_slice(emit: Emitter, site: Site, x: Value, *starts: Value) -> Value:
    return emit.extract(x, starts, site.result.shape)


# --------------------------------------------------------------------- insert


def _concatenate(emit: Emitter, site: Site, *operands: Value) -> Value:
    return _place_along(emit, site.result, int(site.params["dimension"]), operands)


def _stack(emit: Emitter, site: Site, *operands: Value) -> Value:
    axis = int(site.params["axis"])
    rows = [emit.reshape(v, _with_unit_axis(v.type, axis).shape) for v in operands]
    return _place_along(emit, site.result, axis, rows)


def _place_along(emit: Emitter, type: TensorType, axis: int, sources: Sequence[Value]) -> Value:
    """The sources side by side along `axis` of an uninitialised destination."""
    sources = [v for v in sources if v.type.size]
    if len(sources) == 1:
        return sources[0]
    result, start = emit.empty(type), 0
    for source in sources:
        offsets = [0] * type.rank
        offsets[axis] = start
        result = emit.insert(source, result, offsets)
        start += source.type.shape[axis]
    return result


def _dynamic_update_slice(
    emit: Emitter, site: Site, x: Value, update: Value, *starts: Value
) -> Value:
    return emit.insert(update, x, starts)


def _pad(emit: Emitter, site: Site, x: Value, value: Value) -> Value:
    """pad x, v at lo, interior k  -->  insert_slice x into (fill v) at lo, strides k + 1

    Negative padding crops: only the elements that land inside the result are extracted first.
    """
    config = [integers(axis) for axis in site.params["padding_config"]]
    kept, sizes, offsets, strides = [], [], [], []
    for (low, _, interior), extent, out in zip(
        config, x.type.shape, site.result.shape, strict=True
    ):
        step = interior + 1
        first = max(0, -(low // step))  # smallest i with low + i * step >= 0
        count = max(0, min(extent - first, -((low + first * step - out) // step)))
        kept.append(first if count else 0)
        sizes.append(count)
        offsets.append(low + first * step if count else 0)
        strides.append(step if step == 1 or count > 1 else 1)
    parts = range(site.result.rank - value.type.rank, site.result.rank)  # see trace/elements.py
    filled = emit.broadcast(value, site.result.shape, parts)
    if not all(sizes):
        return filled
    cropped = emit.extract(x, kept, sizes)
    if tuple(sizes) == site.result.shape:
        return cropped
    return emit.insert(cropped, filled, offsets, strides)


def _with_unit_axis(type: TensorType, axis: int) -> TensorType:
    return TensorType(type.dtype, (*type.shape[:axis], 1, *type.shape[axis:]))


TRANSLATIONS: dict[str, Translation] = {
    "iota": translation(_iota, "dtype", "shape", "dimension", ignored=("sharding",)),
    "empty": translation(_empty, "shape", "dtype", ignored=("out_sharding",)),
    "empty2": translation(_empty, "dtype", ignored=("memory_space",)),
    "broadcast_in_dim": translation(
        _broadcast_in_dim, "shape", "broadcast_dimensions", ignored=("sharding",)
    ),
    "reshape": translation(_reshape, "new_sizes", "dimensions", ignored=("sharding",)),
    "squeeze": translation(_squeeze, "dimensions"),
    "expand_dims": translation(_squeeze, "dimensions"),
    "transpose": translation(_transpose, "permutation"),
    "rev": translation(_rev, "dimensions"),
    "tile": translation(_tile, "reps"),
    "slice": translation(_slice, "start_indices", "limit_indices", "strides"),
    "split": translation(_split, "sizes", "axis"),
    "unstack": translation(_unstack, "axis", "num"),
    "dynamic_slice": translation(_dynamic_slice, "slice_sizes"),
    "concatenate": translation(_concatenate, "dimension"),
    "stack": translation(_stack, "axis"),
    "dynamic_update_slice": translation(_dynamic_update_slice),
    "pad": translation(_pad, "padding_config"),
}
