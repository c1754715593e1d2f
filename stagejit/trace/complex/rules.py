"""Which function of parts an equation on complex numbers is.

Input: a primitive that takes or gives complex numbers. Output: the rule that emits it. Invariant:
what stands in no table here is no arithmetic with single complex numbers: `elements.py` decides
what becomes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from stagejit.graph.ir import Value
from stagejit.trace.complex import arithmetic, exponential, inverses, products, trigonometric
from stagejit.trace.complex.parts import (
    Pair,
    as_complex,
    is_complex,
    joined,
    of_pair,
    pair_of,
    part_of,
)
from stagejit.trace.emitter import Emitter
from stagejit.trace.fourier import rules as fourier
from stagejit.trace.math.expressions import Real
from stagejit.trace.translation import Site, Translation, Unsupported
from stagejit.types import TensorType, storage_of

Rule = Callable[..., Value]


def _real(emit: Emitter, site: Site, x: Value) -> Value:
    return part_of(emit, x, 0)


def _imag(emit: Emitter, site: Site, x: Value) -> Value:
    return part_of(emit, x, 1)


def _complex(emit: Emitter, site: Site, real: Value, imaginary: Value) -> Value:
    return joined(emit, (real, imaginary))


def _conj(emit: Emitter, site: Site, x: Value) -> Value:
    if not is_complex(site.inputs[0]):
        return as_complex(emit, x)
    real, imaginary = pair_of(emit, x)
    return of_pair((real, -imaginary))


def _linear(emit: Emitter, site: Site, *operands: Value) -> Value:
    """A sum, difference or negative: of both parts at once, unless they are at hand."""
    fn = _LINEAR[site.primitive]
    if emit.parts.keys().isdisjoint(operands):
        return emit.map(fn, *operands)
    pairs = [pair_of(emit, x) for x in operands]
    real, imaginary = (first(fn, *others) for first, *others in zip(*pairs, strict=True))
    return of_pair((real, imaginary))


def _sub(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    """1 - z**2 and z**2 - 1 keep the digits that squaring near 1 rounds away, where the parts of z
    are at hand: gradients of arc functions are made of them, before jax 0.12."""
    one, square = (x, y) if _is_one(x) else (y, x)
    real = None
    if _is_one(one) and square in emit.parts:
        real = arithmetic.one_minus(part_of(emit, square, 0), emit)
    if real is None:
        return _linear(emit, site, x, y)
    imaginary = Real(emit, part_of(emit, square, 1))
    # What is taken from 0 leaves no -0.
    return of_pair((real, 0 - imaginary) if one is x else (0 - real, imaginary))


def _is_one(x: Value) -> bool:
    return x.op.definition.is_constant and bool((x.op.attrs["value"] == (1, 0)).all())


_LINEAR = {"add": "add", "add_any": "add", "sub": "sub", "neg": "neg"}


def _abs(emit: Emitter, site: Site, x: Value) -> Value:
    return arithmetic.modulus(pair_of(emit, x)).value


def _integer_pow(emit: Emitter, site: Site, x: Value) -> Value:
    real, imaginary = arithmetic.power(pair_of(emit, x), int(site.params["y"]))
    return _of_shape(emit, site, (real, imaginary))


def _of_shape(emit: Emitter, site: Site, pair: Pair) -> Value:
    """The result, also of what a formula gives as a scalar, such as the power 0."""
    shape = site.result.shape[:-1]
    parts = [
        x.value if x.value.type.shape == shape else emit.fill(x.value, shape) for x in pair
    ]  # fmt: skip
    return joined(emit, parts)


def _convert(emit: Emitter, site: Site, x: Value) -> Value:
    source, target = site.inputs[0], site.outputs[0]
    if not is_complex(target):
        return emit.convert(part_of(emit, x, 0), site.result.dtype)
    wanted = storage_of(target.dtype).dtype
    if is_complex(source):
        return emit.convert(x, wanted)
    return as_complex(emit, emit.convert(x, wanted))


def _bitcast(emit: Emitter, site: Site, x: Value) -> Value:
    if site.inputs[0].dtype != site.outputs[0].dtype:
        raise Unsupported(f"bitcast from {site.inputs[0].dtype} to {site.outputs[0].dtype}")
    return x


def _iota(emit: Emitter, site: Site) -> Value:
    real = TensorType(site.result.dtype, site.result.shape[:-1])
    return as_complex(emit, emit.iota(real, int(site.params["dimension"])))


def _clamp(emit: Emitter, site: Site, low: Value, x: Value, high: Value) -> Value:
    """min(max(x, low), high), by the order of `max`."""
    least, value, most = (pair_of(emit, operand) for operand in (low, x, high))
    value = arithmetic.chosen("max", value, least)
    return _of_shape(emit, site, arithmetic.chosen("min", value, most))


def _of_pairs(function: Callable[..., Pair]) -> Rule:
    """A function of pairs; a real operand, such as an integral exponent, counts as complex."""

    def rule(emit: Emitter, site: Site, *operands: Value) -> Value:
        dtype, pairs = site.result.dtype, dict[Value, Pair]()
        for x, aval in zip(operands, site.inputs, strict=True):
            if x in pairs:
                continue
            if is_complex(aval):
                pairs[x] = pair_of(emit, x)
            else:
                real = Real(emit, emit.convert(x, dtype))
                pairs[x] = real, real.like(0)
        return of_pair(function(*(pairs[x] for x in operands)))

    return rule


_ALIKE = (
    exponential.exp, exponential.exp2, exponential.expm1, exponential.log, exponential.log1p,
    exponential.sqrt, exponential.rsqrt, exponential.logistic,
    trigonometric.sin, trigonometric.cos, trigonometric.tan,
    trigonometric.sinh, trigonometric.cosh, trigonometric.tanh,
    inverses.asin, inverses.acos, inverses.atan, inverses.asinh, inverses.acosh, inverses.atanh,
    inverses.atan2, arithmetic.sign, arithmetic.square, arithmetic.one_minus_square,
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Pair]] = {
    **{function.__name__: function for function in _ALIKE},
    "mul": arithmetic.product,
    "div": arithmetic.quotient,
    "max": functools.partial(arithmetic.chosen, "max"),
    "min": functools.partial(arithmetic.chosen, "min"),
    "pow": exponential.power,
}

_RULES: dict[str, Rule] = {
    **{name: _of_pairs(function) for name, function in _FUNCTIONS.items()},
    "real": _real,
    "imag": _imag,
    "complex": _complex,
    "conj": _conj,
    **dict.fromkeys(_LINEAR, _linear),
    "sub": _sub,
    "integer_pow": _integer_pow,
    "abs": _abs,
    "clamp": _clamp,
    "bitcast_convert_type": _bitcast,
    "iota": _iota,
    "convert_element_type": _convert,
    **products.RULES,
    **fourier.RULES,
}
NAMES = frozenset(_RULES)
# Parameters that say nothing here that types do not.
_IGNORED = ("input_dtype", "_input_dtype", "new_dtype", "weak_type", "sharding", "out_dtype", "y",
            "dtype", "shape", "dimension")  # fmt: skip
_PARAMETERS = {**products.PARAMETERS, **fourier.PARAMETERS}
_KNOWN = {name: frozenset({*_IGNORED, *_PARAMETERS.get(name, ())}) for name in _RULES}


def rule_of(site: Site) -> Rule | None:
    """The rule for an equation on complex and real numbers; None for any other."""
    rule = _RULES.get(site.primitive)
    if rule is not None:
        Translation(rule, _KNOWN[site.primitive]).check(site)
    return rule
