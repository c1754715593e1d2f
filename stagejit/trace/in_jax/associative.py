"""Whether a function of scalars is associative, by a proof or by many triples of numbers.

Input: a `reduce` equation's function f of n accumulators and n elements. Output: whether f(f(a, b),
c) is f(a, f(b, c)). Invariant: a result that is proven holds of all numbers, rounding and what is
no number aside; of others, no triple that was tried says otherwise, and some were numbers.

Note [Tolerance]: floats are compared in float64, and never were rounded before. What rounding may
have done is known from two sides: by how far the result moves when each operand moves by itself a
little, and by the largest number on the way. What moves further than that is another function, one
with a threshold among others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stagejit.compat import ClosedJaxpr, traced, type_of
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.evaluator import Array, Evaluator
from stagejit.trace.control import Nested
from stagejit.trace.in_jax.polynomials import proven_results
from stagejit.trace.in_jax.triples import EXACT, ROWS, constants_in, drawn
from stagejit.trace.translation import Site, Unsupported
from stagejit.trace.windows.bodies import body_of, mapped

_FEWEST = 8  # triples of numbers for which all of it is defined
_MOST_TURNS = 5_000  # of loops inside of a function, in all
_ROUNDING, _INEXACT = 1e-6, 1e-7  # of results; f32 constants in a function are not exact
_NUDGE, _NOISE = 2.0**-37, 1e-12  # see Note [Tolerance]
_LEAST = 2.0**-1000  # smaller numbers have fewer digits


def is_associative(equation: Any, site: Site, nested: Nested) -> bool:
    """Raises Unsupported where something in f is left to XLA."""
    jaxpr = site.params["jaxpr"]
    jaxpr = jaxpr if hasattr(jaxpr, "jaxpr") else ClosedJaxpr(jaxpr, ())
    body = _graph(jaxpr, nested)
    proven = proven_results(body)
    if all(proven):
        return True
    one = body_of(jaxpr.jaxpr, jaxpr.consts)
    rows = [jax_type.update(shape=(ROWS,)) for jax_type in jaxpr.in_avals]
    try:
        many = _graph(traced(mapped(one, 1), rows, {}, equation), nested)
        return _holds(many, constants_in(body), proven)
    except (Unsupported, _TooLong):
        return False


def _graph(jaxpr: Any, nested: Nested) -> Graph:
    inputs = [(f"x{at}", type_of(aval)) for at, aval in enumerate(jaxpr.in_avals)]
    return nested("body", inputs, 0, lambda _, inline, values: inline(jaxpr, values))


def _holds(body: Graph, constants: Array, proven: list[bool]) -> bool:
    """body: of `ROWS` of each operand at once."""
    count, random = len(body.outputs), np.random.default_rng(0)
    types = [value.type for value in body.inputs[:count]]
    a, b, c = drawn(types, constants, random)
    run = _Watched(body)
    left, right = run([*run([*a, *b]), *c]), run([*a, *run([*b, *c])])
    near_a, near_b, near_c = ([_nudged(x, constants) for x in part] for part in (a, b, c))
    near = run([*run([*near_a, *near_b]), *near_c])
    known = ~run.is_small
    for x, y, z in zip(left, right, near, strict=True):
        known &= _by_row(_are_defined(x, y, z))
    held = known.copy()
    for at, (x, y, z) in enumerate(zip(left, right, near, strict=True)):
        if not proven[at]:
            held &= ~_by_row(~_agree(x, y, z, run.largest))
    return bool(known.sum() >= _FEWEST and not (known & ~held).any())


def _are_defined(x: Array, y: Array, near: Array) -> Array:
    """Floats are numbers; what is none does not depend on the last digits of some float."""
    if x.dtype.kind != "f":
        return np.asarray(x == near)
    return np.isfinite(x) & np.isfinite(y) & np.isfinite(near)


def _agree(x: Array, y: Array, near: Array, largest: Array) -> Array:
    if x.dtype.kind != "f":
        return np.asarray(x == y)
    with np.errstate(all="ignore"):
        largest = largest.reshape(-1, *(1,) * (x.ndim - 1))
        moved = np.abs(x - near) / _NUDGE * _INEXACT
        size = np.maximum(np.abs(x), np.abs(y)) * _ROUNDING
        apart = np.abs(x - y)
        return np.asarray(~(apart > moved + size + largest * _NOISE))


def _by_row(holds: Array) -> Array:
    return np.asarray(holds.reshape(len(holds), -1).all(1))


def _nudged(x: Array, constants: Array) -> Array:
    """Floats a little smaller, each by itself, but equal ones alike; 0, 1 and what the function
    knows stay."""
    if x.dtype.kind != "f":
        return x
    digits = np.frexp(x)[0] * 2.0**24
    by = (digits * ((math.sqrt(5) - 1) / 2)) % 1.0
    stays = np.isin(np.abs(x), [*EXACT, *np.abs(constants)])
    return np.where(stays, x, x * (1 - by * _NUDGE))


class _TooLong(Exception):
    """A loop inside took more turns than a test is worth."""


class _Watched(Evaluator):
    """Evaluates a body of rows; keeps of each row how large its floats were on the way."""

    def __init__(self, body: Graph) -> None:
        super().__init__("f64")
        self.body, self.turns = body, 0
        self.largest = np.zeros(ROWS)
        self.is_small = np.zeros(ROWS, np.bool_)  # where digits were lost

    def __call__(self, inputs: list[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            return self.graph(self.body, inputs)

    def graph(self, graph: Graph, inputs: Any) -> list[Any]:
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise _TooLong
        return super().graph(graph, inputs)

    def op(self, op: Op, operands: Any) -> list[Any]:
        results = super().op(op, operands)
        if op.definition.is_pointwise:  # others only move numbers, or are constants
            for x in results:
                self._watch(x)
        return results

    def _watch(self, x: Any) -> None:
        if x.dtype.kind != "f" or x.ndim == 0 or len(x) != ROWS:
            return
        size = np.abs(x.reshape(ROWS, -1))
        size[~np.isfinite(size)] = 0
        self.largest = np.maximum(self.largest, size.max(1))
        self.is_small |= ((size > 0) & (size < _LEAST)).any(1)
