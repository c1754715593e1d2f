"""The timeline of a CPU: waves of dispatches on threads, and what each wave waits for.

Input: a schedule, its kernels, a target. Output: `Gantt`s, and a row for each wave. Invariant:
times are those of the model by which the compiler decides; nothing was measured. A loop that ends
when its condition fails is there with one iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.inspect.pictures.dispatches import barrier_text, copies_of
from stagejit.inspect.pictures.gantt import Bar, Gantt, Join
from stagejit.inspect.pictures.words import color_of, line_of
from stagejit.machine import FORK_SECONDS
from stagejit.numbers import seconds_text
from stagejit.runtime.launching import launching
from stagejit.schedule.schedule import Run, Schedule, Step, Wave

_UNKNOWN = 2e-6  # for what nobody knows the time of, where nothing else is known either


@dataclass(frozen=True)
class Row:
    """A wave, for a table."""

    number: int
    dispatches: tuple[str, ...]
    shared: str
    seconds: float
    waits: tuple[str, ...]


@dataclass
class Waves:
    """A schedule on its threads. waves: those of all runs, of bodies too."""

    schedule: Schedule
    waves: Mapping[Run, Sequence[Wave]]
    kernels: Mapping[Region, Generated]
    target: Target
    alone: bool = False  # whether one thread runs all of it
    bars: list[Bar] = field(default_factory=list)
    joins: list[Join] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    now: float = 0.0

    def run(self) -> Waves:
        waits: dict[str, list[str]] = {}
        for barrier in self.schedule.plan.barriers:
            text = f"@{barrier.src}: {barrier_text(barrier)}"
            waits.setdefault(barrier.dst, []).append(text)
        for segment in self.schedule.segments:
            if isinstance(segment, Run):
                for wave in self.waves[segment]:
                    self._wave(wave, waits)
            else:
                self._delegated(segment.step, waits)
        return self

    @property
    def lanes(self) -> int:
        return 1 if self.alone else self.target.cores

    def gantt(self) -> Gantt:
        names = [f"thread {at}" for at in range(self.lanes)]
        if any(bar.lane >= self.lanes for bar in self.bars):
            names.append("XLA")
        copies = copies_of(self.schedule.plan)
        return Gantt(tuple(names), tuple(self.bars), tuple(self.joins), copies=copies)

    def _wave(self, wave: Wave, waits: Mapping[str, Sequence[str]]) -> None:
        start = self.now
        parallel = self._shared(wave.steps) if wave.shared else self._in_turn(wave.steps)
        self._end_of_wave(wave.steps, start, parallel, waits)

    def _end_of_wave(
        self, steps: Sequence[Step], start: float, shared: str, waits: Mapping[str, Sequence[str]]
    ) -> None:
        names = tuple(f"@{step.dispatch.name}" for step in steps)
        found = tuple(text for step in steps for text in waits.get(step.dispatch.name, ()))
        self.rows.append(Row(len(self.rows), names, shared, self.now - start, found))
        if start > 0:
            text = f"waits for {found[0]}" if found else ""
            tip = (f"{', '.join(names)} waits for", *(found or ("nothing",)))
            self.joins.append(Join(start, self.now, text, tip))

    def _in_turn(self, steps: Sequence[Step]) -> str:
        forks = 0
        for step in steps:
            if not step.region.has_kernel:
                self._control(step)
                continue
            for part in step.region.parts:
                seconds, parallel = self._time(part)
                lanes = self.lanes if parallel else 1
                self._bar(step, 0, lanes, self.now, seconds / lanes + FORK_SECONDS * parallel)
                forks += parallel
        return "all threads share each of its kernels" if forks else "one thread"

    def _shared(self, steps: Sequence[Step]) -> str:
        """One fork: chunks go to whoever is ready; here whole kernels do, or equal parts."""
        ready = [self.now + FORK_SECONDS] * self.lanes
        for step in steps:
            for part in step.region.parts:
                seconds, parallel = self._time(part)
                if parallel:
                    for lane in range(self.lanes):
                        self._bar(step, lane, 1, ready[lane], seconds / self.lanes)
                        ready[lane] += seconds / self.lanes
                else:
                    lane = min(range(self.lanes), key=ready.__getitem__)
                    self._bar(step, lane, 1, ready[lane], seconds)
                    ready[lane] += seconds
        self.now = max(ready)
        return "one fork"

    def _time(self, part: Region) -> tuple[float, bool]:
        """Seconds on one core, and whether threads share them."""
        if part not in self.kernels:
            return _UNKNOWN, False
        kernel = self.kernels[part].kernel
        return kernel.seconds, not self.alone and launching(kernel, self.target)[1]

    def _control(self, step: Step) -> None:
        """A loop: all of its iterations; a branch: the longest; what others compute: unknown."""
        inner = []
        for body, schedule in zip(step.dispatch.bodies, step.bodies, strict=True):
            alone = self.alone or body.threads > 1
            made = Waves(schedule, self.waves, self.kernels, self.target, alone).run()
            inner.append((body, made.now))
        if not inner:
            self._bar(step, 0, 1, self.now, _UNKNOWN, known=False)
            return
        known = all(body.trip is not None for body, _ in inner)
        if step.dispatch.kind == "branch":
            seconds = max(seconds for _, seconds in inner)
        else:
            seconds = sum((b.trip or 1) * seconds / max(b.threads, 1) for b, seconds in inner)
        lanes = self.lanes if any(body.threads > 1 for body, _ in inner) else 1
        self._bar(step, 0, lanes, self.now, seconds, known=known)

    def _delegated(self, step: Step, waits: Mapping[str, Sequence[str]]) -> None:
        start = self.now
        self._bar(step, self.lanes, 1, start, 5 * _UNKNOWN, known=False)
        self._end_of_wave([step], start, "XLA", waits)

    def _bar(
        self, step: Step, lane: int, lanes: int, start: float, seconds: float, *, known: bool = True
    ) -> None:
        dispatch = step.dispatch
        trip = dispatch.bodies[0].trip if dispatch.kind == "loop" else None
        text = f"@{dispatch.name}" + (f" × {trip}" if trip else "")
        time = f"{seconds_text(seconds)}, modelled" if known else "nobody knows how long"
        tip = (f"{dispatch.kind} ({', '.join(dispatch.ops)})", time, line_of(dispatch.loc))
        color = color_of(dispatch.kind)
        self.bars.append(
            Bar(dispatch.name, lane, lanes, start, start + seconds, text, tip, color, known)
        )
        if lanes == self.lanes or lane == 0 or lane >= self.lanes:
            self.now = max(self.now, start + seconds)


def inner_of(made: Waves) -> Iterator[tuple[Step, int, Waves]]:
    """The bodies of its loops and branches, each with its number."""
    for step in made.schedule.steps():
        for number, (body, schedule) in enumerate(
            zip(step.dispatch.bodies, step.bodies, strict=True)
        ):
            alone = made.alone or body.threads > 1
            yield step, number, Waves(schedule, made.waves, made.kernels, made.target, alone).run()
