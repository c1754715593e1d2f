"""Products of small matrices of bytes that one worker adds up in registers of whole matrices.

Input: where rows of words lie. Output: what a product reads and writes, declared by shape.
Invariant: sums wrap in 32 bits.

A word has four bytes that follow each other along the summed dimension. Row r of the left operand
is `depth` words for each step; row w of the right one, of `depth` for each step, has a word for
each column. So of rows r, columns n, steps s and words w:

    c[r, n] += left[r * left.row + s * left.step + w] . right[s * right.step + w * right.row + n]
"""

from __future__ import annotations

from stagejit.base.records import record

MOST = 16  # rows, columns and words of one register
REGISTERS = 8


@record
class Rows:
    """How far it is, in words, from row to row and from step to step."""

    row: int
    step: int = 0

    def __str__(self) -> str:
        return f"{self.row}+{self.step}"


@record
class ByteMatrices:
    """signed: whether bytes of the left and of the right operand have a sign. sums: see `Rows`."""

    rows: int
    columns: int
    depth: int
    left: Rows
    right: Rows
    sums: Rows
    signed: tuple[bool, bool]

    def __str__(self) -> str:
        kinds = ".".join("s8" if sign else "u8" for sign in self.signed)
        size = f"m{self.rows}n{self.columns}k{4 * self.depth}.{kinds}"
        return f"{size} by {self.left}, {self.right}, {self.sums}"

    @property
    def blocks(self) -> tuple[list[int], list[int]]:
        """Rows, and columns, of the registers of the sums."""
        return _blocks(self.rows), _blocks(self.columns)

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """The last word of each operand in the first step, and of the sums; what a step adds."""
        deep, wide = self.depth - 1, self.columns - 1
        return (
            ((self.rows - 1) * self.left.row + deep, self.left.step),
            (deep * self.right.row + wide, self.right.step),
            ((self.rows - 1) * self.sums.row + wide, 0),
        )

    @property
    def fits(self) -> bool:
        """Whether there are registers for all sums, and for all operands of a step."""
        rows, columns = map(len, self.blocks)
        return 0 < rows * columns + rows + columns <= REGISTERS and 0 < self.depth <= MOST


def _blocks(count: int) -> list[int]:
    return [min(MOST, count - at) for at in range(0, count, MOST)]
