"""What one element of a scalar function costs, for the cost model.

Input: a primitive's name and dtype. Output: flop equivalents: the time of one element, once it is
in a register, in units of the time that one of the target's peak f32 flops takes. Invariant: an
estimate; it decides chunk sizes and forks, never results. Measured with AVX-512 in a loop that
stays in the first-level cache, less the time of that loop with an addition in it.
"""

from __future__ import annotations

from stagejit.types import DType

# (f32, f64). An op with one instruction is 1 in f32 and 2 in f64, for half the lanes.
_FLOATS: dict[str, tuple[float, float]] = {
    "div": (7, 12), "rem": (26, 74), "pow": (160, 490), "atan2": (41, 160), "floor": (1, 2),
    "ceil": (1, 2), "round": (3, 6), "nextafter": (18, 40), "exp": (14, 50), "exp2": (11, 48),
    "expm1": (20, 60), "log": (35, 95), "log1p": (37, 100), "tanh": (34, 120),
    "logistic": (31, 90), "sin": (18, 85), "cos": (19, 90), "tan": (64, 170), "asin": (25, 83),
    "acos": (28, 95), "atan": (29, 130), "sinh": (36, 150), "cosh": (25, 72),
    "asinh": (107, 230), "acosh": (95, 220), "atanh": (102, 175), "sqrt": (15, 48),
    "rsqrt": (27, 80), "cbrt": (97, 125), "erf": (37, 300), "erfc": (90, 355),
    "erf_inv": (140, 1140), "sign": (2, 4), "clamp": (3, 6),
}  # fmt: skip
# Of 32 bits, in vectors; both words of a hash are computed at once, so one is half of it.
_INTEGERS = {"div": 30.0, "rem": 31.0, "threefry2x32": 60.0}
_LONG_DIVISION = 200.0  # 64 bits, one by one
_ROUNDING = 2.0  # a 16-bit float to f32 and back


def cost(fn_name: str, dtype: DType) -> float:
    """Flop equivalents of one element."""
    if dtype.is_float:
        pair = _FLOATS.get(fn_name, (1.0, 2.0))
        return pair[dtype.bits == 64] + (_ROUNDING if dtype.bits == 16 else 0.0)
    if fn_name in _INTEGERS:
        return _LONG_DIVISION if dtype.bits == 64 else _INTEGERS[fn_name]
    return max(dtype.bits / 32, 0.25)
