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
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType, bf16, f16, f32, i8, i16, u8, u16

_WITHIN_F32 = frozenset({bf16, f16, i8, i16, u8, u16})


@dataclass(frozen=True)
class Source(Operand):
    """One operand as the tiling sees it.

    offset: the memory offset in terms of axes, None where the operand must be evaluated. Either way
    it may be packed. memory: the same in terms of the variables of its index, borders aside; None
    where it is not simply read. leaf: what it is read of, perhaps in a type of fewer bits.
    """

    offset: Affine | None = None
    memory: Affine | None = None
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
    offset = None if exact is None or leaf is None else _memory_form(region, value, exact)
    memory = None if leaf is None else _memory_form(region, value, operand.index)
    return Source(value, operand.index, operand.windows, operand.border, offset, memory, leaf)


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


def _memory_form(region: ClosedRegion, value: Value, index: Index) -> Affine | None:
    """The offset in memory of an element of what has a leaf."""
    footprint = Footprint(region)
    footprint.value(value, index)
    (_, form), *starts = footprint.reads
    return form if not starts and form.loops_only else None
