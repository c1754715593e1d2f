"""How long dispatches take on one core, as far as their sizes say.

Input: a step of a schedule, a machine. Output: seconds. Invariant: numbers of the machine alone
tell two machines apart.
"""

from __future__ import annotations

from stagejit.base.machine import CALL_SECONDS, Machine
from stagejit.dispatch.regions import Region
from stagejit.schedule.schedule import Step


def step_seconds(step: Step, machine: Machine) -> float:
    """Of a dispatch that has no bodies."""
    return sum(kernel_seconds(step, machine))


def kernel_seconds(step: Step, machine: Machine) -> list[float]:
    """Of each part of such a dispatch: its kernel, then those of its borders."""
    parts = step.region.parts
    if len(parts) == 1:
        moved = [step.dispatch.nbytes]
    else:
        stored = iter(step.stored)
        moved = [sum(next(stored).nbytes for _ in part.stores) for part in parts]
        moved[0] += sum(access.nbytes for access in step.dispatch.reads)
    return [
        max(_flops_seconds(part, machine), nbytes / machine.core_bandwidth) + CALL_SECONDS
        for part, nbytes in zip(parts, moved, strict=True)
    ]


def _flops_seconds(region: Region, machine: Machine) -> float:
    """Only products multiply and add at once."""
    seconds = 0.0
    for op in region.ops:
        known = op.definition
        if known.is_product:
            seconds += known.flops(op) / machine.peak_flops
        else:
            elements = sum(result.type.size for result in op.results)
            each = known.element_flops(op) * elements
            seconds += 2 * max(known.flops(op), each) / machine.peak_flops
    return seconds
