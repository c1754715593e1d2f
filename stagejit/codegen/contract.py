"""Kernels of `contract` regions: products of any batch, free and contracting dimensions.

Input: a region whose anchor is a `contract`, with elementwise prologues and epilogues. Output: its
kernel. Invariant: sums are kept in the accumulator type and rounded once.
"""

from __future__ import annotations

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contract_emit import emit_contraction
from stagejit.codegen.contract_nest import contract_nest
from stagejit.codegen.contract_plan import make_plan
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target


def contract_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region around a `contract`."""
    return emit_contraction([make_plan(region, contract_nest(region.anchor_op), target)], target)
