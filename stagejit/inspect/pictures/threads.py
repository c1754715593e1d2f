"""The timeline of a CPU: waves of dispatches on threads, and what each wave waits for.

Input: a schedule, its kernels, a target. Output: `Gantt`s, and a row for each wave. Invariant:
times are those of the model, see `modelled/threads.py`; what nobody knows the time of is drawn, but
is no part of what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stagejit.base.numbers import counted, seconds_text
from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.inspect.pictures.dispatches import barrier_text, copies_of
from stagejit.inspect.pictures.drawing.gantt import Bar, Frame, Gantt, Join
from stagejit.inspect.pictures.words import color_of, line_of
from stagejit.runtime.modelled.kernels import Modelled
from stagejit.runtime.modelled.threads import ONE_FORK, OnThreads, Placed
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.schedule import Schedule, Step

_DRAWN_SECONDS = 5e-6  # for what nobody knows the time of


@dataclass(frozen=True)
class Row:
    """A wave, for a table."""

    number: int
    dispatches: tuple[str, ...]
    shared: str
    seconds: float
    waits: tuple[str, ...]


@dataclass(frozen=True)
class Waves:
    """A schedule, or that of a body. drawn: with room for what nobody knows; known: without."""

    drawn: OnThreads
    known: OnThreads

    @staticmethod
    def of(schedule: Schedule, kernels: Mapping[Region, Generated], target: Target) -> Waves:
        drawn, known = (
            OnThreads(schedule, schedule.waves, kernels, target, unknown=unknown).run()
            for unknown in (_DRAWN_SECONDS, 0.0)
        )
        return Waves(drawn, known)

    @property
    def plan(self) -> Plan:
        return self.known.schedule.plan

    @property
    def whole(self) -> Modelled:
        return self.known.whole

    @property
    def rows(self) -> tuple[Row, ...]:
        waits = _waits(self.plan)
        return tuple(
            Row(
                number,
                _names(turn.steps),
                turn.shared,
                turn.end - turn.start,
                _told(turn.steps, waits),
            )
            for number, turn in enumerate(self.known.turns)
        )

    def gantt(self) -> Gantt:
        made = self.drawn
        names = [f"thread {at}" for at in range(made.lanes)]
        if any(placed.lane >= made.lanes for placed in made.placed):
            names.append("XLA")
        bars = tuple(self._bar(placed) for placed in made.placed)
        frames = tuple(self._frames())
        joins = tuple(self._joins())
        return Gantt(tuple(names), bars, joins, frames=frames, copies=copies_of(self.plan))

    def _frames(self) -> Iterator[Frame]:
        """Around what shares a fork."""
        for turn in self.drawn.turns:
            if turn.shared == ONE_FORK:
                kernels = sum(len(step.region.parts) for step in turn.steps)
                names = ", ".join(_names(turn.steps))
                tip = (names, "threads are woken once, and share all of it")
                yield Frame(turn.start, turn.end, f"one fork: {counted(kernels, 'kernel')}", tip)

    def _joins(self) -> Iterator[Join]:
        waits = _waits(self.plan)
        for turn in self.drawn.turns:
            if turn.start > 0:
                found = _told(turn.steps, waits)
                text = f"waits for {found[0]}" if found else ""
                names = ", ".join(_names(turn.steps))
                tip = (f"{names} waits for", *(found or ("nothing",)))
                yield Join(turn.start, turn.end, text, tip)

    def _bar(self, placed: Placed) -> Bar:
        dispatch = placed.step.dispatch
        trip = dispatch.bodies[0].trip if dispatch.kind == "loop" else None
        text = f"@{dispatch.name}" + (f" × {trip}" if trip else "")
        took = self.known.dispatches[dispatch.name]
        time = f"{seconds_text(took.seconds)} by the model"
        if not took.is_known:
            time = "nobody knows how long"
        elif len(placed.step.region.parts) > 1:
            time = f"{seconds_text(placed.took.seconds)} of its {time}"
        tip = (f"{dispatch.kind} ({', '.join(dispatch.ops)})", time, line_of(dispatch.loc))
        return Bar(
            dispatch.name,
            placed.lane,
            placed.lanes,
            placed.start,
            placed.start + placed.took.seconds,
            text,
            tip,
            color_of(dispatch.kind),
            took.is_known,
        )

    def inner(self) -> Iterator[tuple[Step, int, Waves]]:
        """The bodies of its loops and branches, each with its number."""
        for step in self.known.schedule.steps():
            for number in range(len(step.dispatch.bodies)):
                at = step.dispatch.name, number
                yield step, number, Waves(self.drawn.inner[at], self.known.inner[at])


def _waits(plan: Plan) -> Mapping[str, list[str]]:
    """For each dispatch what it waits for."""
    waits: dict[str, list[str]] = {}
    for barrier in plan.barriers:
        waits.setdefault(barrier.dst, []).append(f"@{barrier.src}: {barrier_text(barrier)}")
    return waits


def _names(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(f"@{step.dispatch.name}" for step in steps)


def _told(steps: tuple[Step, ...], waits: Mapping[str, list[str]]) -> tuple[str, ...]:
    return tuple(text for step in steps for text in waits.get(step.dispatch.name, ()))
