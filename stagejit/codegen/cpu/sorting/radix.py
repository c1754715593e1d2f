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
from stagejit.codegen.ir.nodes import I32, Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel, When, serial, vectors
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target
from stagejit.index.affine import Var

_MOVE, _BIN = 4, 2  # operations that an element, or a bin, takes for each digit
_WIDEST = 12  # bits of a digit


def digit_bits(bits: int, target: Target, operations: Callable[[int, int], float]) -> int:
    """Bits of a digit, of a key of `bits` bits, for the fewest operations, which are those of a key
    by digits of so many bits."""
    fitting = [
        width
        for width in range(1, min(bits, _WIDEST) + 1)
        if 4 * (math.ceil(bits / width) << width) <= target.l1_nbytes or width <= 8
    ]
    best = min(fitting, key=lambda width: operations(bits, width))
    return math.ceil(bits / math.ceil(bits / best))


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
        self.digits = [digit_bits(key.digits, target, self._by_key) for key in self.keys]
        self.name = f"digits of {' and '.join(map(str, self.digits))} bits"
        self.operations = self._by_keys()

    def _by_keys(self) -> float:
        """Scalar operations of an item."""
        keys = zip(self.keys, self.digits, strict=True)
        return sum(self._by_key(key.digits, width) for key, width in keys)

    def _by_key(self, bits: int, width: int) -> float:
        """The same, by digits of `width` bits of a key of so many."""
        return math.ceil(bits / width) * (_MOVE * self.extent + (_BIN << width))

    def items(self, cores: int) -> Parallel:
        self._declare(2 * self.extent, self.b.scratch)
        bins = max(len(self._places_of(at)) << width for at, width in enumerate(self.digits))
        self.starts = self.counts = self.b.scratch("counts", I32, bins)
        return self.row_by_row(self._row(), cores)

    def _declare(self, room: int, memory: Callable[[str, Type, int], Buffer]) -> None:
        """Memory for so many keys, and for their places where results need them."""
        alone = self.rows.is_of_keys_alone
        self.places = None if alone else memory("places", I32, room)
        types = {key.bits: key.type for key in self.keys}
        self.words = {bits: memory("keys", type, room) for bits, type in types.items()}

    def _places_of(self, key: int) -> range:
        """The digits of a key, the lowest first."""
        return range(math.ceil(self.keys[key].digits / self.digits[key]))

    def _row(self) -> Node:
        """The row at which the loops stand, operand by operand, the first one last."""
        sorted_: list[Node] = []
        for number in reversed(range(len(self.keys))):
            sorted_.append(self._start(number, first=number == len(self.keys) - 1))
            sorted_.append(self._count(number, self._places_of(number)))
            sorted_ += [self._pass(number, place) for place in self._places_of(number)]
        start = self.set("a new row", self.half, lambda: [self.b.const(0)])
        lost = (self._specials(self._is_lost),) if self.rows.loses else ()
        return (start, *sorted_, self._results(), *lost)

    @property
    def _from(self) -> Register:
        """Where the row is, in the halves of scratch."""
        return self.cell(self.half)[0]

    @property
    def _other(self) -> Register:
        """The other half."""
        return self.b.const(self.extent) - self._from

    def _table(self, number: int, place: int) -> Register:
        """Where the counts of a digit begin."""
        return self.b.const(place << self.digits[number])

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
        width = self.digits[number]
        shifted = key >> place * width if place else key
        if (place + 1) * width < key.type.bits:
            shifted = shifted & ((1 << width) - 1)
        return self.b.cast("zext", shifted, "i64")

    def _bin(self, number: int, place: int, key: Register) -> Register:
        """Where the count of a key's digit lies."""
        return self._digit(number, place, key) + self._table(number, place)

    def _wide(self, count: Register) -> Register:
        return self.b.cast("zext", count, "i64")

    def _count(self, number: int, places: range) -> Node:
        """How often each digit is there, of these places at once: moving keys changes none."""
        b, words = self.b, self.words[self.keys[number].bits]
        bins = Var(len(places) << self.digits[number], "bin")
        lanes = min(self.target.lanes("i32"), 1 << self.digits[number])

        def clear() -> None:
            zeros, at = b.const(0, I32.with_lanes(lanes)), self.rows.elements.position.env[bins]
            b.store(zeros, self.counts, self._table(number, places[0]) + at)

        def count(at: Register) -> None:
            key = b.load(words, self._from + at)
            for place in places:
                digit = self._bin(number, place, key)
                b.store(b.load(self.counts, digit) + 1, self.counts, digit)

        return (vectors(bins, lanes, Do("clear counts", clear)), self._each("count digits", count))

    def _pass(self, number: int, place: int) -> Node:
        """Moves the row to the other half, unless it has only one digit."""
        b, words = self.b, self.words[self.keys[number].bits]

        def several() -> Register:
            digit = self._bin(number, place, b.load(words, self._from))
            return b.compare("ne", b.load(self.counts, digit), self.extent)

        moved = (
            self._sum_up(number, place),
            *self._move(number, place),
            self.set("moved", self.half, lambda: [self._other]),
        )
        return When("several digits", several, moved)

    def _move(self, number: int, place: int) -> tuple[Node, ...]:
        """Each element to where the next one of its digit goes."""
        b, words, other = self.b, self.words[self.keys[number].bits], Cell("other half")

        def one(at: Register) -> None:
            half = self._from
            key = b.load(words, half + at)
            digit = self._next(number, place, key)
            to = b.load(self.starts, digit)
            b.store(to + 1, self.starts, digit)
            to = self.cell(other)[0] + self._wide(to)
            b.store(key, words, to)
            if self.places is not None:
                b.store(b.load(self.places, half + at), self.places, to)

        return (
            self.set("the other half", other, lambda: [self._other]),
            self._each("move", one),
        )

    def _next(self, number: int, place: int, key: Register) -> Register:
        """Where it lies where the next element of a key's digit goes."""
        return self._bin(number, place, key)

    def _sum_up(self, number: int, place: int) -> Node:
        """From how often a digit is there to where the first one goes."""
        bins = Var(1 << self.digits[number], "bin")

        def of_place() -> dict[Var, Span]:
            return {bins: Span(self._table(number, place), bins.extent)}

        return self.rows.emitter.within("digits of a place", of_place, self._summed(bins))

    def _summed(self, bins: Var) -> Node:
        total = Cell("total")

        def one() -> Sequence[Register]:
            before = self.cell(total)[0]
            return [before + self._started(self.rows.elements.position.env[bins], before)]

        start = self.set("start", total, lambda: [self.b.const(0, I32)])
        return (start, serial([bins], self.set("sum up", total, one)))

    def _started(self, at: Register, before: Register) -> Register:
        """How often a digit is there, in whose stead is written where the first one goes."""
        count = self.b.load(self.counts, at)
        self.b.store(before, self.counts, at)
        return count

    # ---------------------------------------------------------------- results

    def _results(self) -> Node:
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

        return vectors(rows.shape.into, self.lanes, Do("write results", write))

    def _is_lost(self) -> Register:
        return self.b.compare("ne", self.b.reduce("or", self.cell(self.lost)[0]), 0)

    def _specials(self, some: Callable[[], Register]) -> Node:
        """Where something is lost, what keys do not tell is written again."""
        return When("lost", some, Do("write specials", lambda: write_specials(self.rows)))
