"""Float results that NumPy rounds twice or not at all: fused multiply-add, and casts to 16 bits.

Input: arrays. Output: arrays whose every element is the exact result, rounded once to nearest even.
Invariant: NaN where IEEE 754 says NaN; which NaN is nobody's business.

Note [Rounding to odd]: a result that is rounded to odd (an inexact one becomes that of its two
neighbours whose last bit is set) in a format with two bits more than twice as many as needed can be
rounded again, and is right (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums:
proved algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def _of_library(name: str, kind: type) -> Callable[..., Any]:
    """A function of three numbers of the C library, element by element."""
    function = getattr(ctypes.CDLL(None), name)
    function.argtypes, function.restype = [kind] * 3, kind
    made: Callable[..., Any] = np.frompyfunc(function, 3, 1)
    return made


_FUSED = {"f": _of_library("fmaf", ctypes.c_float), "d": _of_library("fma", ctypes.c_double)}


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    made: Array = _FUSED[a.dtype.char](a, b, c).astype(a.dtype)
    return made


def narrowed(a: Array, dtype: Any) -> Array:
    """f32 or f64 in a narrower float type."""
    if np.dtype(dtype) == ml_dtypes.bfloat16 and a.dtype == np.float64:
        a = _odd_f32(a)  # else it is rounded to f32 first
    return a.astype(dtype)


def _odd_f32(a: Array) -> Array:
    """f64 in f32, rounded to odd."""
    near = a.astype(np.float32)
    back, bits = near.astype(np.float64), near.view(np.int32)
    step = np.where(np.abs(back) < np.abs(a), np.int32(1), np.int32(-1))
    odd = np.where((back != a) & ~np.isnan(a) & (bits & 1 == 0), bits + step, bits)
    return odd.astype(np.int32).view(np.float32)


def from_integers(a: Array, dtype: Any) -> Array:
    """Signed or unsigned integers in a float type."""
    if np.dtype(dtype).itemsize > 2:
        return a.astype(dtype)
    if a.dtype.itemsize == 8:  # may have more bits than f64
        sticky = (a & a.dtype.type(0xFFF)) != 0
        cut = (a & ~a.dtype.type(0xFFF)) | np.where(sticky, 0x800, 0).astype(a.dtype)
        big = (a > 1 << 53) | (a < -(1 << 53)) if a.dtype.kind == "i" else a > 1 << 53
        a = np.where(big, cut, a)
    return narrowed(a.astype(np.float64), dtype)


def to_integers(a: Array, bits: int, *, signed: bool) -> Array:
    """Towards zero; saturated; NaN gives 0. The result is as wide as NumPy's integers are."""
    wide = a.astype(np.float64)
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    inside = (wide > low) & (wide < high)
    made = np.where(inside, wide, 0).astype(np.int64 if signed else np.uint64)
    made = np.where(wide >= high, made.dtype.type(high - 1), made)
    return np.where(wide <= low, made.dtype.type(low), made)
