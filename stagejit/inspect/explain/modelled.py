"""What the kernels of a dispatch take by the model that chose them.

Input: a step of a schedule, its kernels, the machine. Output: seconds. Invariant: a model: it knows
no caches that are cold, no clock that changes, no other programs. The seconds of a kernel are those
of `Kernel.seconds`, of one core or multiprocessor, shared by as many as take part.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.codegen.generate import Generated
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.machine import CALL_SECONDS, FORK_SECONDS, Machine
from stagejit.runtime import launching
from stagejit.schedule.schedule import Step


def step_seconds(
    step: Step, kernels: Mapping[Region, Generated], target: Machine, *, alone: bool
) -> float | None:
    """Of one run; None for what has no kernels of ours. alone: on one core, beside other
    iterations."""
    made = [kernels[part].kernel for part in step.region.parts if part in kernels]
    if not made:
        return None
    return sum(kernel_seconds(kernel, target, alone=alone) for kernel in made)


def kernel_seconds(kernel: Kernel, target: Machine, *, alone: bool = False) -> float:
    """Of all items of a kernel, and of starting it."""
    if not isinstance(target, Target):  # of a GPU, whose multiprocessors share the blocks
        return target.start_seconds + kernel.seconds / max(min(target.cores, kernel.total), 1)
    if not alone and launching.launching(kernel, target)[1]:
        return FORK_SECONDS + kernel.seconds / target.cores
    return CALL_SECONDS + kernel.seconds
