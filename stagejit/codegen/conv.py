"""Kernels of `conv` regions: any layout, stride, padding, dilation and grouping.

Input: a region whose anchor is a `conv`, with elementwise prologues and epilogues. Output: its
kernel. Invariant: a window reads its operand's border wherever it is outside.
"""

from __future__ import annotations

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contract_emit import emit_contraction
from stagejit.codegen.contract_plan import make_plan
from stagejit.codegen.conv_nest import conv_nests
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target


def conv_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region around a `conv`."""
    plans = [make_plan(region, nest, target) for nest in conv_nests(region.anchor_op)]
    return emit_contraction(plans, target)
