"""Which dispatches share a fork and its join: waves.

Input: a schedule, a machine, options. Output: the steps of each run in the same order, in `Wave`s,
and a `Decision` for each of several kernels. Invariant: no two dispatches of a wave depend on each
other, directly or through others, as the plan's barriers say.

Note [Waves]: neighbours that do not depend on each other need no barrier between them, so their
chunks can lie in one parallel region, however small each of them is: an optimizer's step over
hundreds of parameters is one fork. What a dispatch alone is too short for, many are worth together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stagejit.decisions import Decision, path_inside
from stagejit.machine import FORK_SECONDS, Machine
from stagejit.options import Options
from stagejit.schedule.plan import Plan
from stagejit.schedule.schedule import Run, Schedule, Step, Wave
from stagejit.schedule.threads.seconds import kernel_seconds

NAME = "share-forks"


@dataclass
class Waves:
    """Those of a function, its loops and branches."""

    machine: Machine
    options: Options
    found: dict[Run, tuple[Wave, ...]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def add(self, schedule: Schedule, path: str = "", *, alone: bool = False) -> None:
        """path: of the body that it is of. alone: one thread runs it, beside others with other
        iterations of a loop around it."""
        plan = schedule.plan
        share = self.options.enabled(NAME) and not alone and not plan.sizes
        share = share and self.machine.side_by_side  # of a GPU streams share, see runtime/cuda
        for run in (part for part in schedule.segments if isinstance(part, Run)):
            groups = _independent(run.steps, plan) if share else [[step] for step in run.steps]
            self.found[run] = tuple(self._wave(group, path, share=share) for group in groups)
            for step in run.steps:
                for body, inner in zip(step.dispatch.bodies, step.bodies, strict=True):
                    deeper = path_inside(path, step.dispatch.name, body.plan.name)
                    self.add(inner, deeper, alone=alone or body.threads > 1)

    def _wave(self, steps: Sequence[Step], path: str, *, share: bool) -> Wave:
        kernels = sum(len(step.region.parts) for step in steps if step.region.has_kernel)
        if not share or kernels < 2:
            return Wave(tuple(steps), shared=False)
        shared, reason = self._pays(
            [seconds for step in steps for seconds in kernel_seconds(step, self.machine)]
        )
        first, last = steps[0].region, steps[-1].region
        name = f"@{first.name} {first.kind}"
        name += f" to @{last.name} {last.kind}" if last is not first else ""
        decision = Decision(NAME, name, shared, f"{kernels} kernels: {reason}", first.loc)
        self.decisions.append(decision.inside(path))
        return Wave(tuple(steps), shared)

    def _pays(self, seconds: Sequence[float]) -> tuple[bool, str]:
        """Whether one fork pays for kernels that take so long on one core."""
        short = [each for each in seconds if each <= FORK_SECONDS]
        together = max(max(short, default=0.0), sum(short) / self.machine.cores)
        gain, least = sum(short) - together, FORK_SECONDS / 2
        if gain > least:  # what a single launch gains on two cores where forking begins to pay
            taken = f"of the {1e6 * sum(short):.3g} that they take one after the other"
            return True, f"one fork saves {1e6 * gain:.3g} us {taken}"
        if len(short) < len(seconds):
            return True, "some of them use several cores anyway"
        return False, f"one fork would save less than {1e6 * least:.3g} us"


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
