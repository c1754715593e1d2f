"""Every barrier of a plan, and every element that it names, is needed: the checker says so.

Input: a plan. Output: how many plans were tried, each with one barrier less or one range shorter by
one element. Invariant: the checker accepts the plan and rejects each of the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.schedule.plans.plan import Barrier, Plan
from stagejit.schedule.verifier.plans import verify_plan


def check_mutations(plan: Plan, most: int | None = None) -> int:
    """most: so many of them are tried, at random; None for all. Plans of bodies are tried too."""
    verify_plan(plan)
    found = list(mutations(plan))
    if most is not None and len(found) > most:
        found = random.Random(len(found)).sample(found, most)
    for what, mutated in found:
        fault = _fault_of(mutated)
        assert "does not wait for" in fault or "touched later" in fault, f"{what}: {fault}\n{plan}"
    inner = [body.plan for dispatch in plan.dispatches for body in dispatch.bodies]
    return len(found) + sum(check_mutations(body, most) for body in inner)


def _fault_of(plan: Plan) -> str:
    try:
        verify_plan(plan)
    except VerificationError as fault:
        return str(fault)
    return "accepted"


def mutations(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans with one barrier less, or one range shorter by one at either end of a dimension."""
    for at, barrier in enumerate(plan.barriers):
        if barrier.hazard in ("FULL", "ORDER"):
            continue  # nothing in a plan says why these two are there
        before, after = plan.barriers[:at], plan.barriers[at + 1 :]
        yield f"no {barrier}", replace(plan, barriers=(*before, *after))
        for shorter in _shorter(barrier):
            yield f"{shorter} for {barrier}", replace(plan, barriers=(*before, shorter, *after))


def _shorter(barrier: Barrier) -> Iterator[Barrier]:
    for at, box in enumerate(barrier.ranges):
        for axis in range(len(box.sizes)):
            for low in (0, 1):
                dims = list(box.dims())
                offset, size, stride = dims[axis]
                dims[axis] = (offset + low * stride, size - 1, stride)
                rest = (*barrier.ranges[:at], Box.of(dims), *barrier.ranges[at + 1 :])
                yield replace(barrier, ranges=rest)
