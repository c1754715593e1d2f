"""Arrays on a GPU that others made: PyCUDA's GPUArrays, torch tensors, CuPy's and JAX's arrays.

Input: anything with `__cuda_array_interface__`. Output: a `DeviceArray`, without a copy. Invariant:
the address is one of the device, it stays valid as long as `owner` does, and who reads it follows
`stream` first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagejit.errors import StagejitError

_INTERFACE = "__cuda_array_interface__"
_LEGACY = 1  # CU_STREAM_LEGACY
_NEXT = "convert it to an array that numpy has a type for"


@dataclass(frozen=True)
class DeviceArray:
    """strides: of bytes, None where elements lie row by row without gaps. stream: a CUDA handle
    (1: the legacy default stream, 2: that of the thread) on which the array becomes what it is. Who
    names none means the legacy one: PyCUDA's arrays do, and a copy to the device may be under way
    on it (`gpuarray.to_gpu` returns before that, and our streams do not wait for it)."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    stream: int
    readonly: bool
    owner: Any = field(compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def is_device_array(value: Any) -> bool:
    """Whether a value says that it lies on a GPU."""
    return getattr(value, _INTERFACE, None) is not None


def device_array(value: Any) -> DeviceArray:
    """Reads what a value says of itself. Raises StagejitError where that makes no array of ours."""
    told: dict[str, Any] = getattr(value, _INTERFACE)
    kind = f"a {type(value).__name__} on a GPU"
    if told.get("mask") is not None:
        raise StagejitError(f"{kind} has a mask", next_step="fill what it hides")
    try:
        dtype = np.dtype(told["typestr"])
    except TypeError as error:
        raise StagejitError(f"{kind} has elements {told['typestr']!r}", next_step=_NEXT) from error
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise StagejitError(f"{kind} has elements {told['typestr']!r}", next_step=_NEXT)
    address, readonly = told["data"]
    shape, stream = tuple(map(int, told["shape"])), told.get("stream")
    if stream == 0:  # version 3 forbids what would be ambiguous
        raise StagejitError(f"{kind} names the stream 0", next_step="let it name 1, 2 or its own")
    strides = _strides(told, shape, dtype)
    stream = _LEGACY if stream is None else stream
    return DeviceArray(int(address or 0), shape, dtype, strides, stream, bool(readonly), value)


def _strides(
    told: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[int, ...] | None:
    strides = told.get("strides")
    if strides is None or 0 in shape:
        return None
    row_by_row, step = [], dtype.itemsize
    for size in reversed(shape):
        row_by_row.append(step)
        step *= size
    pairs = zip(strides, reversed(row_by_row), shape, strict=True)
    same = all(size == 1 or given == usual for given, usual, size in pairs)
    return None if same else tuple(map(int, strides))
