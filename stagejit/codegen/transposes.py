"""Register transposes: a square of vectors by log2(n) rounds of two-input shuffles.

Input: n rows of n lanes (n a power of two; missing rows are undefined). Output: the n columns.
The network is Eklundh's: round s swaps the off-diagonal blocks of size s.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.builder import Builder
from stagejit.codegen.ir import Value


def transpose_registers(b: Builder, rows: Sequence[Value], lanes: int) -> list[Value]:
    """Vector k of the result holds lane k of every row; rows beyond `len(rows)` read as zero."""
    zero = b.const(0, rows[0].type)
    current = [*rows, *([zero] * (lanes - len(rows)))]
    size = 1
    while size < lanes:
        low = [lane if not lane & size else lanes + (lane ^ size) for lane in range(lanes)]
        high = [lane | size if not lane & size else lanes + lane for lane in range(lanes)]
        following = list(current)
        for row in range(lanes):
            if not row & size:
                first, second = current[row], current[row | size]
                following[row] = b.shuffle(first, second, low)
                following[row | size] = b.shuffle(first, second, high)
        current = following
        size *= 2
    return current
