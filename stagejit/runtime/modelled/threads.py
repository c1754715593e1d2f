"""The model of a CPU: when the dispatches of a schedule run, on which threads.

Input: a schedule, its kernels, a target. Output: what is on the threads from when to when; seconds
of each dispatch, and of the call. Invariant: nothing was measured. A loop that ends when its
condition fails is there with one iteration.

Note [The fork of a wave]: threads that share one kernel are woken for it, which counts as the
kernel's. A wave of several kernels may have one fork, which is the wave's: its dispatches count
without.

Note [Who decides]: before a program is made of it, a schedule is put on its threads once with
`deciding`, and each wave takes the way that is shorter; `share_forks` keeps that. From then on
waves are as decided, and take as long.

Note [Awake]: threads that have just shared something are awake. A body that is repeated begins as
it ended, after a first turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.base.decisions import Decision, path_inside
from stagejit.base.numbers import seconds_text
from stagejit.base.records import record, replace
from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.options import Options
from stagejit.runtime.modelled.kernels import Modelled, Path, copying_seconds, core_seconds
from stagejit.runtime.modelled.waves import Job, forking, in_turn, together
from stagejit.schedule.plans.turns import carried_by, counted_once, turns_of
from stagejit.schedule.schedule import Run, Schedule, Step, Wave
from stagejit.schedule.threads.waves import NAME, may_share

ONE_FORK = "one fork"


@record
class Placed:
    """A kernel, a loop, a branch or what others compute, on `lanes` threads from `lane` on. XLA's
    is the lane behind the last thread."""

    step: Step
    lane: int
    lanes: int
    start: float
    took: Modelled


@record
class Turn:
    """A wave. shared: how threads share it, in words."""

    steps: tuple[Step, ...]
    shared: str
    start: float
    end: float


@dataclass
class OnThreads:
    """A schedule on its threads. waves: those of all runs, of bodies too. alone: whether one thread
    runs all of it. unknown: seconds that stand for what nobody knows the time of, so that a picture
    has room for it. deciding: whether waves may share a fork, and which do is decided here: see
    `decided` and `decisions`. path: of the body that it is. since: from the last join to its
    begin."""

    schedule: Schedule
    waves: Mapping[Run, Sequence[Wave]]
    kernels: Mapping[Region, Generated]
    target: Target
    alone: bool = False
    unknown: float = 0.0
    deciding: bool = False
    path: str = ""
    since: float = math.inf
    placed: list[Placed] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    inner: dict[tuple[str, int], OnThreads] = field(default_factory=dict)
    dispatches: dict[str, Modelled] = field(default_factory=dict)
    decided: dict[Run, tuple[Wave, ...]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    now: float = 0.0

    def run(self) -> OnThreads:
        for segment in self.schedule.segments:
            if isinstance(segment, Run):
                waves = tuple(self._wave(wave) for wave in self.waves[segment])
                self.decided[segment] = waves
            else:
                start, self.since = self.now, math.inf
                self._one(segment.step, self.lanes, 1, Modelled(self.unknown, False))
                self.turns.append(Turn((segment.step,), "XLA", start, self.now))
        return self

    @property
    def lanes(self) -> int:
        return 1 if self.alone else self.target.cores

    @property
    def whole(self) -> Modelled:
        """Of the call, or of one turn of the body."""
        return Modelled(self.now, all(took.is_known for took in self.dispatches.values()))

    def paths(self, around: Path = ()) -> Iterator[tuple[Path, Modelled]]:
        """The time of each dispatch, those of loops and branches too."""
        for name, took in self.dispatches.items():
            yield (*around, name), took
        for at, inner in self.inner.items():
            yield from inner.paths((*around, *at))

    def _wave(self, wave: Wave) -> Wave:
        """As it is run."""
        start, first = self.now, wave.steps[0]
        if first.region.has_kernel:
            wave, how = self._kernels(wave)
        else:
            how = "one thread"
            self._control(first)
        self.turns.append(Turn(wave.steps, how, start, self.now))
        return wave

    def _kernels(self, wave: Wave) -> tuple[Wave, str]:
        """The wave, and how threads share it."""
        parts = [(step, part) for step in wave.steps for part in step.region.parts]
        timed = [self._part(part) for _, part in parts]
        jobs = [Job(took.seconds, threads) for took, threads in timed]
        one, other = (way(jobs, self.lanes, self.since) for way in (in_turn, together))
        if self.deciding and len(jobs) > 1 and self.lanes > 1 and self._may_share(wave):
            wave = replace(wave, shared=other.seconds < one.seconds)
            self._decide(wave, len(jobs), one.seconds, other.seconds)
        laid = other if wave.shared else one
        took = {step.dispatch.name: Modelled(0.0) for step in wave.steps}
        if wave.shared:
            times = [job.seconds for job in jobs]
        else:
            times = [bar.seconds for bar in laid.bars]
        for (step, _), (known, _), seconds in zip(parts, timed, times, strict=True):
            before = took[step.dispatch.name]
            took[step.dispatch.name] = Modelled(
                before.seconds + seconds, before.is_known and known.is_known
            )
        self.dispatches |= took
        for bar in laid.bars:
            known = Modelled(bar.seconds, timed[bar.job][0].is_known)
            self._place(parts[bar.job][0], bar.lane, bar.lanes, self.now + bar.start, known)
        self.now, self.since = self.now + laid.seconds, laid.since
        if wave.shared:
            return wave, ONE_FORK
        forks = any(job.shared for job in jobs)
        return wave, "all threads share each of its kernels" if forks else "one thread"

    def _may_share(self, wave: Wave) -> bool:
        """Whether all kernels are over with one launch: the passes of a kernel are ordered."""
        parts = [part for step in wave.steps for part in step.region.parts]
        return all(len(self.kernels[part].kernel.passes) == 1 for part in parts)

    def _decide(self, wave: Wave, kernels: int, one: float, other: float) -> None:
        first, last = wave.steps[0].region, wave.steps[-1].region
        name = f"@{first.name} {first.kind}"
        name += f" to @{last.name} {last.kind}" if last is not first else ""
        waking = forking(self.since)
        if one <= waking:
            reason = f"take less than the {seconds_text(waking)} in which other threads are woken"
        else:
            reason = f"take {seconds_text(other)} if threads are woken once for all of them, "
            reason += f"{seconds_text(one)} one after the other"
        reason = f"{kernels} kernels {reason}"
        decision = Decision(NAME, name, wave.shared, reason, first.loc)
        self.decisions.append(decision.inside(self.path))

    def _part(self, part: Region) -> tuple[Modelled, int]:
        """Of one kernel without its fork, and how many threads share it."""
        if part not in self.kernels:
            return Modelled(self.unknown, False), 1
        seconds, threads = core_seconds(self.kernels[part].kernel, self.target, alone=self.alone)
        return Modelled(seconds), threads

    def _control(self, step: Step) -> None:
        """A loop: all of its iterations; a branch: the longest; what others compute: unknown."""
        bodies = [
            (body, self._body(step, number)) for number, body in enumerate(step.dispatch.bodies)
        ]
        if not bodies:
            self.since = math.inf
            self._one(step, 0, 1, Modelled(self.unknown, False))
            return
        wholes = [made.whole for _, made in bodies]
        known = all(whole.is_known for whole in wholes)
        if step.dispatch.kind == "branch":
            self.since = max(made.since for _, made in bodies)
            longest = max(whole.seconds for whole in wholes)
            copying = copying_seconds(carried_by(step.dispatch), self.target)
            self._one(step, 0, 1, Modelled(longest + copying, known))
            return
        shared = any(body.threads > 1 for body, _ in bodies)
        seconds = (forking(self.since) if shared else 0.0) + sum(
            counted_once(turns_of(step.dispatch, number))
            * made.whole.seconds
            / max(body.threads, 1)
            for number, (body, made) in enumerate(bodies)
        )
        seconds += copying_seconds(carried_by(step.dispatch), self.target)
        self.since = 0.0 if shared else min(made.since for _, made in bodies)
        known &= all(body.trip is not None for body, _ in bodies)
        self._one(step, 0, self.lanes if shared else 1, Modelled(seconds, known))

    def _body(self, step: Step, number: int) -> OnThreads:
        """On its threads; see Note [Awake]."""
        schedule, body = step.bodies[number], step.dispatch.bodies[number]
        path = path_inside(self.path, step.dispatch.name, body.plan.name)
        alone = self.alone or body.threads > 1

        def begun(since: float) -> OnThreads:
            return OnThreads(
                schedule, self.waves, self.kernels, self.target, alone, self.unknown,
                self.deciding, path, since,
            ).run()  # fmt: skip

        made = begun(math.inf)
        if made.since < math.inf and step.dispatch.kind != "branch":
            made = begun(made.since)
        self.inner[step.dispatch.name, number] = made
        self.decided |= made.decided
        self.decisions += made.decisions
        return made

    def _one(self, step: Step, lane: int, lanes: int, took: Modelled) -> None:
        self._place(step, lane, lanes, self.now, took)
        self.dispatches[step.dispatch.name] = took
        self.now += took.seconds

    def _place(self, step: Step, lane: int, lanes: int, start: float, took: Modelled) -> None:
        self.placed.append(Placed(step, lane, lanes, start, took))


def share_forks(
    schedule: Schedule, kernels: Mapping[Region, Generated], target: Target, options: Options
) -> tuple[Schedule, list[Decision]]:
    """The schedule with its waves as they run, and a decision for each of several kernels."""
    several = any(
        len(wave.steps) > 1 or len(wave.steps[0].region.parts) > 1
        for waves in schedule.waves.values()
        for wave in waves
    )
    if not several or not may_share(options, target):
        return schedule, []
    on = OnThreads(schedule, schedule.waves, kernels, target, deciding=True).run()
    return replace(schedule, waves=on.decided), on.decisions
