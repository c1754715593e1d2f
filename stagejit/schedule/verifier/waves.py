"""Checks that dispatches may share a fork.

Input: a schedule with its waves. Output: nothing, or a VerificationError. Invariant: barriers order
no two dispatches of one wave; waves of a run are its steps in order. That barriers order all that
is in conflict, the plan's own verifier shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.errors import VerificationError
from stagejit.schedule.conflicts.hazards import before_by
from stagejit.schedule.schedule import Run, Schedule, Wave


def verify_waves(schedule: Schedule) -> None:
    """Raises VerificationError for the first fault, in loops and branches too."""
    _verify(schedule, schedule.waves)


def _verify(schedule: Schedule, waves: Mapping[Run, Sequence[Wave]]) -> None:
    plan = schedule.plan
    at = {dispatch.name: number for number, dispatch in enumerate(plan.dispatches)}
    before = before_by(plan.barriers, at)
    for run in schedule.runs:
        if [step for wave in waves[run] for step in wave.steps] != list(run.steps):
            raise VerificationError(f"plan: waves of {plan.name} have other steps than it")
        for wave in waves[run]:
            _verify_wave(wave, [at[step.dispatch.name] for step in wave.steps], before)
        for inner in (body for step in run.steps for body in step.bodies):
            _verify(inner, waves)


def _verify_wave(wave: Wave, members: Sequence[int], before: Sequence[int]) -> None:
    """members: positions of its dispatches in the plan; before: who comes before each."""
    mask = sum(1 << number for number in members)
    for step, number in zip(wave.steps, members, strict=True):
        if before[number] & mask:
            raise VerificationError(f"plan: @{step.dispatch.name} depends on a part of its wave")
        if len(members) > 1 and not step.region.has_kernel:
            raise VerificationError(f"plan: @{step.dispatch.name} has no kernel, and is in a wave")
