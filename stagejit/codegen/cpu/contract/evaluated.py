"""Elements of an operand that tiles make of what they read: numbers of half a byte, less eight.

Input: where a tile's loops stand, a `Source` with operations. Output: the vector of its elements at
a point of the tile, in the type of the sums. Invariant: the same as packing makes of them; equal
loads of a step are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.nest.emitter import Emitter
from stagejit.index.affine import Var
from stagejit.types import DType


def evaluated(
    emitter: Emitter,
    tiling: Tiling,
    dtype: DType,
    source: Source,
    steps: Mapping[Var, int],
    places: Sequence[Register],
    mask: Register | None,
) -> Register:
    """steps: how far from the tile's start the point is along each axis of the source. places:
    where the loops over the block of the reduction stand. mask: which lanes exist, if not all."""
    elements, b = emitter.elements, emitter.b
    env = elements.position.env
    # A place in a tile that is all of an axis is a number, and so is what depends on it: which half
    # of a byte it is.
    whole = {split.var for split in tiling.splits if split.groups == 1}
    at = {var: b.const(n) if var in whole else env[var] + n for var, n in steps.items()}
    for axis, place in zip(tiling.reduce, places, strict=True):
        at[axis] = emitter.span(axis).start + place
    if mask is None and elements.position.mask is not None:  # that of the last vector
        mask = b.active(tiling.lanes, tiling.lanes)
    with elements.at(at, vector=tiling.lane, lanes=tiling.lanes, mask=mask):
        made = elements.value(source.value, source.index)
        return vmath.convert(b, made, source.value.type.dtype, dtype)
