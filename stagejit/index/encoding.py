"""`Encoding`: that an array is an operand, or the result, of a product that may be tiled; not how.

Input: what is known of the product. Output: a value that the type of an array carries until a
target resolves it to a `Layout`. Invariant: it depends on no target, so neither does a program that
has encodings; the text of one is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagejit.base.records import record

ROLES = ("lhs", "rhs", "result")
_OF_ROLE = {"lhs": "bmk", "rhs": "bkn", "result": "bmn"}


@record
class Encoding:
    """role: which array of the product it is.

    axes: what each axis is, a letter each: `b` is one of several products, `m` a free axis of the
        left operand, `n` one of the right operand, `k` is summed over.
    types: names of the element types of both operands and of the result.
    minor: `m` or `n`, whichever axes the result has last: those lie together in its memory.
    """

    role: str
    axes: str
    types: tuple[str, str, str]
    minor: str = "n"

    def __post_init__(self) -> None:
        fits = self.role in ROLES and set(self.axes) <= set(_OF_ROLE[self.role])
        if not fits or self.minor not in ("m", "n") or len(self.types) != 3:
            raise ValueError(f"{self} is no encoding")

    @property
    def stacked(self) -> Encoding:
        """Of an array of which each slice of axis 0 is encoded so."""
        return replace(self, axes=f"b{self.axes}")

    @property
    def of_slice(self) -> Encoding:
        """Of a slice of axis 0."""
        return replace(self, axes=self.axes[1:])

    def moved(self, permutation: Sequence[int]) -> Encoding:
        """Of the array whose axis i is axis `permutation[i]` of this one."""
        return replace(self, axes="".join(self.axes[axis] for axis in permutation))

    def becomes(self, other: Encoding) -> bool:
        """Whether a result that is encoded so is tiled along the axes along which `other`, an
        operand of another product, is: its free axes are that one's free and summed ones."""
        if self.role != "result" or other.role == "result":
            return False
        element = other.types[0 if other.role == "lhs" else 1]
        names = {"lhs": "bmk", "rhs": "bkn"}[other.role]
        renamed = self.axes.translate(str.maketrans("bmn", names))
        return renamed == other.axes and self.types[2] == element

    def __str__(self) -> str:
        """`{rhs:kn:f32:f32:f32:n}`."""
        return f"{{{':'.join((self.role, self.axes, *self.types, self.minor))}}}"

    @staticmethod
    def of_text(text: str) -> Encoding:
        """The inverse of `str`. Raises ValueError for any other text."""
        parts = text.removeprefix("{").removesuffix("}").split(":")
        if len(parts) != 6:
            raise ValueError(f"{text} is no encoding")
        role, axes, lhs, rhs, result, minor = parts
        made = Encoding(role, axes, (lhs, rhs, result), minor)
        if str(made) != text:
            raise ValueError(f"{text} is no encoding")
        return made
