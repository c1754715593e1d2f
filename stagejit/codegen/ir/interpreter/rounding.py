"""Float results that NumPy rounds twice or not at all: fused multiply-add, and casts to 16 bits.

Input: arrays. Output: arrays whose every element is the exact result, rounded once to nearest even.
Invariant: NaN where IEEE 754 says NaN; which NaN is nobody's business.

Note [Rounding to odd]: a result that is rounded to odd (an inexact one becomes that of its two
neighbours whose last bit is set) in a format with two bits more than twice as many as needed can be
rounded again, and is right (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums:
proved algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SPLITTER = 2.0**27 + 1
_LEAST_PRODUCT = 2.0**-900  # whose rounding error has all its bits


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if not a.shape == b.shape == c.shape:
        a, b, c = np.broadcast_arrays(a, b, c)
    return _fused_f32(a, b, c) if a.dtype == np.float32 else _fused_f64(a, b, c)


def _fused_f32(a: Array, b: Array, c: Array) -> Array:
    """The product is exact in f64."""
    total, error = _two_sum(a.astype(np.float64) * b, c.astype(np.float64))
    return _made_odd(total, error).astype(np.float32)


def _fused_f64(a: Array, b: Array, c: Array) -> Array:
    """Infinities and NaN, and what overflows in between, come out of it as NaN."""
    made = _fused_if_moderate(a, b, c)
    near = (np.abs(a * b) > _LEAST_PRODUCT) | (a == 0) | (b == 0)
    known = near & np.isfinite(made)
    if known.all() and made.all():
        return made
    finite = np.isfinite(a) & np.isfinite(b)
    # Right for zeros, whose sign is lost above, infinities and NaN.
    plain = np.where(finite & np.isinf(c), c, a * b + c)
    made = np.where(known & (made != 0), made, plain)
    odd = ~known & finite & np.isfinite(c)
    for at in zip(*np.nonzero(odd), strict=True):  # seldom any
        made[at] = _fused_exactly(float(a[at]), float(b[at]), float(c[at]))
    return made


def _fused_if_moderate(a: Array, b: Array, c: Array) -> Array:
    """Boldo and Melquiond's algorithm, see Note [Rounding to odd]."""
    product, low = _two_product(a, b)
    high_sum, low_sum = _two_sum(c, low)
    total, rest = _two_sum(product, high_sum)
    return total + _made_odd(*_two_sum(low_sum, rest))


def _fused_exactly(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = np.inf if exact > 0 else -np.inf
    # What is too small to be a number keeps its sign; an exact zero is positive.
    return -0.0 if rounded == 0 and exact < 0 else rounded


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Knuth's: the rounded sum, and its error."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker's: the rounded product, and its error."""
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = a * _SPLITTER
    high = scaled - (scaled - a)
    return high, a - high


def _made_odd(near: Array, error: Array) -> Array:
    """`near + error` rounded to odd, where `near` is the nearest number to it."""
    # Infinities and NaN have errors that are no numbers.
    moved = ((near.view(np.int64) & 1) == 0) & (error != 0) & np.isfinite(error)
    if not moved.any():
        return near
    return np.where(moved, np.nextafter(near, np.copysign(np.inf, error)), near)


def narrowed(a: Array, dtype: Any) -> Array:
    """f32 or f64 in a narrower float type."""
    if np.dtype(dtype) != ml_dtypes.bfloat16:
        return a.astype(dtype)
    bits = (_odd_f32(a) if a.dtype == np.float64 else a).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(a), quiet, rounded).astype(np.uint16).view(ml_dtypes.bfloat16)


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
