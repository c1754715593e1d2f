"""Kernels of `contract` and `conv` regions: products of any batch, free and contracting dimensions,
convolutions of any layout, stride, padding, dilation and grouping.

Input: a region whose anchor is a `contract` or a `conv`, with elementwise prologues and epilogues.
Output: its kernel. Invariant: sums are kept in the accumulator type and rounded once; a window
reads its operand's border wherever it is outside.
"""

from __future__ import annotations

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cpu.contract.conv_nest import conv_nests
from stagejit.codegen.cpu.contract.emit import emit_contraction
from stagejit.codegen.cpu.contract.nest import contract_nest, without_missing
from stagejit.codegen.cpu.contract.plan import make_plan
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target


def product_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region around a product."""
    op = region.anchor_op
    moves = op.definition.is_windowed
    nests = conv_nests(op) if moves else without_missing(contract_nest(op))
    return emit_contraction([make_plan(region, nest, target) for nest in nests], target)
