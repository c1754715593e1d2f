"""`Source`: an operand of a contraction nest, and where it lies in memory.

Input: a region, an operand of a nest of it. Output: a `Source`. Invariant: plain data; it has an
offset only where every element is simply read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import Operand
from stagejit.codegen.elements.footprint import Footprint
from stagejit.codegen.elements.walk import behind_views
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, bf16, f16, f32, i8, i16, u8, u16

NOWHERE = Affine()
_WITHIN_F32 = frozenset({bf16, f16, i8, i16, u8, u16})


@dataclass(frozen=True)
class Source(Operand):
    """One operand as the tiling sees it.

    offset: the memory offset in terms of axes, None where the operand must be evaluated. Either way
    it may be packed. memory: the same in terms of the variables of its index, borders aside; None
    where it is not simply read. starts: what a call adds to both, in terms of variables that stand
    at scalars, see `Elements.started`. leaf: what it is read of, perhaps in a type of fewer bits.
    """

    offset: Affine | None = None
    memory: Affine | None = None
    starts: Affine = NOWHERE
    leaf: Value | None = None

    @property
    def dtype(self) -> DType:
        """The type of what is read."""
        return (self.leaf or self.value).type.dtype

    def stride(self, var: Var) -> int:
        return self.offset.coeff(var) if self.offset is not None else 0

    def box(self, extents: Mapping[Var, int], lane: Var | None = None, lanes: int = 1) -> int:
        """Elements of the smallest box that holds what a block of these extents reads, in whole
        vectors along `lane`."""
        size, plain = 1, self.depends
        for window in self.windows.values():
            length, axes = window.length(extents), window.at.loop_vars()
            size *= -(-length // lanes) * lanes if lane in axes else length
            plain -= axes
        return size * math.prod(extents.get(var, var.extent) for var in plain)


def source_of(region: ClosedRegion, operand: Operand) -> Source:
    """The operand, and where it lies."""
    value, exact = operand.value, operand.exact_index
    leaf = _leaf(region, value)
    if leaf is None:
        return Source(value, operand.index, operand.windows, operand.border)
    offset = None if exact is None else _place(region, value, exact)[0]
    memory, starts = _place(region, value, operand.index)
    return Source(
        value, operand.index, operand.windows, operand.border, offset, memory, starts, leaf
    )


def _leaf(region: ClosedRegion, value: Value) -> Value | None:
    """What lies in memory where an element is only read through views, and widened: from fewer bits
    a tile makes the same number when it reads it."""
    while (found := behind_views(value, region.inputs)) is None:
        while value.op.definition.is_view:
            value = value.op.operands[0]
        narrow = value.op.operands[0].type.dtype if value.op.operands else value.type.dtype
        exact = value.type.dtype is f32 and narrow in _WITHIN_F32
        if not (value.op.definition.is_conversion and exact):
            return None
        value = value.op.operands[0]
    return found


class _Reading(Footprint):
    """Whose starts of slices are variables that know their scalars."""

    def start(self, op: Op, operand: int, extent: int) -> Affine:
        value = op.operands[operand]
        self.value(value, ())
        return Affine.of(Var(extent, "s", "dynamic", source=value))


def _place(region: ClosedRegion, value: Value, index: Index) -> tuple[Affine | None, Affine]:
    """The offset in memory of an element of what has a leaf, and what starts of slices add to it;
    None where it is no sum of both."""
    footprint = _Reading(region)
    footprint.value(value, index)
    _, form = footprint.reads[-1]  # what starts are made of is read before
    if any(var.kind not in ("loop", "dynamic") for var in form.vars()):
        return None, NOWHERE
    starts = Affine(tuple(term for term in form.terms if term[0].kind == "dynamic"))
    return form - starts, starts
