"""Transforms of many lines of complex numbers, in steps that each pass once over all of them.

Input: lines in an array (batch, length, inner), whose elements are transformed along the middle
axis. Output: the same, transformed. Invariant: all accesses of a step are to runs of elements, so
lines along any axis of an array are as good as those along the last.

Note [Steps]: a line of r m elements is m lines of r elements, m apart, which are transformed and
turned (element k of line number p by p k of r m steps of a turn). The m elements of the same k are
the lines of the next step. In the end, k of the last step changes slowest: elements k of a step
belong beside each other, as runs that stay together from then on (Stockham's form; Cochran et al.,
"What is the fast Fourier transform?", 1967). Runs that are shorter than a vector are slow to move.
Up to RUN elements, k therefore waits before the lines, where elements are stored in the order in
which they are read; the first step after that moves all that waits.

Lines of few elements are computed in registers, longer ones of a prime length by a product with the
matrix of the transform or, of sums and differences, with half of it, and where it is large by a
convolution of smooth length (Bluestein, 1970).
Products are as exact as steps as long as they are short: their error grows with the root of the
length, that of steps with its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagejit.base.records import record
from stagejit.graph.ir import Value
from stagejit.trace.complex.arithmetic import product
from stagejit.trace.complex.parts import Pair
from stagejit.trace.emitter import Emitter
from stagejit.trace.fourier.butterflies import transformed
from stagejit.trace.fourier.roots import Complex, factors, roots, smooth_above
from stagejit.trace.math.expressions import Real
from stagejit.types import TensorType

IN_REGISTERS = 8  # the longest line whose transform is a chain of sums
RUN = 16  # elements that should be beside each other before their runs are moved
AT_ONCE = 24  # the longest line that is one product, if its elements have runs of one
BY_PRODUCT = 32  # the longest line of prime length that is one product
BY_HALVES = 256  # the longest that is two products, of sums and of differences


@record
class Lines:
    """Complex numbers (batch, length, inner). value: with an axis for their parts more, which is
    the last one (`together`: the elements are pairs) or the first one. parts: what it was joined
    of, where that is at hand; who reads it by parts reads those."""

    emit: Emitter
    value: Value
    together: bool
    parts: tuple[Value, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.value.type.shape
        return shape[:-1] if self.together else shape[1:]

    @property
    def pair(self) -> Pair:
        return self.part(0), self.part(1)

    def part(self, number: int) -> Real:
        shape, start = self.shape, (0,) * len(self.shape)
        if self.parts:
            return Real(self.emit, self.parts[number])
        if self.together:
            box = self.emit.extract(self.value, (*start, number), (*shape, 1))
        else:
            box = self.emit.extract(self.value, (number, *start), (1, *shape))
        return Real(self.emit, self.emit.reshape(box, shape))

    def reshaped(self, *shape: int) -> Lines:
        whole = (*shape, 2) if self.together else (2, *shape)
        parts = tuple(self.emit.reshape(part, shape) for part in self.parts)
        return Lines(self.emit, self.emit.reshape(self.value, whole), self.together, parts)


def pairs_of(emit: Emitter, x: Value) -> Lines:
    """The complex numbers of a value."""
    return Lines(emit, x, True, emit.parts.get(x, ()))


def stacked(emit: Emitter, rows: Sequence[Pair], axis: int, together: bool = False) -> Value:
    """Pairs of arrays beside each other along an axis, in one array with an axis for the parts."""
    first = rows[0][0].value.type
    sizes = [pair[0].value.type.shape[axis] for pair in rows]
    shape = (*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :])
    result = emit.empty(TensorType(first.dtype, (*shape, 2) if together else (2, *shape)))
    at = 0
    for pair, size in zip(rows, sizes, strict=True):
        for number, part in enumerate(pair):
            own = part.value.type.shape
            start = [0] * len(own)
            start[axis] = at
            source = emit.reshape(part.value, (*own, 1) if together else (1, *own))
            where = (*start, number) if together else (number, *start)
            result = emit.insert(source, result, where)
        at += size
    return result


def lines_of(emit: Emitter, rows: Sequence[Pair], together: bool = False) -> Lines:
    """Lines of which each of `rows` is a piece, in order. Who reads the only one reads that."""
    value = stacked(emit, rows, 1, together)
    if len(rows) > 1:
        return Lines(emit, value, together)
    ((real, imaginary),) = rows
    return Lines(emit, value, together, (real.value, imaginary.value))


def constant(like: Real, numbers: Complex) -> Pair:
    """Complex numbers in the type of `like`, rounded once."""
    emit, dtype = like.emit, like.dtype
    return Real(emit, emit.const(numbers.real, dtype)), Real(emit, emit.const(numbers.imag, dtype))


def rows_of(x: Lines, start: int, stop: int) -> Pair:
    """Elements of each line."""
    return _elements(x.pair, start, stop)


def _elements(x: Pair, start: int, stop: int) -> Pair:
    batch, _, inner = x[0].value.type.shape
    real, imaginary = (
        Real(part.emit, part.emit.extract(part.value, (0, start, 0), (batch, stop - start, inner)))
        for part in x
    )
    return real, imaginary


def reversed_rows(x: Pair) -> Pair:
    """Elements of each line, last to first."""
    real, imaginary = (Real(part.emit, part.emit.reverse(part.value, (1,))) for part in x)
    return real, imaginary


def fourier(
    x: Lines,
    sign: int = 1,
    scale: float = 1.0,
    *,
    together: bool = False,
    first: int | None = None,
) -> Lines:
    """The transforms of lines, times `scale`. sign: -1 for the inverse. together: as pairs. first:
    so many of their elements, if not all."""
    batch, length, inner = x.shape
    if inner == 1 and 1 < length <= AT_ONCE:
        made = _by_product(x, sign, scale, together and first is None)
        if first is None:
            return made
        return lines_of(x.emit, [rows_of(made, 0, first)], together)
    if length == 1:
        return lines_of(x.emit, [_scaled(x.pair, scale)], together)
    done, left, runs = 1, length, inner
    for count in factors(length, eight=inner == 1):
        left //= count
        split = x.reshaped(batch, done, count, left, runs)
        waits = left > 1 and done * runs < RUN and count <= IN_REGISTERS
        order = (0, 2, 1, 3, 4) if waits else (0, 3, 2, 1, 4)
        rows = _short(split, sign, order) if count <= IN_REGISTERS else _long(split, sign, order)
        if left > 1:
            turns = roots(sign * np.outer(np.arange(left), np.arange(count)), count * left)
            turns = turns.T[:, None, :, None] if waits else turns[..., None, None]
            rows = _turned(rows, turns, 0 if waits else 1)
        else:
            rows = [_scaled(row, scale) for row in rows]
            if first is not None:
                return lines_of(x.emit, _until(rows, first, batch, inner), together)
        axis, pairs = 1 if waits else 2, together and left == 1
        x = Lines(x.emit, stacked(x.emit, rows, axis, pairs), pairs)
        done, runs = (count * done, runs) if waits else (1, count * done * runs)
    return x.reshaped(batch, length, inner)


def _until(rows: Sequence[Pair], stop: int, batch: int, inner: int) -> list[Pair]:
    """The first elements of lines (batch, length, inner) of which each of `rows` is a piece."""
    found: list[Pair] = []
    for pair in rows:
        size = pair[0].value.type.size // (batch * inner)
        if stop > 0:
            shape = (batch, size, inner)
            real, imaginary = (Real(x.emit, x.emit.reshape(x.value, shape)) for x in pair)
            found.append(_elements((real, imaginary), 0, min(size, stop)))
        stop -= size
    return found


def _scaled(x: Pair, scale: float) -> Pair:
    return x if scale == 1.0 else (x[0] * scale, x[1] * scale)


def _turned(rows: Sequence[Pair], turns: Complex, axis: int) -> list[Pair]:
    """Rows that together have the elements that are one axis of `turns`; the first element is not
    turned if it is a row. All turns are one array, so that a step reads few."""
    if len(rows) == 1:
        return [product(rows[0], constant(rows[0][0], turns))]
    emit, dtype = rows[0][0].emit, rows[0][0].dtype
    table = emit.const(np.stack([turns.real, turns.imag]), dtype)

    def turn(at: int, row: Real, part: int) -> Real:
        whole = row.value.type.shape
        axes = tuple(range(len(whole) - turns.ndim, len(whole)))
        shape = (*turns.shape[:axis], whole[axes[axis]], *turns.shape[axis + 1 :])
        start = [0] * turns.ndim
        start[axis] = at
        numbers = emit.reshape(emit.extract(table, (part, *start), (1, *shape)), shape)
        return Real(emit, emit.broadcast(numbers, whole, axes))

    turned, at = [], 0
    for row in rows:
        size = row[0].value.type.shape[axis + 1]
        by = (turn(at, row[0], 0), turn(at, row[0], 1))
        turned.append(product(row, by) if at or size > 1 else row)
        at += size
    return turned


def _short(x: Lines, sign: int, order: Sequence[int]) -> list[Pair]:
    """The transform of few elements, a row for each of them."""
    emit, (batch, done, count, left, runs) = x.emit, x.shape

    def row(part: Real, at: int) -> Real:
        box = emit.extract(part.value, (0, 0, at, 0, 0), (batch, done, 1, left, runs))
        return Real(emit, emit.transpose(box, order))

    real, imaginary = x.pair
    return transformed([(row(real, at), row(imaginary, at)) for at in range(count)], sign)


def _long(x: Lines, sign: int, order: Sequence[int]) -> list[Pair]:
    """The transform of many elements, as few rows."""
    batch, done, count, left, runs = x.shape
    lines = x.reshaped(batch * done, count, left * runs)
    if count <= BY_PRODUCT:
        pairs = [_by_product(lines, sign, 1.0, False).pair]
    elif count <= BY_HALVES and count % 2:
        pairs = _by_halves(lines, sign)
    else:
        pairs = [_by_convolution(lines, sign)]

    def placed(part: Real) -> Real:
        shape = (batch, done, part.value.type.shape[1], left, runs)
        return Real(x.emit, x.emit.transpose(x.emit.reshape(part.value, shape), order))

    return [(placed(real), placed(imaginary)) for real, imaginary in pairs]


def _by_product(x: Lines, sign: int, scale: float, together: bool) -> Lines:
    """One product of real numbers: each element of the matrix is the 2 x 2 matrix that multiplies
    as it does."""
    emit, (batch, count, inner) = x.emit, x.shape
    places = np.arange(count)
    w = roots(sign * np.outer(places, places), count) * scale
    # Axes: element, its part, element of the result, its part.
    table = np.stack([np.stack([w.real, w.imag], -1), np.stack([-w.imag, w.real], -1)], 1)
    factor = emit.const(table, x.value.type.dtype)
    if inner == 1:
        own = (1, 3) if x.together else (2, 0)
        made = _contract(emit, x.value, factor, own, (0, 1), (batch, 1, count, 2))
        pairs = Lines(emit, made, True).reshaped(batch, count, 1)
        return pairs if together else lines_of(emit, [pairs.pair])
    own = (1, 3) if x.together else (2, 0)
    made = _contract(emit, factor, x.value, (0, 1), own, (count, 2, batch, inner))
    return Lines(emit, emit.transpose(made, (1, 2, 0, 3)), False)


def _contract(
    emit: Emitter,
    lhs: Value,
    rhs: Value,
    left: tuple[int, ...],
    right: tuple[int, ...],
    shape: tuple[int, ...],
    batch: tuple[int, ...] = (),
) -> Value:
    dtype = lhs.type.dtype
    return emit.emit(
        "contract", (lhs, rhs), TensorType(dtype, shape),
        contracting=(left, right), batch=(batch, batch), dtype=dtype,
    )  # fmt: skip


def _by_halves(x: Lines, sign: int) -> list[Pair]:
    """For an odd count: elements as far from the first one in both directions have the same cosine
    and opposite sines, so their sums and their differences are multiplied, by real matrices, a
    fourth of the work of `_by_product`."""
    emit, (batch, count, inner) = x.emit, x.shape
    half, first, ahead = count // 2, rows_of(x, 0, 1), rows_of(x, 1, count // 2 + 1)
    behind = reversed_rows(rows_of(x, half + 1, count))
    w = roots(sign * np.outer(np.arange(half + 1), np.arange(1, half + 1)), count)
    both = emit.empty(TensorType(x.value.type.dtype, (2, 2, batch, half, inner)))
    for at, (p, q) in enumerate(zip(ahead, behind, strict=True)):
        for kind, row in enumerate((p + q, p - q)):
            box = emit.reshape(row.value, (1, 1, batch, half, inner))
            both = emit.insert(box, both, (kind, at, 0, 0, 0))
    factor = emit.const(np.stack([w.real, w.imag]), x.value.type.dtype)
    shape = (2, half + 1, 2, batch, inner)
    made = emit.transpose(_contract(emit, factor, both, (2,), (3,), shape, (0,)), (0, 2, 3, 1, 4))

    def part(kind: int, at: int) -> Real:
        box = emit.extract(made, (kind, at, 0, 0, 0), (1, 1, *made.type.shape[2:]))
        return Real(emit, emit.reshape(box, made.type.shape[2:]))

    even = part(0, 0) + first[0], part(0, 1) + first[1]
    p, q = part(1, 0), part(1, 1)
    high = _elements((even[0] + q, even[1] - p), 1, half + 1)
    return [(even[0] - q, even[1] + p), reversed_rows(high)]


def _by_convolution(x: Lines, sign: int) -> Pair:
    """j k = (j^2 + k^2 - (k - j)^2) / 2: turned by half of the square of its place, convolved with
    all such turns the other way, and turned again."""
    emit, (batch, count, inner) = x.emit, x.shape
    places = np.arange(count)
    turns = roots(sign * (places * places % (2 * count)), 2 * count)
    length = smooth_above(2 * count - 1)
    kernel = np.zeros(length, np.complex128)
    kernel[:count] = turns.conj()
    kernel[length - count + 1 :] = turns[:0:-1].conj()
    response = np.fft.fft(kernel) / length
    turned = product(x.pair, constant(x.part(0), turns[:, None]))
    zeros = emit.fill(turned[0].like(0).value, (batch, length - count, inner))
    made = fourier(lines_of(emit, [turned, (Real(emit, zeros), Real(emit, zeros))])).pair
    made = product(made, constant(made[0], response[:, None]))
    made = fourier(lines_of(emit, [made]), -1).pair
    real, imaginary = (
        Real(emit, emit.extract(part.value, (0, 0, 0), (batch, count, inner))) for part in made
    )
    return product((real, imaginary), constant(real, turns[:, None]))
