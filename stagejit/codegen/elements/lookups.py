"""Elements that each lane finds in a small table, which lies in registers.

Input: where a table begins, and the terms of a place in it that vary from lane to lane. Output: the
elements there. Invariant: nothing beyond the last element that the terms can reach is read.

Note [Tables in registers]: a gather takes a cycle or two a lane, a shuffle by indices a few cycles
for all of them. What many lanes pick from few elements (bytes by a table of 256, columns in another
order, a row by its own indices) is loaded whole; of a table that is the same for all vectors, the
loads leave the loops. 2^18 bytes by such a table: 150 us lane by lane, 26 in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.elements.positions import Positions
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.accesses import span_of
from stagejit.index.affine import Affine, Var


def looked_up(
    at: Positions, buffer: Buffer, first: Affine, terms: Sequence[tuple[Var, int]], width: int
) -> Register:
    """What lies at these terms behind `first`, in registers of so many elements."""
    b, span, begin, table = at.b, span_of(terms), at.scalar_index(first), []
    for start in range(0, span, width):
        mask = None if start + width <= span else b.active(span - start, width)
        table.append(b.load(buffer, begin + start, width, mask=mask))
    bits = buffer.elem.bits
    index = at.lane_index(Affine(tuple(terms)), narrow=bits <= 32)
    return b.lookup(b.cast("trunc", index, f"i{bits}") if bits < 32 else index, table)
