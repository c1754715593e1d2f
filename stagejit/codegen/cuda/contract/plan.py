"""What a policy for products has to know of one nest of a region.

Input: a region, a settled nest. Output: a `Plan`. Invariant: plain data; nothing is chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import Nest, Operand
from stagejit.codegen.contraction.walk import NestWalk
from stagejit.codegen.places.footprint import Footprint
from stagejit.codegen.places.walk import behind_views
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import DType


@record
class Read(Operand):
    """An operand, and what one element of it reads of memory: forms of axes and steps that may
    leave it where a window does. is_bare: whether the one read is all that there is to it."""

    reads: tuple[tuple[Value, Affine], ...] = ()
    is_bare: bool = False

    def own(self, axes: Iterable[Var], other: Operand) -> tuple[Var, ...]:
        """Those of the axes that choose an element of this operand, and none of another one."""
        return tuple(var for var in axes if var in self.depends and var not in other.depends)


@dataclass(frozen=True)
class Plan:
    """`indices[i]` and `offsets[i]` belong to `region.stores[i]`: the index of the stored value,
    and its place in memory. reads: of memory, operands and what the stores need; after: the latter.
    sources: left and right."""

    region: ClosedRegion
    nest: Nest
    sources: tuple[Read, Read]
    indices: tuple[Index, ...]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]
    after: tuple[tuple[Value, Affine], ...]

    @property
    def sums(self) -> int:
        """How many there are."""
        return math.prod(var.extent for var in self.nest.axes)

    @property
    def steps(self) -> int:
        """Products of a sum."""
        return math.prod(var.extent for var in self.nest.reduce)


def plan_of(region: ClosedRegion, nest: Nest) -> Plan:
    """Of a nest whose variables are settled."""
    walk = NestWalk(region, nest, strict=False)
    sources = _read(region, nest.left), _read(region, nest.right)
    footprint = Footprint(region, bound={region.anchor_op.result})
    for store, index in zip(region.stores, walk.indices, strict=True):
        footprint.write(store, index)
    reads, after = tuple(walk.footprint.reads), tuple(footprint.reads)
    return Plan(region, nest, sources, walk.indices, walk.offsets, reads, after)


def _read(region: ClosedRegion, operand: Operand) -> Read:
    exact = operand.exact_index
    index = operand.index if exact is None else exact
    value = _narrow(region, operand)
    footprint = Footprint(region)
    footprint.value(value, index)
    windows = operand.windows if exact is None else {}
    moved = {var: window.at - window.before for var, window in windows.items()}
    reads = tuple((value, form.substitute(moved)) for value, form in footprint.reads)
    bare = behind_views(value, region.inputs) is not None and len(reads) == 1
    return Read(value, index, windows, operand.border, reads, bare)


def _narrow(region: ClosedRegion, operand: Operand) -> Value:
    """Integers before they were widened, as far as the region does that: their products are the
    same, and tensor cores multiply those of 8 bits. A border need not be one of them."""
    value = operand.value
    while value not in region.inputs and value.op.definition.is_conversion and not operand.border:
        inner = value.op.operands[0]
        if not _is_widened(inner.type.dtype, value.type.dtype):
            break
        value = inner
    return value


def _is_widened(narrow: DType, wide: DType) -> bool:
    """Whether every integer of the one is one of the other."""
    fits = wide.is_signed or not narrow.is_signed
    return narrow.is_integer and wide.is_integer and narrow.bits < wide.bits and fits
