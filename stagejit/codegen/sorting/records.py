"""`Word`: keys of an element of a row, and its place there, as one number.

Input: elements in registers. Output: numbers that are compared without sign. Invariant: where there
is a place, no two numbers of a row are equal, so any order of exchanges is stable.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.records import record
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.keys import Keys
from stagejit.codegen.sorting.rows import Rows

WIDTHS = (32, 64)


@record
class Word:
    """keys: the first one is the highest part. place_bits: of the place, the lowest part; 0 for
    none. bits: the width of the number; 0 where none is wide enough."""

    keys: tuple[Keys, ...]
    place_bits: int
    bits: int

    @staticmethod
    def holding(keys: Sequence[Keys], place_bits: int) -> Word:
        """The narrowest one."""
        needed = sum(key.digits for key in keys) + place_bits
        return Word(tuple(keys), place_bits, next((w for w in WIDTHS if needed <= w), 0))

    @property
    def type(self) -> Type:
        return Type(f"i{self.bits}")

    def of(self, b: Builder, elements: Sequence[Register], place: int | Register) -> Register:
        """elements: of all keys. place: theirs in the row."""
        word: Register | None = None
        for key, element in zip(self.keys, elements, strict=True):
            own = key.of(b, element)
            own = b.cast("zext", own, self.type.elem) if own.type.bits < self.bits else own
            word = own if word is None else (word << key.digits) | own
        if not self.place_bits:
            assert word is not None
            return word
        if isinstance(place, int):
            place = b.const(place, self.type if word is None else word.type)
        return place if word is None else (word << self.place_bits) | place

    def place(self, b: Builder, word: Register) -> Register:
        """Of the element, as an i32."""
        place = word & ((1 << self.place_bits) - 1) if self.keys else word
        return b.cast("trunc", place, "i32") if self.bits > 32 else place

    def element(self, b: Builder, word: Register) -> Register:
        """The element of the last key of a word without a place."""
        key = self.keys[-1]
        narrow = b.cast("trunc", word, key.type.elem) if key.bits < self.bits else word
        return key.element(b, narrow)


def place_bits(rows: Rows) -> int:
    """Bits of a place in a row; 0 where the keys tell all that the results need."""
    return 0 if rows.is_of_keys_alone else max((rows.extent - 1).bit_length(), 1)
