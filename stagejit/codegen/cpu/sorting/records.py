"""`Records`: an element of a row as one number, all that orders it and all that results need.

Input: rows. Output: numbers of 32 or 64 bits, compared without sign: the keys of the operands, the
first one highest, then the place in the row unless keys tell all; and what a result makes of them.
Invariant: where there is a place, no two numbers of a row are equal, so any order of exchanges is
stable.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.cpu.sorting.rows import Rows
from stagejit.codegen.ir.nodes import Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.target import Target

_WIDTHS = (32, 64)
_EMULATED = 3  # operations of a minimum that is no instruction


class Records:
    """bits: the width of a number; 0 where none is wide enough. lanes: numbers in a vector.
    exchange: operations of a minimum; of 64 bits, it is one instruction under AVX-512 only."""

    def __init__(self, rows: Rows, target: Target) -> None:
        self.rows = rows
        alone = rows.is_of_keys_alone
        self.place_bits = 0 if alone else max((rows.extent - 1).bit_length(), 1)
        needed = sum(key.digits for key in rows.keys) + self.place_bits
        self.bits = next((width for width in _WIDTHS if needed <= width), 0)
        self.lanes = target.vector_nbytes * 8 // (self.bits or 64)
        self.exchange = _EMULATED if self.bits == 64 and not target.has_avx512 else 1

    @property
    def type(self) -> Type:
        return Type(f"i{self.bits}")

    def of(self, elements: Sequence[Register], place: int | Register) -> Register:
        """elements: of all keys. place: theirs in the row."""
        b, word = self.rows.b, None
        for key, element in zip(self.rows.keys, elements, strict=True):
            own = key.of(b, element)
            own = b.cast("zext", own, self.type.elem) if own.type.bits < self.bits else own
            word = own if word is None else (word << key.digits) | own
        assert word is not None
        if not self.place_bits:
            return word
        if isinstance(place, int):
            place = b.const(place, word.type)
        return (word << self.place_bits) | place

    def last(self, word: Register, used: int) -> Register:
        """The first `used` lanes; the others come after all elements."""
        b = self.rows.b
        return b.select(b.active(used, word.type.lanes), word, -1)

    def result(self, number: int, word: Register, used: int = 0) -> Register:
        """The element of a result. used: see `Rows.pick`."""
        b, rows = self.rows.b, self.rows
        if not self.place_bits:
            key = rows.keys[0]
            narrow = b.cast("trunc", word, key.type.elem) if key.bits < self.bits else word
            return key.element(b, narrow)
        place = word & ((1 << self.place_bits) - 1)
        place = b.cast("trunc", place, "i32") if self.bits > 32 else place
        return rows.result(number, place, used)
