"""Keys: unsigned integers that order as the elements of a dtype do.

Input: elements in registers. Output: integers of the same width, compared without sign, and back.
Invariant: the two zeros have one key; all NaN have one, the last (descending: the first). Floats
are looked at as integers only: threads of XLA take denormals for zeros where they compare.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Type, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.types import DType


@record
class Keys:
    """The keys of one operand."""

    dtype: DType
    descending: bool

    @property
    def bits(self) -> int:
        """Width of a key in a register."""
        return 8 if self.dtype.kind == "bool" else self.dtype.bits

    @property
    def digits(self) -> int:
        """How many bits of a key differ, the lowest."""
        return 1 if self.dtype.kind == "bool" else self.dtype.bits

    @property
    def type(self) -> Type:
        return Type(f"i{self.bits}")

    @property
    def _sign(self) -> int:
        return self.type.sign

    def of(self, b: Builder, element: Register) -> Register:
        """The keys of elements."""
        if self.dtype.kind == "bool":
            key = b.cast("zext", element, "i8")
            return key ^ 1 if self.descending else key
        if self.dtype.is_float:
            return self.of_bits(b, b.cast("bitcast", element, self.type.elem))
        key = element ^ self._sign if self.dtype.is_signed else element
        return key ^ -1 if self.descending else key

    def of_bits(self, b: Builder, bits: Register) -> Register:
        """The keys of floats, of which these are the bits."""
        size = bits & ~self._sign
        negative = b.binary("ashr", bits, self.bits - 1)
        key = bits ^ (negative | self._sign)  # of a negative number all bits, else the sign
        key = b.select(b.compare("eq", size, 0), self._sign, key)
        key = b.select(b.compare("gt", size, self._floats.infinity), -1, key)
        return key ^ -1 if self.descending else key

    @property
    def _floats(self) -> Type:
        return element_type(self.dtype)

    def element(self, b: Builder, key: Register) -> Register:
        """The elements of keys: +0 for a zero, the usual NaN for a NaN."""
        if self.dtype.kind == "bool":
            return b.compare("ne", key, 1 if self.descending else 0)
        key = key ^ -1 if self.descending else key
        if not self.dtype.is_float:
            return key ^ self._sign if self.dtype.is_signed else key
        lowest = b.binary("ashr", key, self.bits - 1)  # of a negative number zeros
        bits = key ^ ((lowest ^ -1) | self._sign)
        to = self._floats
        usual = to.infinity | 1 << (to.mantissa - 1)
        bits = b.select(b.compare("eq", key, -1), usual, bits)
        return b.cast("bitcast", bits, to.elem)

    def lost(self, b: Builder, element: Register, key: Register) -> Register:
        """Lanes that are not zero where the key does not tell the bits of an element: zeros of a
        sign, and NaN but the usual one."""
        bits = b.cast("bitcast", element, self.type.elem)
        return bits ^ b.cast("bitcast", self.element(b, key), self.type.elem)

    @property
    def of_zero(self) -> int:
        """The key of zero, as a signed number of its width."""
        return ~self._sign if self.descending else self._sign

    @property
    def last_bits(self) -> int:
        """The bits of a float that comes after all others, or is equal to the last ones."""
        return self._floats.infinity | self._sign if self.descending else -1

    @property
    def of_nan(self) -> int:
        return 0 if self.descending else -1
