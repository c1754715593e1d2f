"""How CPUs want encoded operands: in panels of the columns of a register tile.

Input: a target, an encoding. Output: a `Layout`, or None for what tiles read as it lies. Invariant:
the vector operand of a product in panels is what `pack_fill.py` would make of it, once for all; any
layout would be as right.

Note [Panels]: a panel has the columns of one register tile, and its steps of the reduction lie one
after the other, so that tiles read one line after the other whatever the length of a row was. The
broadcast operand is read element by element, steps of six rows: they lie along these, a line for
many of them. Results are stored as others want them.
"""

from __future__ import annotations

from functools import cache

from stagejit.codegen.contraction.nest import accumulator
from stagejit.codegen.target import Target
from stagejit.dispatch.encodings import Resolver
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.types import TensorType, dtype_named

MOST_PADDING = 1.2  # times the columns: shorter panels waste less
_ROWS = 6


@cache
def panels_for(target: Target) -> Resolver:
    """The resolver of a CPU."""

    def resolve(encoding: Encoding, type: TensorType) -> Layout | None:
        if encoding.role == "lhs" and encoding.minor == "n":
            return _rows(encoding)
        if encoding.role != "rhs" or encoding.minor != "n" or "n" not in encoding.axes:
            return None
        column = encoding.axes.rindex("n")
        lhs, _, result = map(dtype_named, encoding.types)
        columns = panel_columns(target, accumulator(lhs, result).name, type.shape[column])
        if columns is None:
            return None
        rest = [axis for axis in range(type.rank) if axis != column]
        outer = [axis for axis in rest if encoding.axes[axis] in "bn"]
        inner = [axis for axis in rest if encoding.axes[axis] == "k"]
        tiles = tuple(columns if axis == column else 1 for axis in range(type.rank))
        return Layout((*outer, column, *inner), tiles)

    return resolve


def _rows(encoding: Encoding) -> Layout | None:
    """All steps of a row one after the other."""
    order = sorted(range(len(encoding.axes)), key=lambda axis: encoding.axes[axis] == "k")
    made = Layout(tuple(order), (1,) * len(order))
    return None if made.is_row_major else made


def panel_columns(target: Target, element: str, columns: int) -> int | None:
    """How many columns a panel has: as many vectors as a tile of six rows has room for, or fewer
    where these leave too many lanes empty; None where there is not one full vector."""
    lanes = target.lanes(element)
    for vectors in range(widest(target), 0, -1):
        panel = vectors * lanes
        if panel <= columns and -(-columns // panel) * panel <= MOST_PADDING * columns:
            return panel
    return lanes if lanes <= columns else None


def widest(target: Target) -> int:
    """Vectors along the columns of a tile of `_ROWS` rows: sums, one row of the vector operand, and
    an element of the other one are in registers."""
    return max((target.vector_registers - 1) // (_ROWS + 1), 1)
