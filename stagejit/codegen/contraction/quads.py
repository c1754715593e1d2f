"""Sums of products of bytes, four at a time, as instructions of CPUs add them up.

Input: a nest of integers, the signs of bytes that a target has instructions for. Output: the nest
in quads: each element of an operand is a word of four bytes that follow each other along one of the
axes that are summed over. Invariant: sums wrap in 32 bits, so they are those of the bytes; what the
last quad lacks is zero.

Note [Signs]: where no instruction takes both operands as they are, the bytes of one have their
first bit flipped, which takes 128 from a byte without a sign, and adds it to one with a sign, if it
is then read as the other kind. So sums are 128 times the sum of the other operand's bytes too
large, or too small: a product with words of 0x80, read in the same way, is that difference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stagejit.base.records import replace
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import QUAD, Nest, Operand, Quads
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, i8, i32, u8

FLIPPED = 0x80808080  # the first bit of each byte


def in_quads(region: ClosedRegion, nest: Nest, signs: Collection[tuple[bool, bool]]) -> Nest | None:
    """The nest in quads; None where its operands are no bytes, or there is no axis of them."""
    if not signs or nest.dtype is not i32 or not nest.axes or nest.cut is not None:
        return None
    left, right = (_of_bytes(region, side) for side in (nest.left, nest.right))
    steps = _steps(nest)
    if left is None or right is None or not steps:
        return None
    step = max(steps, key=lambda var: (var.extent % QUAD == 0, var.extent))
    var, within = Var(-(-step.extent // QUAD), step.name), [Var(QUAD, "byte") for _ in range(QUAD)]
    there = step.extent % QUAD or QUAD
    known = [Affine((), byte) for byte in range(there)]
    places = [Affine.of(var) * QUAD + at for at in (*known, *map(Affine.of, within[there:]))]

    def bytes_of(side: Operand) -> tuple[Index, ...]:
        return tuple(side.substitute({step: at}).index for at in places)

    one, other = signed = tuple(side.value.type.dtype is i8 for side in (left, right))
    quads = Quads(
        var, step.extent, (one, other), tuple(sorted(signed)) not in signs,
        (bytes_of(left), bytes_of(right)), tuple(within),
    )  # fmt: skip
    made = replace(nest, left=left, right=right).moved(step, places[0], var)
    return replace(made, quads=quads)


def _steps(nest: Nest) -> Sequence[Var]:
    """The axes that are summed over which move no window, and have more than one quad."""
    windows = [w for side in (nest.left, nest.right) for w in side.windows.values()]
    moving = {var for window in windows for var in window.at.vars()}
    return [var for var in nest.reduce if var not in moving and var.extent > QUAD]


def _of_bytes(region: ClosedRegion, operand: Operand) -> Operand | None:
    """The operand before it was widened, where it was one of bytes."""
    value = operand.value
    while value.type.dtype not in (i8, u8) and value not in region.inputs:
        if not value.op.definition.is_conversion:
            return None
        made, value = value.type.dtype, value.op.operands[0]
        if not _keeps(value.type.dtype, made):
            return None
    low = -128 if value.type.dtype is i8 else 0
    if value.type.dtype not in (i8, u8) or not low <= operand.border < low + 256:
        return None
    return replace(operand, value=value)


def _keeps(before: DType, after: DType) -> bool:
    """Whether a conversion keeps integers, as far as sums of 32 bits tell."""
    if not (before.is_integer and after.is_integer):
        return False
    longer = after.bits > before.bits and (after.is_signed or not before.is_signed)
    return after.bits >= 32 or longer
