"""The model of a CPU: when the dispatches of a schedule run, on which threads.

Input: a schedule, its kernels, a target. Output: what is on the threads from when to when; seconds
of each dispatch, and of the call. Invariant: nothing was measured. A loop that ends when its
condition fails is there with one iteration.

Note [The fork of a wave]: threads that share one kernel are woken for it, which counts as the
kernel's. A wave of several kernels has one fork, which is the wave's: its dispatches count without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.inspect.modelled.kernels import Modelled, Path, core_seconds
from stagejit.machine import FORK_SECONDS
from stagejit.schedule.schedule import Run, Schedule, Step, Wave


@dataclass(frozen=True)
class Placed:
    """A kernel, a loop, a branch or what others compute, on `lanes` threads from `lane` on. XLA's
    is the lane behind the last thread."""

    step: Step
    lane: int
    lanes: int
    start: float
    took: Modelled


@dataclass(frozen=True)
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
    has room for it."""

    schedule: Schedule
    waves: Mapping[Run, Sequence[Wave]]
    kernels: Mapping[Region, Generated]
    target: Target
    alone: bool = False
    unknown: float = 0.0
    placed: list[Placed] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    inner: dict[tuple[str, int], OnThreads] = field(default_factory=dict)
    dispatches: dict[str, Modelled] = field(default_factory=dict)
    now: float = 0.0

    def run(self) -> OnThreads:
        for segment in self.schedule.segments:
            if isinstance(segment, Run):
                for wave in self.waves[segment]:
                    start = self.now
                    how = self._shared(wave.steps) if wave.shared else self._in_turn(wave.steps)
                    self.turns.append(Turn(wave.steps, how, start, self.now))
            else:
                start = self.now
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

    def _in_turn(self, steps: Sequence[Step]) -> str:
        forks = False
        for step in steps:
            if not step.region.has_kernel:
                self._control(step)
                continue
            seconds, known = 0.0, True
            for part in step.region.parts:
                took, shared = self._part(part)
                took = Modelled(took.seconds + FORK_SECONDS * shared, took.is_known)
                self._place(step, 0, self.lanes if shared else 1, self.now, took)
                self.now += took.seconds
                seconds, known, forks = (
                    seconds + took.seconds,
                    known & took.is_known,
                    forks | shared,
                )
            self.dispatches[step.dispatch.name] = Modelled(seconds, known)
        return "all threads share each of its kernels" if forks else "one thread"

    def _shared(self, steps: Sequence[Step]) -> str:
        """One fork: chunks go to whoever is ready; here whole kernels do, or equal parts."""
        ready = [self.now + FORK_SECONDS] * self.lanes
        for step in steps:
            seconds, known = 0.0, True
            for part in step.region.parts:
                took, shared = self._part(part)
                free = min(range(self.lanes), key=ready.__getitem__)
                for lane in range(self.lanes) if shared else [free]:
                    self._place(step, lane, 1, ready[lane], took)
                    ready[lane] += took.seconds
                seconds, known = seconds + took.seconds, known & took.is_known
            self.dispatches[step.dispatch.name] = Modelled(seconds, known)
        self.now = max(ready)
        return "one fork"

    def _part(self, part: Region) -> tuple[Modelled, bool]:
        """Of one kernel without its fork, and whether threads share it."""
        if part not in self.kernels:
            return Modelled(self.unknown, False), False
        seconds, shared = core_seconds(self.kernels[part].kernel, self.target, alone=self.alone)
        return Modelled(seconds), shared

    def _control(self, step: Step) -> None:
        """A loop: all of its iterations; a branch: the longest; what others compute: unknown."""
        inner = []
        for number, schedule in enumerate(step.bodies):
            body = step.dispatch.bodies[number]
            alone = self.alone or body.threads > 1
            made = OnThreads(
                schedule, self.waves, self.kernels, self.target, alone, self.unknown
            ).run()
            self.inner[step.dispatch.name, number] = made
            inner.append((body, made.whole))
        if not inner:
            self._one(step, 0, 1, Modelled(self.unknown, False))
            return
        known = all(whole.is_known for _, whole in inner)
        if step.dispatch.kind == "branch":
            self._one(step, 0, 1, Modelled(max(whole.seconds for _, whole in inner), known))
            return
        shared = any(body.threads > 1 for body, _ in inner)
        seconds = FORK_SECONDS * shared + sum(
            (1 if body.trip is None else body.trip) * whole.seconds / max(body.threads, 1)
            for body, whole in inner
        )
        known &= all(body.trip is not None for body, _ in inner)
        self._one(step, 0, self.lanes if shared else 1, Modelled(seconds, known))

    def _one(self, step: Step, lane: int, lanes: int, took: Modelled) -> None:
        self._place(step, lane, lanes, self.now, took)
        self.dispatches[step.dispatch.name] = took
        self.now += took.seconds

    def _place(self, step: Step, lane: int, lanes: int, start: float, took: Modelled) -> None:
        self.placed.append(Placed(step, lane, lanes, start, took))
