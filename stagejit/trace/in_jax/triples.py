"""Triples of numbers on which a function might fail to be associative.

Input: element types, and the constants of the function. Output: for each of three places an array
for each type, a triple a row. Invariant: all that a type has may be drawn: the whole range, sizes
of any order, its extremes, small whole numbers, and what is near the constants, their multiples and
fractions; but not the least integer, whose absolute value is itself, nor what is no number.

Rows differ in what their numbers share, for a function may be defined, or a threshold be reached,
for some only: one order of size, or one for each operand; one sign for each operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.evaluator import Array
from stagejit.graph.ops.control import bodies_of
from stagejit.types import DType, TensorType, bool_

ROWS = 4096
EXACT = (0.0, 1.0)
_MULTIPLES = (1, 1, 1, 2, 3, 0.5, 0.25, 0.75, 1 / 3, 2 / 3, 1.5)
_MOST_CONSTANTS = 256
_DIGITS = 24  # of a float that is drawn: differences of such numbers are exact in float64
_OF_F64 = 250  # binary orders of size, so that powers and products stay in range


def constants_in(graph: Graph) -> Array:
    """The finite numbers that a function knows, as float64."""
    found: list[float] = []
    for op in graph:
        for body in bodies_of(op):
            found += [float(x) for x in constants_in(body)]
        if op.definition.is_constant and op.results[0].type.dtype.is_native:
            found += [float(x) for x in np.ravel(op.attrs["value"])[:_MOST_CONSTANTS]]
    unique = np.unique(np.asarray(found, np.float64))[:_MOST_CONSTANTS]
    return unique[np.isfinite(unique)]


def drawn(
    types: Sequence[TensorType], constants: Array, random: np.random.Generator
) -> list[list[Array]]:
    """For a, b and c an array for each type, whose first axis is that of the rows."""
    one_scale, one_sign = random.uniform(0, 1, ROWS), random.integers(0, 3, ROWS)
    kinds = random.integers(0, 4, ROWS)
    places: list[list[Array]] = [[], [], []]
    for type in types:
        shared = random.integers(0, 2, ROWS) == 0
        scale = np.where(shared, one_scale, random.uniform(0, 1, ROWS))
        sign = np.where(shared, one_sign, random.integers(0, 3, ROWS))
        for place in places:
            with np.errstate(all="ignore"):  # what leaves the range is brought to its ends
                x = _numbers(type, kinds, scale, constants, random)
            place.append(_signed(x, sign, type.dtype))
    return places


def _numbers(
    type: TensorType, kinds: Array, scale: Array, constants: Array, random: np.random.Generator
) -> Array:
    """kinds: by row, what is drawn: of the row's size, of any size, near constants, or of those
    that are special."""
    dtype, shape = type.dtype, type.shape
    if dtype is bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    draw = _Floats(dtype, random) if dtype.is_float else _Integers(dtype, random)
    along = (-1, *(1,) * (len(shape) - 1))
    made = np.select(
        [(kinds == kind).reshape(along) for kind in range(3)],
        [
            draw.of_size(np.broadcast_to(scale.reshape(along), shape)),
            draw.of_size(random.uniform(0, 1, shape)),
            draw.near(constants, shape),
        ],
        draw.special(constants, shape),
    )
    return made.astype(np.float64 if dtype.is_float else dtype.numpy)


def _signed(x: Array, sign: Array, dtype: DType) -> Array:
    """By row: as it is, not negative, not positive."""
    if not dtype.is_signed:
        return x
    sign = sign.reshape(-1, *(1,) * (x.ndim - 1))
    return np.where(sign == 1, np.abs(x), np.where(sign == 2, -np.abs(x), x))


class _Floats:
    def __init__(self, dtype: DType, random: np.random.Generator) -> None:
        self.dtype, self.random = dtype, random
        finfo: Any = ml_dtypes.finfo
        info = finfo(dtype.numpy)
        self.most = float(info.max)
        self.low, self.high = max(info.minexp, -_OF_F64), min(info.maxexp, _OF_F64)

    def of_size(self, order: Array) -> Array:
        """order: 0 to 1; half of them are sizes from 1/1000 to 1000."""
        moderate = (order * 4 - 1) * 10 * np.ones(order.shape)
        wide = self.low + (order * 2 - 1) * (self.high - self.low)
        size = np.exp2(np.where(order < 0.5, moderate, wide))
        return self._rounded(size * self.random.uniform(-1, 1, order.shape))

    def near(self, constants: Array, shape: tuple[int, ...]) -> Array:
        chosen = self._multiple(constants, shape)
        away = np.exp2(self.random.uniform(-20, 0, shape)) * self.random.choice((-1, 0, 1), shape)
        return self._rounded(chosen * (1 + away))

    def special(self, constants: Array, shape: tuple[int, ...]) -> Array:
        whole = self.random.integers(-3, 4, shape)
        limit = self.most * self.random.choice((1, -1, 0.75, -0.5, 0.25), shape)
        which = self.random.integers(0, 4, shape)
        exact = self._multiple(constants, shape)
        return self._rounded(np.select([which == 0, which < 3], [limit, whole], exact))

    def _multiple(self, constants: Array, shape: tuple[int, ...]) -> Array:
        of = self.random.choice(np.asarray([1.0, *constants]), shape)
        return np.asarray(of * self.random.choice((*_MULTIPLES, *(-m for m in _MULTIPLES)), shape))

    def _rounded(self, x: Array) -> Array:
        mantissa, exponent = np.frexp(np.clip(x, -self.most, self.most))
        x = np.ldexp(np.round(np.ldexp(mantissa, _DIGITS)), exponent - _DIGITS)
        x = np.clip(x, -self.most, self.most)
        return x if self.dtype.bits == 64 else x.astype(self.dtype.numpy).astype(np.float64)


class _Integers:
    def __init__(self, dtype: DType, random: np.random.Generator) -> None:
        self.dtype, self.random = dtype, random
        info = np.iinfo(dtype.numpy)
        self.least, self.most = int(info.min) + dtype.is_signed, int(info.max)

    def of_size(self, order: Array) -> Array:
        """order: 0 to 1, of the bits that they have."""
        size = np.exp2(order * (self.dtype.bits - self.dtype.is_signed))
        low = -1 if self.dtype.is_signed else 0
        return self._within(size * self.random.uniform(low, 1, order.shape))

    def near(self, constants: Array, shape: tuple[int, ...]) -> Array:
        inside = constants[np.abs(constants) < 2.0**62]
        known = np.asarray([0.0, *inside])
        chosen = self.random.choice(known, shape) * self.random.choice(_MULTIPLES, shape)
        chosen = chosen * self.random.choice((-1, 1), shape)
        return self._within(np.trunc(chosen) + self.random.integers(-3, 4, shape))

    def special(self, constants: Array, shape: tuple[int, ...]) -> Array:
        """The whole range, its ends, and what is small."""
        ends = [self.least, self.least + 1, self.most // 2, self.most // 2 + 1, self.most - 1]
        limit = self.random.choice(np.asarray([*ends, self.most], self.dtype.numpy), shape)
        any_one = self.random.integers(self.least, self.most, shape, self.dtype.numpy, True)
        small = self._within(self.random.integers(-3, 4, shape))
        which = self.random.integers(0, 4, shape)
        return np.select([which == 0, which == 1], [limit, any_one], small)

    def _within(self, x: Any) -> Array:
        """Whole numbers of the type; what lies outside is brought to the ends."""
        x = np.asarray(x)
        inside = (x > float(self.least)) & (x < float(self.most))
        made = np.where(inside, x, 0).astype(self.dtype.numpy)
        made = np.where(x >= float(self.most), np.asarray(self.most, self.dtype.numpy), made)
        return np.where(x <= float(self.least), np.asarray(self.least, self.dtype.numpy), made)
