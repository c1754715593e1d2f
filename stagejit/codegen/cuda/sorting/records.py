"""`Records`: an element of a row as a few numbers, all that orders it and all that results need.

Input: rows. Output: numbers of one width, in registers, and what a result makes of them. Invariant:
records are compared number by number, without sign, the first one first; where two are equal, they
keep their order or are the same.

Note [Floats alone]: where floats are sorted by themselves and nothing else, a record is their bits:
results are those very bits, and stable merges keep the order of zeros of both signs, and of NaN of
any bits, without a place beside them. What is compared are the keys that follow from the bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Type, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.keys import Keys
from stagejit.codegen.sorting.records import WIDTHS, Word, place_bits
from stagejit.codegen.sorting.rows import Rows

Record = tuple[Register, ...]


class Records:
    """words: the numbers, all of `type`. of_bits: see Note [Floats alone]."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.of_bits = rows, rows.loses
        self.words = _words(rows.keys, place_bits(rows))
        self.type = Type(f"i{max(word.bits for word in self.words)}")

    @property
    def b(self) -> Builder:
        return self.rows.b

    @property
    def nbytes(self) -> int:
        return len(self.words) * self.type.bits // 8

    @property
    def is_total(self) -> bool:
        """Whether equal records are the same, so that any order of exchanges is stable."""
        return not self.of_bits

    def read(self, place: Register) -> Record:
        """The record of the element at a place of the row at which the loops stand."""
        b, rows = self.b, self.rows
        elements = [rows.read(number, place) for number in range(len(rows.keys))]
        if self.of_bits:
            (key,) = rows.keys
            bits = b.cast("bitcast", elements[0], key.type.elem)
            return (b.cast("zext", bits, self.type.elem),)
        found, short = [], b.cast("trunc", place, "i32")
        for word in self.words:
            own, elements = elements[: len(word.keys)], elements[len(word.keys) :]
            at = short if word.bits == 32 else place
            found.append(b.cast("zext", word.of(b, own, at), self.type.elem))
        return tuple(found)

    def last(self) -> Record:
        """A record that comes after all others, or is equal to the last ones."""
        if self.of_bits:
            (key,) = self.rows.keys
            narrow = key.bits < self.type.bits
            bits = key.last_bits & ((1 << key.bits) - 1) if narrow else key.last_bits
            return (self.b.const(bits, self.type),)
        return tuple(self.b.const(-1, self.type) for _ in self.words)

    def order(self, record: Record) -> Record:
        """The numbers that are compared."""
        if not self.of_bits:
            return record
        b, (key,), (word,) = self.b, self.rows.keys, record
        bits = b.cast("trunc", word, key.type.elem)
        return (b.cast("zext", key.of_bits(b, bits), self.type.elem),)

    def less(self, first: Record, second: Record) -> Register:
        """Whether one comes before another, by the numbers that are compared."""
        b, *both = self.b, *zip(first, second, strict=True)
        x, y = both[-1]
        found = b.compare("lt", x, y, signed=False)
        for x, y in both[-2::-1]:
            equal = b.compare("eq", x, y)
            found = b.compare("lt", x, y, signed=False) | (equal & found)
        return found

    def chosen(self, first: Register, x: Record, y: Record) -> Record:
        """x where `first` holds, else y."""
        return tuple(self.b.select(first, a, c) for a, c in zip(x, y, strict=True))

    def result(self, number: int, record: Record) -> Register:
        """The element of a result."""
        b, rows, (*_, word), kind = self.b, self.rows, record, self.words[-1]
        if self.of_bits:
            key = rows.keys[0]
            bits = b.cast("trunc", word, key.type.elem)
            return b.cast("bitcast", bits, element_type(key.dtype).elem)
        word = b.cast("trunc", word, kind.type.elem)
        if not kind.place_bits:
            return kind.element(b, word)
        place = kind.place(b, word)
        if number == rows.positions:
            return place
        return rows.pick(number, b.cast("zext", place, "i64"))


def _words(keys: Sequence[Keys], place_bits: int) -> tuple[Word, ...]:
    """As many of the keys as fit into a number each, and the place in the last one."""
    (*_, widest) = WIDTHS
    groups: list[list[Keys]] = [[]]
    for key in keys:
        if sum(other.digits for other in (*groups[-1], key)) > widest:
            groups.append([])
        groups[-1].append(key)
    if sum(key.digits for key in groups[-1]) + place_bits > widest:
        groups.append([])
    last = len(groups) - 1
    return tuple(
        Word.holding(group, place_bits if at == last else 0) for at, group in enumerate(groups)
    )
