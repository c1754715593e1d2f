"""What sorts are compared with: NumPy's stable order, and arrays with what is hard to order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_float(x: Array) -> bool:
    return x.dtype.kind not in "biu"


def array(shape: Sequence[int], name: str, seed: int = 0, *, ties: bool = False) -> Array:
    """Elements over the whole range, or with many ties; of floats some are special."""
    rng, dtype = np.random.default_rng(seed), dtype_of(name)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (0, 4) if ties else (info.min, info.max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    x = np.asarray(rng.integers(-3, 3, shape) if ties else rng.standard_normal(shape) * 50)
    x = x.astype(dtype)
    flat = x.reshape(-1)
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    for special in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny):
        if flat.size > 4:
            flat[rng.integers(0, flat.size, max(flat.size // 16, 1))] = special
    return x


def bits(x: Array) -> Array:
    """What two arrays have in common if and only if they are equal bit for bit."""
    return x.view(f"u{x.dtype.itemsize}") if is_float(x) else x


def keys(x: Array, *, descending: bool = False) -> list[Array]:
    """For `np.lexsort`, the less important first."""
    if not is_float(x):
        return [~x if descending else x]
    number = x.astype(np.float64)
    nan = np.isnan(number)
    number[nan] = 0
    return [-number, ~nan] if descending else [number, nan]


def order(operands: Sequence[Array], axis: int, *, descending: bool = False) -> Array:
    """The places that the elements of sorted rows come from, by all operands."""
    found: list[Array] = []
    for x in operands:
        found = [*keys(x, descending=descending), *found]
    return np.lexsort(found, axis)


def assert_same(ours: Any, wanted: Array) -> None:
    """Equal in type, shape and bits."""
    found = np.asarray(ours)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(bits(found), bits(wanted))
