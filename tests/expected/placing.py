"""Where an `insert_slice` places, said apart from the interpreter of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagejit.graph.ir import Op, Value


def slices_of(insert: Op, shape: tuple[int, ...], values: Mapping[Value, Any]) -> tuple[slice, ...]:
    """The elements of an array of `shape` that it overwrites. values: those of its starts, which
    are clamped as JAX does."""
    starts = iter(values[start] for start in insert.operands[2:])
    box = []
    for offset, stride, extent, size in zip(
        insert.attrs["offsets"],
        insert.attrs["strides"],
        shape,
        insert.operands[0].shape,
        strict=True,
    ):
        span = (size - 1) * stride + 1 if size else 0
        start = min(max(int(next(starts)), 0), extent - span) if offset is None else offset
        box.append(slice(start, start + span, stride))
    return tuple(box)
