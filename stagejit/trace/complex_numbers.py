"""Arithmetic with complex numbers as pairs of real ones.

Input: a primitive that takes or gives complex numbers, whose real and imaginary parts are the last
axis. Output: the same on both parts. Invariant: formulas are the textbook's, except that division
(Smith 1962) and absolute values are scaled, so that squares of large or small parts do not leave
the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported
from stagejit.types import TensorType, storage_of

Pair = tuple[Value, Value]


def is_complex(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, np.complexfloating))


def part_of(emit: Emitter, x: Value, part: int) -> Value:
    """One part of every element of a type whose parts have one axis, such as the real ones."""
    if x in emit.parts:
        return emit.parts[x][part]
    shape = x.type.shape[:-1]
    offsets = (*(0,) * len(shape), part)
    return emit.reshape(emit.extract(x, offsets, (*shape, 1)), shape)


def joined(emit: Emitter, parts: Sequence[Value]) -> Value:
    """The inverse of `part_of` for all parts, scalars among them stretched. Whoever reads it by
    parts reads these, and where everybody does it is never made."""
    parts = emit.stretched(parts)
    shape = parts[0].type.shape
    result = emit.empty(TensorType(parts[0].type.dtype, (*shape, len(parts))))
    for at, part in enumerate(parts):
        row = emit.reshape(part, (*shape, 1))
        result = emit.insert(row, result, (*(0,) * len(shape), at))
    emit.parts[result] = tuple(parts)
    return result


def as_complex(emit: Emitter, real: Value) -> Value:
    return joined(emit, (real, emit.full(0, real.type)))


def _pair(emit: Emitter, x: Value) -> Pair:
    return part_of(emit, x, 0), part_of(emit, x, 1)


def _real(emit: Emitter, site: Site, x: Value) -> Value:
    return part_of(emit, x, 0)


def _imag(emit: Emitter, site: Site, x: Value) -> Value:
    return part_of(emit, x, 1)


def _complex(emit: Emitter, site: Site, real: Value, imaginary: Value) -> Value:
    return joined(emit, (real, imaginary))


def _conj(emit: Emitter, site: Site, x: Value) -> Value:
    if not is_complex(site.inputs[0]):
        return as_complex(emit, x)
    real, imaginary = _pair(emit, x)
    return joined(emit, (real, emit.map("neg", imaginary)))


def _product(emit: Emitter, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    real = emit.map("sub", emit.map("mul", a, c), emit.map("mul", b, d))
    return real, emit.map("add", emit.map("mul", a, d), emit.map("mul", b, c))


def _mul(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    return joined(emit, _product(emit, _pair(emit, x), _pair(emit, y)))


def _linear(emit: Emitter, site: Site, *operands: Value) -> Value:
    """A sum, difference or negative: of both parts at once, unless they are at hand."""
    fn = _LINEAR[site.primitive]
    if emit.parts.keys().isdisjoint(operands):
        return emit.map(fn, *operands)
    pairs = [_pair(emit, x) for x in operands]
    return joined(emit, [emit.map(fn, *parts) for parts in zip(*pairs, strict=True)])


_LINEAR = {"add": "add", "add_any": "add", "sub": "sub", "neg": "neg"}


def _square(emit: Emitter, site: Site, x: Value) -> Value:
    return _mul(emit, site, x, x)


def _integer_pow(emit: Emitter, site: Site, x: Value) -> Value:
    exponent = int(site.params["y"])
    if not 1 <= exponent <= 4:
        raise Unsupported(f"a complex number to the power {exponent}")
    pair = result = _pair(emit, x)
    for _ in range(exponent - 1):
        result = _product(emit, result, pair)
    return joined(emit, result)


def _div(emit: Emitter, site: Site, x: Value, y: Value) -> Value:
    """(a + bi) / (c + di), divided above and below by the larger one of c and d."""
    (a, b), (c, d) = _pair(emit, x), _pair(emit, y)
    first = emit.map("ge", emit.map("abs", c), emit.map("abs", d))

    def chosen(one: Value, other: Value) -> Value:
        return emit.map("select", first, one, other)

    large, small = chosen(c, d), chosen(d, c)
    zero = emit.full(0, c.type)
    ratio = emit.map("div", small, large)
    # Nothing is left of y: the parts of x are divided by zero.
    ratio = emit.map("select", emit.map("eq", large, zero), zero, ratio)
    below = emit.map("add", large, emit.map("mul", small, ratio))
    p, q = chosen(a, b), chosen(b, a)
    real = emit.map("add", p, emit.map("mul", q, ratio))
    turned = emit.map("sub", q, emit.map("mul", p, ratio))  # the imaginary part if c is larger
    imaginary = chosen(turned, emit.map("neg", turned))
    return joined(emit, (emit.map("div", real, below), emit.map("div", imaginary, below)))


def _abs(emit: Emitter, site: Site, x: Value) -> Value:
    a, b = (emit.map("abs", part) for part in _pair(emit, x))
    large, small = emit.map("max", a, b), emit.map("min", a, b)
    one, zero = emit.full(1, a.type), emit.full(0, a.type)
    infinite = emit.full(np.inf, a.type)
    ratio = emit.map("select", emit.map("eq", large, zero), zero, emit.map("div", small, large))
    length = emit.map("sqrt", emit.map("add", one, emit.map("mul", ratio, ratio)))
    length = emit.map("mul", large, length)
    either = emit.map("or", emit.map("eq", a, infinite), emit.map("eq", b, infinite))
    return emit.map("select", either, infinite, length)


def _exp(emit: Emitter, site: Site, x: Value) -> Value:
    a, b = _pair(emit, x)
    size, is_real = emit.map("exp", a), emit.map("eq", b, emit.full(0, b.type))
    real = emit.map("mul", size, emit.map("cos", b))
    imaginary = emit.map("mul", size, emit.map("sin", b))
    return joined(
        emit, (emit.map("select", is_real, size, real), emit.map("select", is_real, b, imaginary))
    )


def _convert(emit: Emitter, site: Site, x: Value) -> Value:
    source, target = site.inputs[0], site.outputs[0]
    if not is_complex(target):
        return emit.convert(part_of(emit, x, 0), site.result.dtype)
    part = storage_of(target.dtype).dtype
    if is_complex(source):
        return emit.convert(x, part)
    return as_complex(emit, emit.convert(x, part))


Rule = Callable[..., Value]

_RULES: dict[str, Rule] = {
    "real": _real,
    "imag": _imag,
    "complex": _complex,
    "conj": _conj,
    **dict.fromkeys(_LINEAR, _linear),
    "mul": _mul,
    "square": _square,
    "integer_pow": _integer_pow,
    "div": _div,
    "abs": _abs,
    "exp": _exp,
    "convert_element_type": _convert,
}
NAMES = frozenset(_RULES)
# Parameters that say nothing here that types do not.
_IGNORED = ("input_dtype", "new_dtype", "weak_type", "sharding", "y")


def rule_of(site: Site) -> Rule | None:
    """The rule for an equation on complex and real numbers; None for any other."""
    rule = _RULES.get(site.primitive)
    if rule is not None:
        Translation(rule, frozenset(_IGNORED)).check(site)
    return rule
