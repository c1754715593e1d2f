"""The meaning of every scalar function, as NumPy on whole arrays.

Input: NumPy operands of one shape. Output: the result. Float functions get float64 operands and
give float64 (the caller rounds); integers and bools keep their type. Invariant: independent of
JAX, so it can judge it; the rules for integers, NaN and conversion are the Notes of
`functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def float_function(name: str, params: dict[str, Any]) -> Callable[..., Array]:
    """The float64 function of this name. Raises KeyError for an unknown one."""
    if name == "integer_pow":
        return lambda x: _integer_pow(x, params["y"])
    if name == "round":
        return _round_away if params["rounding"] == "away" else np.rint
    return _FLOAT[name]


def integer_function(name: str, params: dict[str, Any]) -> Callable[..., Array]:
    """The function of this name on integers and bools. Raises KeyError for an unknown one."""
    if name == "integer_pow":
        return lambda x: _integer_pow(x, params["y"])
    if name == "threefry2x32":
        return lambda *args: _threefry(*args)[params["word"]]
    return _INTEGER[name]


def convert(x: Array, target: np.dtype[Any]) -> Array:
    """`x` as elements of `target`: float to integer saturates, NaN gives 0."""
    from_float = x.dtype.kind not in "biu"
    if target.kind == "b":
        return np.asarray(x != 0)
    if not from_float or target.kind not in "iu":
        return x.astype(target)
    wide = np.trunc(x.astype(np.float64))
    info = np.iinfo(target)
    # float(info.max) may round up to a value that the integer type does not have.
    result = np.zeros(x.shape, target)
    inside = (wide >= float(info.min)) & (wide < float(info.max) + (1.0 if info.bits < 64 else 0.0))
    result[inside] = wide[inside].astype(target)
    result[wide < float(info.min)] = info.min
    result[~inside & (wide > 0)] = info.max
    return result


def _threefry(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Random123's 20 rounds (Salmon et al. 2011)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + key0, x1 + key1
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = x0 ^ (x1 << np.uint32(distance) | x1 >> np.uint32(32 - distance))
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


# ------------------------------------------------------------------- floats


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(1.0, x))


def _round_away(x: Array) -> Array:
    """Halves away from zero; adding 0.5 to the number just below 0.5 would round it up."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


def _integer_pow(x: Array, y: int) -> Array:
    if x.dtype.kind in "iu":
        return np.power(x, np.asarray(y, x.dtype)) if y >= 0 else 1 // np.power(x, -y)
    return np.power(x, float(y)) if abs(y) < 2**53 else np.power(x, y)


def _maximum(x: Array, y: Array) -> Array:
    """NumPy's, which leaves open which of two zeros is the larger one, with -0 < +0."""
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y))


def _minimum(x: Array, y: Array) -> Array:
    return -_maximum(-x, -y)


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _special(name: str) -> Callable[[Array], Array]:
    """SciPy's function of this name, imported when it is first called: that takes a while."""

    def apply(x: Array) -> Array:
        from scipy import special

        result: Array = getattr(special, name)(x)
        return result

    return apply


def _erf_inv(y: Array) -> Array:
    """SciPy's, which loses the sign of a zero."""
    return np.where(y == 0, y, _special("erfinv")(y))


_FLOAT: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "sign": _sign, "floor": np.floor, "ceil": np.ceil, "abs": np.abs,
    "is_finite": np.isfinite, "square": np.square, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "logistic": _logistic, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt,
    "erf": _special("erf"), "erfc": _special("erfc"), "erf_inv": _erf_inv,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "max": _maximum, "min": _minimum, "pow": np.power, "atan2": np.arctan2,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where,
    "clamp": lambda low, x, high: _minimum(_maximum(x, low), high),
}  # fmt: skip


# ----------------------------------------------------------------- integers


def _divide(x: Array, y: Array) -> Array:
    zero = y == 0
    quotient = np.floor_divide(x, np.where(zero, 1, y).astype(y.dtype))
    truncated = quotient + ((quotient * y != x) & (quotient < 0)).astype(x.dtype)
    if x.dtype.kind == "i":  # NumPy gives 0 for the least integer divided by -1 on some machines
        truncated = np.where(y == -1, np.negative(x), truncated)
    return np.where(zero, np.invert(np.zeros_like(x)), truncated).astype(x.dtype)


def _remainder(x: Array, y: Array) -> Array:
    zero = (y == 0) | (y == -1 if y.dtype.kind == "i" else False)
    rest = np.fmod(x, np.where(zero, 1, y).astype(y.dtype))
    return np.where(y == 0, x, np.where(zero, 0, rest)).astype(x.dtype)


def _shift(direction: str) -> Callable[[Array, Array], Array]:
    def apply(x: Array, distance: Array) -> Array:
        bits = x.dtype.itemsize * 8
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        amount = distance.view(unsigned)
        outside = amount >= bits
        amount = np.where(outside, 0, amount).astype(unsigned)
        if direction == "arithmetic":
            signed = x.view(np.dtype(f"i{x.dtype.itemsize}"))
            shifted = np.right_shift(signed, amount.astype(signed.dtype))
            return (
                np.where(outside, np.where(signed < 0, -1, 0), shifted)
                .astype(signed.dtype)
                .view(x.dtype)
            )
        shift = np.left_shift if direction == "left" else np.right_shift
        shifted = shift(x.view(unsigned), amount)
        return np.where(outside, 0, shifted).astype(unsigned).view(x.dtype)

    return apply


def _population_count(x: Array) -> Array:
    count: Array = np.bitwise_count(x.view(np.dtype(f"u{x.dtype.itemsize}")))
    return count.astype(x.dtype)


def _count_leading_zeros(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    value = x.view(np.dtype(f"u{x.dtype.itemsize}")).copy()
    length = np.zeros(x.shape, x.dtype)
    while value.any():
        length += (value != 0).astype(x.dtype)
        value >>= 1
    return (bits - length).astype(x.dtype)


_INTEGER: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "sign": np.sign, "abs": np.abs, "square": np.square, "not": np.invert,
    "population_count": _population_count, "clz": _count_leading_zeros,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder,
    "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shift_left": _shift("left"),
    "shift_right_arithmetic": _shift("arithmetic"), "shift_right_logical": _shift("logical"),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
