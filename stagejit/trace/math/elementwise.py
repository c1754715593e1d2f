"""Translations of elementwise primitives to `map`, `convert` and `bitcast`.

Input: JAX primitives such as `add`, `select_n`, `clamp`. Output: `map` equations with the same
names, except where JAX has several for one meaning. Invariant: all operands of a `map` have its
shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stagejit.graph.ir import Value
from stagejit.trace.calls.inline import chosen_for_cpu
from stagejit.trace.emitter import Emitter
from stagejit.trace.math.bits import joined_bits, split_bits
from stagejit.trace.math.precision import reduce_precision
from stagejit.trace.translation import Site, Translation, Unsupported, translation
from stagejit.types import TensorType, bool_, dtype_named, f32, f64, from_numpy, u32

# Same name and meaning in JAX and in `map`.
_SAME = (
    "neg", "sign", "floor", "ceil", "is_finite", "abs", "not", "square", "exp", "exp2", "expm1",
    "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "sqrt", "rsqrt", "cbrt", "erf", "erfc", "erf_inv",
    "population_count", "clz",
    "add", "sub", "div", "rem", "max", "min", "nextafter", "atan2", "and", "or", "xor",
    "eq", "ne", "lt", "le", "gt", "ge",
    "shift_left", "shift_right_arithmetic", "shift_right_logical",
)  # fmt: skip


def _same(emit: Emitter, site: Site, *operands: Value) -> Value:
    return emit.map(site.primitive, *operands)


def _add_any(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    return emit.map("add", x, y)


def _mul(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    out = site.result.dtype
    return emit.map("mul", emit.convert(x, out), emit.convert(y, out))


def _identity(emit: Emitter, site: Site, *operands: Value) -> tuple[Value, ...]:
    return operands


def _integer_pow(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.map("integer_pow", x, y=int(site.params["y"]))


def _round(emit: Emitter, site: Site, x: Value) -> Value:
    rounding = {0: "away", 1: "even"}.get(int(site.params["rounding_method"]))
    if rounding is None:
        raise Unsupported(f"rounding method {site.params['rounding_method']}")
    return emit.map("round", x, rounding=rounding)


def _pow(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    base, exponent = x.type.dtype, y.type.dtype
    if not base.is_float:
        raise Unsupported("an integer raised to a computed power")
    if exponent is base:
        return emit.map("pow", x, y)
    # f32 cannot hold every 32-bit exponent, whose last bit decides the sign of the result.
    wide = f32 if base.bits < 32 and exponent.bits <= 16 else f64
    return emit.convert(emit.map("pow", emit.convert(x, wide), emit.convert(y, wide)), base)


def _select_n(emit: Emitter, site: Site, which: Value, *cases: Value) -> Value:
    """Two cases: `select`. More: a chain of them, last case innermost."""
    if len(cases) == 1:
        return cases[0]
    if which.type.dtype is bool_:
        return emit.map("select", which, cases[1], cases[0])
    result = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        before = emit.map("lt", which, emit.const(index + 1, which.type.dtype))
        result = emit.map("select", before, cases[index], result)
    return result


def _clamp(emit: Emitter, site: Site, low: Value, x: Value, high: Value) -> Value:
    return emit.map("clamp", low, x, high, dtype=x.type.dtype)


def _convert(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.convert(x, from_numpy(site.params["new_dtype"]))


def _bitcast(emit: Emitter, site: Site, x: Value) -> Value:
    target = from_numpy(site.params["new_dtype"])
    if target is x.type.dtype:
        return x
    if target.bits < x.type.dtype.bits:
        return split_bits(emit, x, target)
    if target.bits > x.type.dtype.bits:
        return joined_bits(emit, x, target)
    return emit.bitcast(x, target)


def _total_order(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    """IEEE's total order is that of the bits as an integer, where those of negative numbers count
    down."""
    dtype = x.type.dtype
    if dtype.is_float:
        bits = dtype_named(f"i{dtype.bits}")
        x, y = (_ordered_bits(emit, emit.bitcast(operand, bits)) for operand in (x, y))
    return emit.map(site.primitive.removesuffix("_to"), x, y)


def _ordered_bits(emit: Emitter, x: Value) -> Value:
    """Flips all bits of a negative number but its sign."""
    dtype = x.type.dtype
    sign = emit.map("shift_right_arithmetic", x, emit.const(dtype.bits - 1, dtype))
    rest = emit.map("shift_right_logical", sign, emit.const(1, dtype))
    return emit.map("xor", x, rest)


def _mulhi(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    """The upper half of the product, computed in the next wider integer."""
    dtype = x.type.dtype
    if dtype.bits > 32:
        raise Unsupported(f"mulhi of {dtype} needs {2 * dtype.bits}-bit integers")
    wide = dtype_named(f"{dtype.name[0]}{2 * dtype.bits}")
    product = emit.map("mul", emit.convert(x, wide), emit.convert(y, wide))
    shift = "shift_right_arithmetic" if dtype.is_signed else "shift_right_logical"
    return emit.convert(emit.map(shift, product, emit.const(dtype.bits, wide)), dtype)


def _one_minus_square(emit: Emitter, site: Site, x: Value) -> Value:
    """1 - x**2  -->  (1 + x) * (1 - x), which keeps the digits that squaring near 1 rounds away"""
    one = emit.const(1, x.type.dtype)
    return emit.map("mul", emit.map("add", one, x), emit.map("sub", one, x))


def _optimization_barrier(emit: Emitter, site: Site, *operands: Value) -> Sequence[Value]:
    return emit.barrier(operands)


def _threefry2x32(emit: Emitter, site: Site, *operands: Value) -> tuple[Value, Value]:
    """Both words of a hash; what is computed for one is computed for the other."""
    if any(v.type.dtype is not u32 for v in operands):
        raise Unsupported("threefry2x32 on words other than u32")
    first, second = (emit.map("threefry2x32", *operands, word=word) for word in (0, 1))
    return first, second


def _counter(emit: Emitter, site: Site) -> tuple[Value, Value]:
    """The upper and lower halves of a 64-bit iota in row-major order."""
    shape = site.results[0].shape
    if math.prod(shape) > 2**32:
        raise Unsupported("more than 2**32 random numbers at once")
    low = emit.iota(TensorType(u32, (math.prod(shape),)), 0)
    return emit.full(0, site.results[0]), emit.reshape(low, shape)


def _log2(emit: Emitter, site: Site, x: Value) -> Value:
    """As JAX defines it: a multiple of the natural logarithm."""
    dtype = x.type.dtype
    return emit.map("mul", emit.map("log", x), emit.const(1 / math.log(2), dtype))


def _device_put(emit: Emitter, site: Site, *operands: Value) -> tuple[Value, ...]:
    """The identity, unless some operand is sent to another device."""
    if any(device is not None for device in site.params["devices"]):
        raise Unsupported("it names a device")
    return operands


def _platform_index(emit: Emitter, site: Site) -> Value:
    index = chosen_for_cpu(site.params["platforms"])
    if index is None:
        raise Unsupported("no choice for the CPU")
    return emit.const(index, site.result.dtype)


TRANSLATIONS: dict[str, Translation] = {
    **{name: translation(_same) for name in _SAME},
    "add_any": translation(_add_any),
    "mul": translation(_mul, "out_dtype"),
    "integer_pow": translation(_integer_pow, "y"),
    "round": translation(_round, "rounding_method"),
    "pow": translation(_pow),
    "select_n": translation(_select_n),
    "clamp": translation(_clamp),
    "convert_element_type": translation(_convert, "new_dtype", ignored=("weak_type", "sharding")),
    "reduce_precision": translation(reduce_precision, "exponent_bits", "mantissa_bits"),
    "bitcast_convert_type": translation(_bitcast, "new_dtype"),
    "mulhi": translation(_mulhi),
    "eq_to": translation(_total_order),
    "le_to": translation(_total_order),
    "lt_to": translation(_total_order),
    "one_minus_square": translation(_one_minus_square),
    "log2": translation(_log2),
    "threefry2x32": translation(_threefry2x32),
    "copy": translation(_identity),
    "copy_p": translation(_identity),
    "stop_gradient": translation(_identity),
    "optimization_barrier": translation(_optimization_barrier),
    "device_put": translation(_device_put, "devices", ignored=("srcs", "copy_semantics")),
    "platform_index": translation(_platform_index, "platforms"),
    "name": translation(_identity, ignored=("name",)),
    "random_wrap": translation(_identity, ignored=("impl",)),  # a key is its words
    "random_unwrap": translation(_identity),
    "random_clone": translation(_identity),
    "iota_2x32_shape": translation(_counter, "shape"),
    "pvary": translation(_identity, ignored=("axes", "axis_index_groups")),
}
