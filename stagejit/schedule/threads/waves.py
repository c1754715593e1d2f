"""Which dispatches may share a fork and its join: waves.

Input: a schedule, a machine, options. Output: the steps of each run in the same order, in `Wave`s.
Invariant: no two dispatches of a wave depend on each other, directly or through others, as the
plan's barriers say. Which waves do share one is decided when their kernels are known, see
`runtime/modelled`.

Note [Waves]: neighbours that do not depend on each other need no barrier between them, so their
chunks can lie in one parallel region, however small each of them is: an optimizer's step over
hundreds of parameters is one fork. What a dispatch alone is too short for, many are worth together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stagejit.base.machine import Machine
from stagejit.options import Options
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.schedule import Run, Schedule, Step, Wave

NAME = "share-forks"


def may_share(options: Options, machine: Machine) -> bool:
    """Of a GPU streams share, see runtime/cuda."""
    return options.enabled(NAME) and machine.side_by_side


def waves_of(
    schedule: Schedule, options: Options, machine: Machine
) -> Iterator[tuple[Run, tuple[Wave, ...]]]:
    """Of a function, its loops and branches."""
    share = may_share(options, machine) and not schedule.plan.sizes
    for run in schedule.runs:
        together = _independent(run.steps, schedule.plan) if share else ([s] for s in run.steps)
        yield run, tuple(Wave(tuple(steps)) for steps in together)
        for inner in (body for step in run.steps for body in step.bodies):
            yield from waves_of(inner, options, machine)


def _independent(steps: Iterable[Step], plan: Plan) -> list[list[Step]]:
    """Neighbours that may run at the same time; loops, branches and calls stay alone."""
    waits, groups = _waits(plan), list[list[Step]]()
    names: set[str] = set()  # of the last group, as far as others may join it
    for step in steps:
        name, joins = step.dispatch.name, step.region.has_kernel
        if joins and names and not names & waits.get(name, set()):
            groups[-1].append(step)
            names.add(name)
        else:
            groups.append([step])
            names = {name} if joins else set()
    return groups


def _waits(plan: Plan) -> dict[str, set[str]]:
    """For each dispatch those that a barrier orders right before it. Neighbours of a run between
    which none is are independent: a chain of barriers between two of them would lead through the
    dispatches in between."""
    waits: dict[str, set[str]] = {}
    for barrier in plan.barriers:
        waits.setdefault(barrier.dst, set()).add(barrier.src)
    return waits
