"""`Records`: an element of a row as one number, all that orders it and all that results need.

Input: rows. Output: vectors of numbers of 32 or 64 bits (see `Word`), and what a result makes of
them. Invariant: that of `Word`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.ir.nodes import Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.records import Word, place_bits
from stagejit.codegen.sorting.rows import Rows
from stagejit.codegen.target import Target

_EMULATED = 3  # operations of a minimum that is no instruction


class Records:
    """lanes: numbers in a vector. exchange: operations of a minimum; of 64 bits, it is one
    instruction under AVX-512 only."""

    def __init__(self, rows: Rows, target: Target) -> None:
        self.rows, self.word = rows, Word.holding(rows.keys, place_bits(rows))
        self.bits = self.word.bits
        self.lanes = target.vector_nbytes * 8 // (self.bits or 64)
        self.exchange = _EMULATED if self.bits == 64 and not target.has_avx512 else 1

    @property
    def type(self) -> Type:
        return self.word.type

    def of(self, elements: Sequence[Register], place: int | Register) -> Register:
        """elements: of all keys. place: theirs in the row."""
        return self.word.of(self.rows.b, elements, place)

    def last(self, word: Register, used: int) -> Register:
        """The first `used` lanes; the others come after all elements."""
        b = self.rows.b
        return b.select(b.active(used, word.type.lanes), word, -1)

    def result(self, number: int, word: Register, used: int = 0) -> Register:
        """The element of a result. used: see `Rows.pick`."""
        b, rows = self.rows.b, self.rows
        if not self.word.place_bits:
            return self.word.element(b, word)
        return rows.result(number, self.word.place(b, word), used)
