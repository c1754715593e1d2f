"""Results of a function of scalars that are associative by what the function is made of.

Input: the graph of a function f of n accumulators and n elements. Output: for each result whether
that of f(f(a, b), c) is that of f(a, f(b, c)). Invariant: what is called proven holds in every
commutative ring, integers that wrap among them, or of all elements of a lattice.

Sums, differences and products of operands and constants are polynomials; two of them are the same
function where they have the same coefficients. Affine maps, matrices, polynomials themselves and
complex numbers multiply so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from stagejit.graph.ir import Graph, Op, Value

_MOST_TERMS = 5000  # of a polynomial, and of products that make one
_MOST_POWER = 16
# Of a result's own two operands: associative in every type.
_LATTICE = frozenset({"max", "min", "and", "or", "xor"})

# Variables with their powers, in order; coefficients, of which none is zero.
Monomial = tuple[tuple[int, int], ...]
Polynomial = dict[Monomial, Fraction]


def proven_results(body: Graph) -> list[bool]:
    """For each result whether it is proven."""
    count = len(body.outputs)
    if len(body.inputs) != 2 * count or any(value.type.rank for value in body.inputs):
        return [False] * count
    return [
        _is_lattice(body, at) or same
        for at, same in zip(range(count), _identities(body, count), strict=True)
    ]


def _is_lattice(body: Graph, at: int) -> bool:
    result, own = body.outputs[at], (body.inputs[at], body.inputs[len(body.outputs) + at])
    if any(result is x for x in body.inputs):
        return any(result is x for x in own)  # the first of all, or the last
    op = result.op
    fits = op.definition.is_pointwise and op.attrs.get("fn") in _LATTICE
    return fits and len(op.operands) == 2 and set(op.operands) == set(own)


def _identities(body: Graph, count: int) -> list[bool]:
    a, b, c = ([_variable(place * count + at) for at in range(count)] for place in range(3))
    left = _results(body, [*_results(body, [*a, *b]), *c])
    right = _results(body, [*a, *_results(body, [*b, *c])])
    return [x is not None and x == y for x, y in zip(left, right, strict=True)]


def _variable(number: int) -> Polynomial | None:
    return {((number, 1),): Fraction(1)}


def _results(body: Graph, inputs: Sequence[Polynomial | None]) -> list[Polynomial | None]:
    """None of what is no polynomial."""
    known: dict[Value, Polynomial | None] = dict(zip(body.inputs, inputs, strict=True))
    for op in body.ops():
        made = _result(op, [known[x] for x in op.operands])
        known.update(dict.fromkeys(op.results, made))
    return [known[value] for value in body.outputs]


def _result(op: Op, operands: Sequence[Polynomial | None]) -> Polynomial | None:
    if op.definition.is_constant:
        return _constant(op.attrs["value"])
    fn = op.attrs.get("fn")
    if not op.definition.is_pointwise or op.results[0].type.dtype.kind == "bool":
        return None
    known = [x for x in operands if x is not None]
    if len(known) != len(operands):
        return None
    match fn:
        case "add" | "sub":
            return _sum(known[0], known[1], 1 if fn == "add" else -1)
        case "neg":
            return _sum({}, known[0], -1)
        case "mul":
            return _product(known[0], known[1])
        case "square":
            return _product(known[0], known[0])
        case "integer_pow" if 0 < op.attrs["y"] <= _MOST_POWER:
            made: Polynomial | None = known[0]
            for _ in range(op.attrs["y"] - 1):
                made = None if made is None else _product(made, known[0])
            return made
    return None


def _constant(value: Any) -> Polynomial | None:
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "iuf" or not math.isfinite(array):
        return None
    number = Fraction(array.item())
    return {(): number} if number else {}


def _sum(x: Polynomial, y: Polynomial, sign: int) -> Polynomial:
    made = dict(x)
    for monomial, factor in y.items():
        _add(made, monomial, sign * factor)
    return made


def _product(x: Polynomial, y: Polynomial) -> Polynomial | None:
    if len(x) * len(y) > _MOST_TERMS:
        return None
    made: Polynomial = {}
    for first, factor in x.items():
        for second, other in y.items():
            _add(made, _times(first, second), factor * other)
    return made


def _add(made: Polynomial, monomial: Monomial, factor: Fraction) -> None:
    total = made.pop(monomial, 0) + factor
    if total:
        made[monomial] = total


def _times(x: Monomial, y: Monomial) -> Monomial:
    powers = dict(x)
    for variable, power in y:
        powers[variable] = powers.get(variable, 0) + power
    return tuple(sorted(powers.items()))
