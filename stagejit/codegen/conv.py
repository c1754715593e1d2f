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
from stagejit.errors import InternalError


def conv_kernel(region: ClosedRegion, target: Target) -> Kernel:
    """The kernel of a region around a `conv`."""
    if region.anchor is None:
        raise InternalError(f"{region.name} has no anchor", step="codegen", loc=region.loc)
    plans = [make_plan(region, nest, target) for nest in conv_nests(region.anchor)]
    return emit_contraction(plans, target)
