"""`reduce_precision`: rounding to a narrower float format, as integer arithmetic on the bits.

Input: a float array and the format's exponent and mantissa bits. Output: the same element type,
with values that the format has. Invariant: rounds to nearest even; what overflows becomes an
infinity, what underflows a zero of the same sign (the format has no denormals), a NaN stays a NaN.
"""

from __future__ import annotations

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Unsupported
from stagejit.types import DType, bf16, dtype_named, f32

_FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def reduce_precision(emit: Emitter, site: Site, x: Value) -> Value:
    """The identity for the type's own format, two conversions for bf16, else bit arithmetic."""
    exponent, mantissa = int(site.params["exponent_bits"]), int(site.params["mantissa_bits"])
    dtype = x.type.dtype
    own_exponent, own_mantissa = _FORMATS[dtype.name]
    if exponent >= own_exponent and mantissa >= own_mantissa:
        return x
    if dtype is f32 and (exponent, mantissa) == _FORMATS["bf16"]:
        return emit.convert(emit.convert(x, bf16), f32)
    if exponent < 1:
        raise Unsupported(f"a float format with {exponent} exponent bits")
    integer = dtype_named(f"u{dtype.bits}")
    bits = emit.bitcast(x, integer)
    if mantissa < own_mantissa:
        bits = _round_mantissa(emit, bits, own_mantissa - mantissa)
    if exponent < own_exponent:
        bits = _limit_exponent(emit, bits, dtype, exponent)
    is_nan = emit.map("ne", x, x)
    return emit.map("select", is_nan, x, emit.bitcast(bits, dtype))


def _round_mantissa(emit: Emitter, bits: Value, dropped: int) -> Value:
    """Add half of the last kept bit, less one where that bit is even, and clear what is dropped."""

    def number(value: int) -> Value:
        return emit.const(value, bits.type.dtype)

    last = emit.map("and", emit.map("shift_right_logical", bits, number(dropped)), number(1))
    bias = emit.map("add", last, number((1 << (dropped - 1)) - 1))
    mask = (1 << bits.type.dtype.bits) - (1 << dropped)
    return emit.map("and", emit.map("add", bits, bias), number(mask))


def _limit_exponent(emit: Emitter, bits: Value, dtype: DType, exponent: int) -> Value:
    """Infinity above the greatest exponent of the format, zero below its least."""
    own_exponent, own_mantissa = _FORMATS[dtype.name]
    bias, own_bias = (1 << (exponent - 1)) - 1, (1 << (own_exponent - 1)) - 1

    def number(value: int) -> Value:
        return emit.const(value, bits.type.dtype)

    exponent_mask = ((1 << own_exponent) - 1) << own_mantissa
    sign = emit.map("and", bits, number(1 << (dtype.bits - 1)))
    power = emit.map("and", bits, number(exponent_mask))
    overflows = emit.map("gt", power, number((own_bias + bias) << own_mantissa))
    underflows = emit.map("le", power, number((own_bias - bias) << own_mantissa))
    infinity = emit.map("or", sign, number(exponent_mask))
    limited = emit.map("select", overflows, infinity, bits)
    return emit.map("select", underflows, sign, limited)
