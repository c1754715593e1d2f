"""Rows of any length by their digits, the lowest first (LSD radix sort; Knuth, TAOCP 3, 5.2.5).

Input: rows, a target. Output: code that sorts the row at which the loops stand. Invariant: the sort
is stable. Keys, and the places that they come from where the results need them, move between two
halves of the worker's scratch; a digit that is the same all over the row moves nothing.

Where a row is sorted by its elements and nothing else, places are not kept: a result is made of the
keys, and what keys do not tell is written again (see `specials.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stagejit.codegen.cpu.sorting.specials import write_specials
from stagejit.codegen.cpu.sorting.ways import Way
from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel, When, serial, vectors
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_MOVE, _BIN = 4, 2  # operations that an element, or a bin, takes for each digit
_WIDEST = 12  # bits of a digit


def digit_bits(bits: int, extent: int, target: Target) -> int:
    """Bits of a digit, of a key of `bits` bits, for the fewest operations."""
    fitting = [
        width
        for width in range(1, min(bits, _WIDEST) + 1)
        if 4 * (math.ceil(bits / width) << width) <= target.l1_nbytes or width <= 8
    ]
    best = min(fitting, key=lambda width: radix_operations(bits, extent, width))
    return math.ceil(bits / math.ceil(bits / best))


def radix_operations(bits: int, extent: int, width: int) -> float:
    """Scalar operations to sort a row by digits of `width` bits."""
    return math.ceil(bits / width) * (_MOVE * extent + (_BIN << width))


class Radix(Way):
    """Sorts rows one by one."""

    def __init__(self, rows: Rows, target: Target) -> None:
        super().__init__(rows)
        self.target, self.keys = target, rows.keys
        self.half, self.lost = Cell("half"), Cell("lost")
        widest = max(x.type.dtype.itemsize for x in rows.op.operands)
        if not rows.is_of_keys_alone:
            widest = max(widest, 4)
        self.lanes = target.vector_nbytes // widest
        self.digits = [digit_bits(key.digits, self.extent, target) for key in self.keys]
        self.name = f"digits of {' and '.join(map(str, self.digits))} bits"
        self.operations = sum(
            radix_operations(key.digits, self.extent, width)
            for key, width in zip(self.keys, self.digits, strict=True)
        )

    def items(self, cores: int) -> Parallel:
        b, room = self.b, 2 * self.extent
        alone = self.rows.is_of_keys_alone
        self.places = None if alone else b.scratch("places", I32, room)
        types = {key.bits: key.type for key in self.keys}
        self.words = {bits: b.scratch("keys", type, room) for bits, type in types.items()}
        bins = max(self._passes(at) << width for at, width in enumerate(self.digits))
        self.counts = b.scratch("counts", I32, bins)
        return self.row_by_row(self._row(), cores)

    def _passes(self, key: int) -> int:
        return math.ceil(self.keys[key].digits / self.digits[key])

    def _row(self) -> Node:
        """The row at which the loops stand, operand by operand, the first one last."""
        sorted_: list[Node] = []
        for number in reversed(range(len(self.keys))):
            sorted_.append(self._start(number, first=number == len(self.keys) - 1))
            sorted_.append(self._count(number))
            sorted_ += [self._pass(number, place) for place in range(self._passes(number))]
        start = self.set("a new row", self.half, lambda: [self.b.const(0)])
        return (start, *sorted_, self._finish())

    @property
    def _from(self) -> Register:
        """Where the row is, in the halves of scratch."""
        return self.cell(self.half)[0]

    def _each(self, what: str, one: Callable[[Register], None]) -> Node:
        """A statement for each element of the row."""
        along = self.rows.shape.along
        return serial([along], Do(what, lambda: one(self.rows.elements.position.env[along])))

    # ---------------------------------------------------------------- keys

    def _start(self, number: int, *, first: bool) -> Node:
        """Writes the keys of an operand, in the order that others made, into the half where the row
        is. Watches for lanes that are not zero where a key loses something, if that matters."""
        b, rows, key = self.b, self.rows, self.keys[number]
        words, along = self.words[key.bits], rows.shape.along

        def write() -> None:
            half, (at, used) = self._from, rows.here(along)
            mask = rows.mask(used, self.lanes)
            if first or self.places is None:
                element = rows.read(number, at, self.lanes, used)
            else:
                places = b.load(self.places, half + at, self.lanes, mask=mask)
                element = rows.pick(number, places, used)
            made = key.of(b, element)
            b.store(made, words, half + at, mask=mask)
            if first and self.places is not None:
                here = b.splat(b.cast("trunc", at, "i32"), self.lanes)
                b.store(here + b.lane_ids(self.lanes, I32), self.places, half + at, mask=mask)
            if self.rows.loses:
                lost = self.cell(self.lost)[0] | key.lost(b, element, made)
                rows.emitter.cells[self.lost] = (lost,)

        sets = (self.lost,) if self.rows.loses else ()
        keys = vectors(along, self.lanes, Do("write keys", write, sets))
        if not self.rows.loses:
            return keys
        none = key.type.with_lanes(self.lanes)
        return (self.set("nothing is lost", self.lost, lambda: [b.const(0, none)]), keys)

    # ---------------------------------------------------------------- digits

    def _digit(self, number: int, place: int, key: Register) -> Register:
        """Where the count of a key's digit lies."""
        width = self.digits[number]
        shifted = key >> place * width if place else key
        if (place + 1) * width < key.type.bits:
            shifted = shifted & ((1 << width) - 1)
        return self.b.cast("zext", shifted, "i64") + (place << width)

    def _wide(self, count: Register) -> Register:
        return self.b.cast("zext", count, "i64")

    def _count(self, number: int) -> Node:
        """How often each digit is there, of all places at once: moving keys changes none."""
        b, words = self.b, self.words[self.keys[number].bits]
        bins = Var(self._passes(number) << self.digits[number], "bin")
        lanes = min(self.target.lanes("i32"), 1 << self.digits[number])

        def clear() -> None:
            zeros = b.const(0, I32.with_lanes(lanes))
            b.store(zeros, self.counts, self.rows.elements.position.env[bins])

        def count(at: Register) -> None:
            key = b.load(words, self._from + at)
            for place in range(self._passes(number)):
                digit = self._digit(number, place, key)
                b.store(b.load(self.counts, digit) + 1, self.counts, digit)

        return (vectors(bins, lanes, Do("clear counts", clear)), self._each("count digits", count))

    def _pass(self, number: int, place: int) -> Node:
        """Moves the row to the other half, unless it has only one digit."""
        b, words = self.b, self.words[self.keys[number].bits]
        other = Cell("other half")

        def several() -> Register:
            digit = self._digit(number, place, b.load(words, self._from))
            return b.compare("ne", b.load(self.counts, digit), self.extent)

        def one(at: Register) -> None:
            half = self._from
            key = b.load(words, half + at)
            digit = self._digit(number, place, key)
            to = b.load(self.counts, digit)
            b.store(to + 1, self.counts, digit)
            to = self.cell(other)[0] + self._wide(to)
            b.store(key, words, to)
            if self.places is not None:
                b.store(b.load(self.places, half + at), self.places, to)

        moved = (
            self._sum_up(number, place),
            self.set("the other half", other, lambda: [b.const(self.extent) - self._from]),
            self._each("move", one),
            self.set("moved", self.half, lambda: self.cell(other)),
        )
        return When("several digits", several, moved)

    def _sum_up(self, number: int, place: int) -> Node:
        """From how often a digit is there to where the first one goes."""
        b, bins = self.b, Var(1 << self.digits[number], "bin")
        emitter, total = self.rows.emitter, Cell("total")

        def one() -> Sequence[Register]:
            at, before = emitter.elements.position.env[bins], self.cell(total)[0]
            count = b.load(self.counts, at)
            b.store(before, self.counts, at)
            return [before + count]

        def of_place() -> dict[Var, Span]:
            return {bins: Span(b.const(place * bins.extent), bins.extent)}

        start = self.set("start", total, lambda: [b.const(0, I32)])
        sums = serial([bins], self.set("sum up", total, one))
        return (start, emitter.within("digits of a place", of_place, sums))

    # ---------------------------------------------------------------- results

    def _finish(self) -> Node:
        rows, b = self.rows, self.b
        of_keys = self.keys[0] if rows.is_of_keys_alone else None

        def element(result: int, at: Register, used: int) -> Register:
            half, mask = self._from, rows.mask(used, self.lanes)
            if of_keys is not None:
                key = b.load(self.words[of_keys.bits], half + at, self.lanes, mask=mask)
                return of_keys.element(b, key)
            assert self.places is not None
            places = b.load(self.places, half + at, self.lanes, mask=mask)
            return rows.result(result, places, used)

        def write() -> None:
            at, used = rows.here(rows.shape.into)
            rows.write_all([element(result, at, used) for result in rows.results], at, used)

        results = vectors(rows.shape.into, self.lanes, Do("write results", write))
        if not self.rows.loses:
            return results

        def some() -> Register:
            return b.compare("ne", b.reduce("or", self.cell(self.lost)[0]), 0)

        return (results, When("lost", some, Do("write specials", lambda: write_specials(rows))))
