"""Translations of special functions that are compositions of elementary ones.

Input: `lgamma`, `digamma`, `polynomial`. Output: `map` equations. Invariant: 16-bit floats are
computed in f32; the formulas are those of XLA (Lanczos' approximation with g = 7 and 9 terms, and
the reflection formula below 1/2), but for power series around the zeros at 1, 2 and 1.4616, near
which nothing but the sign is left of XLA's results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.math.special_coefficients import (
    DIGAMMA_AT_ROOT,
    DIGAMMA_ROOT,
    LGAMMA_AT_2,
    TERMS,
)
from stagejit.trace.translation import Site, Translation, Unsupported, translation

_LANCZOS_G = 7.0
_LANCZOS_BASE = 0.99999999999980993227684700473478
_LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354,
    12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
_MAX_DEGREE = 64


class _Arithmetic:
    """Expressions in the type of one operand."""

    def __init__(self, emit: Emitter, x: Value) -> None:
        self.emit, self.dtype = emit, x.type.dtype

    def __call__(self, fn: str, *operands: Value | float) -> Value:
        full = [v if isinstance(v, Value) else self.emit.const(v, self.dtype) for v in operands]
        return self.emit.map(fn, *full)


def _in_f32(function: Callable[[_Arithmetic, Value], Value]) -> Translation:
    def rule(emit: Emitter, site: Site, x: Value) -> Value:
        wide = emit.convert(x, x.type.dtype.accumulator)
        return emit.convert(function(_Arithmetic(emit, wide), wide), x.type.dtype)

    return translation(rule)


def _lanczos_argument(do: _Arithmetic, x: Value) -> tuple[Value, Value, Value, Value]:
    """(reflect, z, t, log t): z is the argument less one, reflected below 1/2; t = z + g + 1/2."""
    reflect = do("lt", x, 0.5)
    z = do("select", reflect, do("neg", x), do("sub", x, 1.0))
    shift = _LANCZOS_G + 0.5
    log_t = do("add", do("log1p", do("div", z, shift)), math.log(shift))
    return reflect, z, do("add", z, shift), log_t


def _series(do: _Arithmetic, z: Value, coefficients: tuple[float, ...]) -> Value:
    """z (c0 + c1 z + ...)"""
    *lower, total = coefficients[: TERMS[do.dtype.name]]
    result: Value | float = total
    for coefficient in reversed(lower):
        result = do("add", do("mul", result, z), coefficient)
    return do("mul", result, z)


def _lgamma_near_zeros(do: _Arithmetic, x: Value) -> Value:
    """lgamma from 1/2 to 7/2: the series around 2, and a step of the recurrence next to 1 and 3."""
    nearest = do("floor", do("add", x, 0.5))
    z = do("sub", x, nearest)
    at_1, at_3 = do("eq", nearest, 1.0), do("eq", nearest, 3.0)
    step = do("log1p", do("select", at_3, do("add", z, 1.0), do("select", at_1, z, 0.0)))
    step = do("select", at_1, do("neg", step), step)
    return do("add", _series(do, z, LGAMMA_AT_2), step)


def _lgamma(do: _Arithmetic, x: Value) -> Value:
    reflect, z, t, log_t = _lanczos_argument(do, x)
    total: Value | float = _LANCZOS_BASE
    for index, coefficient in enumerate(_LANCZOS):
        total = do("add", total, do("div", coefficient, do("add", z, index + 1.0)))
    exponent = do("mul", do("sub", do("add", z, 0.5), do("div", t, log_t)), log_t)
    log_y = do("add", do("add", exponent, math.log(2 * math.pi) / 2), do("log", total))
    size = do("abs", x)
    fraction = do("sub", size, do("floor", size))
    folded = do("select", do("gt", fraction, 0.5), do("sub", 1.0, fraction), fraction)
    log_sine = do("log", do("sin", do("mul", folded, math.pi)))
    regular = do("sub", do("sub", math.log(math.pi), log_sine), log_y)
    reflection = do("select", do("is_finite", log_sine), regular, do("neg", log_sine))
    inside = do.emit.map("and", do("ge", x, 0.5), do("lt", x, 3.5))
    result = do("select", reflect, reflection, log_y)
    result = do("select", inside, _lgamma_near_zeros(do, x), result)
    return do("select", do("eq", size, math.inf), size, result)


def _digamma(do: _Arithmetic, x: Value) -> Value:
    reflect, z, t, log_t = _lanczos_argument(do, x)
    above: Value | float = 0.0
    below: Value | float = _LANCZOS_BASE
    for index, coefficient in enumerate(_LANCZOS):
        pole = do("add", z, index + 1.0)
        term = do("div", coefficient, pole)
        above, below = do("sub", above, do("div", term, pole)), do("add", below, term)
    y = do("sub", do("add", log_t, do("div", above, below)), do("div", _LANCZOS_G, t))
    whole = do("abs", do("floor", do("add", x, 0.5)))
    angle = do("mul", do("add", x, whole), math.pi)
    cotangent = do("div", do("mul", do("cos", angle), math.pi), do("sin", angle))
    result = do("select", reflect, do("sub", y, cotangent), y)
    at_pole = do.emit.map("and", do("lt", x, 0.0), do("eq", x, do("floor", x)))
    result = do("select", at_pole, math.nan, result)
    root, rest = DIGAMMA_ROOT[do.dtype.name]
    from_root = do("sub", do("sub", x, root), rest)
    near = do("lt", do("abs", from_root), 0.36)
    result = do("select", near, _series(do, from_root, DIGAMMA_AT_ROOT), result)
    return do("select", do("eq", x, 0.0), do("div", -1.0, x), result)  # as jax 0.12 defines it


def _polynomial(emit: Emitter, site: Site, x: Value, *coefficients: Value) -> Value:
    """Horner's rule; coefficients from the lowest degree up."""
    if len(coefficients) > _MAX_DEGREE:
        raise Unsupported(f"a polynomial with {len(coefficients)} coefficients")
    if not coefficients:
        return emit.full(0, site.result)
    *lower, result = coefficients
    for coefficient in reversed(lower):
        result = emit.map("add", emit.map("mul", result, x), coefficient)
    return emit.broadcast(
        result, site.result.shape, range(site.result.rank - result.type.rank, site.result.rank)
    )


TRANSLATIONS: dict[str, Translation] = {
    "lgamma": _in_f32(_lgamma),
    "digamma": _in_f32(_digamma),
    "polynomial": translation(_polynomial, ignored=("unroll",)),
}
