"""What a policy for products has to know of one nest of a region.

Input: a region, a settled nest. Output: a `Plan`. Invariant: plain data; nothing is chosen here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.sources import Source, source_of
from stagejit.codegen.contraction.walk import NestWalk
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index


@dataclass(frozen=True)
class Plan:
    """`indices[i]` and `offsets[i]` belong to `region.stores[i]`: the index of the stored value,
    and its place in memory. reads: of memory, operands and what the stores need. sources: left and
    right."""

    region: ClosedRegion
    nest: Nest
    sources: tuple[Source, Source]
    indices: tuple[Index, ...]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]

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
    sources = source_of(region, nest.left), source_of(region, nest.right)
    reads = tuple(walk.footprint.reads)
    return Plan(region, nest, sources, walk.indices, walk.offsets, reads)
