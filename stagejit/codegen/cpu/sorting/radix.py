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

from stagejit.codegen.cpu.sorting.rows import Rows, Way
from stagejit.codegen.cpu.sorting.specials import write_specials
from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.tree import Do, Parallel
from stagejit.codegen.target import Target

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

    name = "digits"

    def __init__(self, rows: Rows, target: Target) -> None:
        super().__init__(rows)
        self.target, self.keys = target, rows.keys
        widest = max(x.type.dtype.itemsize for x in rows.op.operands)
        if not rows.is_of_keys_alone:
            widest = max(widest, 4)
        self.lanes = target.vector_nbytes // widest
        self.digits = [digit_bits(key.digits, self.extent, target) for key in self.keys]
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
        return self.row_by_row(Do("sort a row", self._row), cores)

    def _passes(self, key: int) -> int:
        return math.ceil(self.keys[key].digits / self.digits[key])

    def _row(self) -> None:
        """The row at which the loops stand."""
        half = self.b.const(0)
        lost: Sequence[Register] = ()
        for number in reversed(range(len(self.keys))):
            lost = self._start(number, half, first=number == len(self.keys) - 1)
            self._count(number, half)
            for place in range(self._passes(number)):
                half = self._pass(number, place, half)
        self._finish(half, lost)

    # ---------------------------------------------------------------- keys

    def _vectors(
        self,
        extent: int,
        carried: Sequence[Register],
        body: Callable[..., Sequence[Register]],
    ) -> Sequence[Register]:
        """`carried = body(at, used, *carried)` for vectors of a row, in full, then the rest."""
        lanes, full = self.lanes, extent // self.lanes * self.lanes
        if full:
            carried = self.b.loop(
                0, full, lanes, tuple(carried), lambda at, *values: body(at, 0, *values)
            )
        if extent > full:
            carried = body(self.b.const(full), extent - full, *carried)
        return carried

    def _mask(self, used: int) -> Register | None:
        return self.b.active(used, self.lanes) if used else None

    def _start(self, number: int, half: Register, *, first: bool) -> Sequence[Register]:
        """Writes the keys of an operand, in the order that others made, into one half. Lanes that
        are not zero where they lose something, if that matters."""
        b, key, words = self.b, self.keys[number], self.words[self.keys[number].bits]
        watches = key.dtype.is_float and self.places is None

        def body(at: Register, used: int, *lost: Register) -> Sequence[Register]:
            mask = self._mask(used)
            if first or self.places is None:
                element = self.rows.read(number, at, self.lanes, used)
            else:
                places = b.load(self.places, half + at, self.lanes, mask=mask)
                element = self.rows.pick(number, places, used)
            made = key.of(b, element)
            b.store(made, words, half + at, mask=mask)
            if first and self.places is not None:
                here = b.splat(b.cast("trunc", at, "i32"), self.lanes)
                b.store(here + b.lane_ids(self.lanes, I32), self.places, half + at, mask=mask)
            return [lost[0] | key.lost(b, element, made)] if watches else []

        nothing = [b.const(0, key.type.with_lanes(self.lanes))] if watches else []
        return self._vectors(self.extent, nothing, body)

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

    def _count(self, number: int, half: Register) -> None:
        """How often each digit is there, of all places at once: moving keys changes none."""
        b, words = self.b, self.words[self.keys[number].bits]
        bins = self._passes(number) << self.digits[number]
        lanes = min(self.target.lanes("i32"), 1 << self.digits[number])
        zeros = b.const(0, I32.with_lanes(lanes))
        b.loop(0, bins, lanes, (), lambda at: b.store(zeros, self.counts, at))

        def count(at: Register) -> None:
            key = b.load(words, half + at)
            for place in range(self._passes(number)):
                digit = self._digit(number, place, key)
                b.store(b.load(self.counts, digit) + 1, self.counts, digit)

        b.loop(0, self.extent, 1, (), count)

    def _pass(self, number: int, place: int, half: Register) -> Register:
        """Moves the row to the other half, unless it has only one digit. Returns where it is."""
        b, words = self.b, self.words[self.keys[number].bits]
        digit = self._digit(number, place, b.load(words, half))
        several = b.compare("ne", b.load(self.counts, digit), self.extent)

        def move() -> Sequence[Register]:
            self._sum_up(number, place)
            other = b.const(self.extent) - half

            def one(at: Register) -> None:
                key = b.load(words, half + at)
                digit = self._digit(number, place, key)
                to = b.load(self.counts, digit)
                b.store(to + 1, self.counts, digit)
                to = other + self._wide(to)
                b.store(key, words, to)
                if self.places is not None:
                    b.store(b.load(self.places, half + at), self.places, to)

            b.loop(0, self.extent, 1, (), one)
            return [other]

        return b.if_(several, move, lambda: [half])[0]

    def _sum_up(self, number: int, place: int) -> None:
        """From how often a digit is there to where the first one goes."""
        b, bins = self.b, 1 << self.digits[number]

        def one(at: Register, total: Register) -> Sequence[Register]:
            count = b.load(self.counts, at)
            b.store(total, self.counts, at)
            return [total + count]

        b.loop(place * bins, (place + 1) * bins, 1, (b.const(0, I32),), one)

    # ---------------------------------------------------------------- results

    def _finish(self, half: Register, lost: Sequence[Register]) -> None:
        rows, b, count = self.rows, self.b, self.rows.count
        of_keys = self.keys[0] if rows.is_of_keys_alone else None

        def element(result: int, at: Register, used: int) -> Register:
            mask = self._mask(used)
            if of_keys is not None:
                key = b.load(self.words[of_keys.bits], half + at, self.lanes, mask=mask)
                return of_keys.element(b, key)
            assert self.places is not None
            places = b.load(self.places, half + at, self.lanes, mask=mask)
            return places if result == rows.positions else rows.pick(result, places, used)

        def vector(at: Register, used: int) -> Sequence[Register]:
            made = [element(result, at, used) for result in rows.results]
            for number, register in enumerate(made):
                if count == 1:
                    rows.write(number, b.extract(register, 0), at)
                else:
                    rows.write(number, register, at, used)
            return ()

        self._vectors(count, (), vector)
        if lost and of_keys is not None:
            some = b.compare("ne", b.reduce("or", lost[0]), 0)
            b.if_(some, lambda: write_specials(rows))
