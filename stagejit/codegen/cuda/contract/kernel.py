"""Kernels of `contract` and `conv` regions for a GPU.

Input: a region around a product or a convolution. Output: its kernel: of each of its nests, in
turn. Invariant: each stored element is evaluated once, from a finished sum in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.walk import nests_of
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.contract.plan import Plan, plan_of
from stagejit.codegen.cuda.contract.single import SingleSums
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.nest.tree import Parallel

_THREADS = 256


def product_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region around a product."""
    plans = [plan_of(region, nest) for nest in nests_of(region)]
    flops = sum(2.0 * plan.sums * plan.steps for plan in plans)
    seconds = flops / device.peak_flops + region_seconds(region, device)

    def tree(plan: Plan, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        return SingleSums(plan, emitter, memory).tree()

    return grid_kernel(region, device, plans, tree, seconds, threads=_THREADS)
