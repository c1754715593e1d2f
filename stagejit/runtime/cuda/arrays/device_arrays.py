"""Arrays on a GPU that others made: PyCUDA's GPUArrays, torch tensors, CuPy's and JAX's arrays.

Input: anything with `__cuda_array_interface__`. Output: a `DeviceArray`, without a copy. Invariant:
the address is one of the device, it stays valid as long as `owner` does, and who reads it follows
`stream` first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import jax
import numpy as np

from stagejit.base.records import record
from stagejit.errors import StagejitError

ALIGNED = 16  # bytes of the widest access of a kernel
INTERFACE = "__cuda_array_interface__"
_LEGACY = 1  # CU_STREAM_LEGACY
IN_ORDER = frozenset({None, _LEGACY})  # streams with which a driver's main one is in order
_NEXT = "convert it to an array that numpy has a type for"


@record
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
    return getattr(value, INTERFACE, None) is not None


def device_array(value: Any) -> DeviceArray:
    """Reads what a value says of itself. Raises StagejitError where that makes no array of ours."""
    told: dict[str, Any] = getattr(value, INTERFACE)
    kind = f"a {type(value).__name__} on a GPU"
    if told.get("mask") is not None:
        raise StagejitError(f"{kind} has a mask", next_step="fill what it hides")
    try:
        address, readonly = told["data"]
        shape, elements, stream = (
            tuple(map(int, told["shape"])),
            told["typestr"],
            told.get("stream"),
        )
        address = int(address or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise StagejitError(
            f"{kind} does not say where it is, and what ({INTERFACE} lacks {error})",
            next_step="see that it is an array, and still there",
        ) from error
    dtype = _dtype(elements, kind)
    if stream == 0:  # version 3 forbids what would be ambiguous
        raise StagejitError(f"{kind} names the stream 0", next_step="let it name 1, 2 or its own")
    if not address and 0 not in shape:
        raise StagejitError(f"{kind} has no address", next_step="see that it is still there")
    strides = _strides(told, shape, dtype)
    stream = _LEGACY if stream is None else stream
    return DeviceArray(address, shape, dtype, strides, stream, bool(readonly), value)


def _dtype(elements: Any, kind: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(elements) if isinstance(elements, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc" or not dtype.isnative:
        raise StagejitError(f"{kind} has elements {elements!r}", next_step=_NEXT)
    return dtype


def row_by_row(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides of an array without gaps."""
    made, step = [], itemsize
    for size in reversed(shape):
        made.append(step)
        step *= size
    return tuple(reversed(made))


def _strides(
    told: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[int, ...] | None:
    strides = told.get("strides")
    if strides is None or 0 in shape:
        return None
    pairs = zip(strides, row_by_row(shape, dtype.itemsize), shape, strict=False)
    same = len(strides) == len(shape) and all(
        size == 1 or given == usual for given, usual, size in pairs
    )
    return None if same else tuple(map(int, strides))


# -------------------------------------------------------------------- donated arrays


def donors(arrays: Mapping[int, DeviceArray], at: Sequence[int]) -> dict[int, object]:
    """Of the arrays that may be written into, those in whose memory that can be done: nobody else
    of this call reads it, it lies where kernels can take it, and it lives as long as what is given
    here for it.

    JAX's arrays own their memory in a way that nobody else can share."""
    found: dict[int, object] = {}
    for number in at:
        one = arrays.get(number)
        if one is None or one.readonly or one.address % ALIGNED or isinstance(one.owner, jax.Array):
            continue
        if not any(_overlap(one, other) for n, other in arrays.items() if n != number):
            found[number] = getattr(one.owner, "gpudata", one.owner)
    return found


def _overlap(one: DeviceArray, other: DeviceArray) -> bool:
    end = min(one.address + one.nbytes, other.address + other.nbytes)
    return max(one.address, other.address) < end
