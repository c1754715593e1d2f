"""The timeline of a GPU: dispatches on streams, and events between them.

Input: a CUDA program, its kernels. Output: a `Gantt` of each level, and a row for each dispatch.
Invariant: order and waiting are those of the program; times are those of the model by which the
compiler decides, with the time that each launch takes. Nothing was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.codegen.cuda.occupancy import LAUNCH_SECONDS
from stagejit.inspect.pictures.dispatches import copies_of
from stagejit.inspect.pictures.gantt import Bar, Gantt, Link
from stagejit.inspect.pictures.words import color_of, line_of
from stagejit.numbers import seconds_text
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    Call,
    CudaProgram,
    Delegate,
    Dispatched,
    Launch,
    Record,
    Step,
    Wait,
    While,
    bodies,
)
from stagejit.runtime.program_steps import Loop
from stagejit.schedule.plan import Dispatch, Plan

_HOST_SECONDS = 20e-6  # drawn for what the host does in between: a round trip, at least


@dataclass(frozen=True)
class Row:
    """A dispatch, for a table."""

    name: str
    stream: int
    launches: int
    seconds: float
    waits: tuple[str, ...]


@dataclass
class Streams:
    """One level of a program: the steps of a function, or of a body."""

    plan: Plan
    seconds: Mapping[str, float]
    bars: list[Bar] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    _ready: dict[int, float] = field(default_factory=dict)  # when what is on a stream is done
    _last: dict[int, str] = field(default_factory=dict)  # what is on it
    _events: dict[int, tuple[int, float, str]] = field(default_factory=dict)
    _waits: dict[int, list[str]] = field(default_factory=dict)

    def run(self, steps: Sequence[Step]) -> Streams:
        dispatches = {dispatch.name: dispatch for dispatch in self.plan.dispatches}
        for step in steps:
            match step:
                case Record(stream, event):
                    done = self._ready.get(stream, 0.0), self._last.get(stream, "the start")
                    self._events[event] = (stream, *done)
                case Wait(stream, event):
                    self._wait(stream, event)
                case Dispatched(name, stream, inner):
                    self._dispatch(dispatches.get(name), name, stream, inner)
                case _:
                    self._ready[0] = self._ready.get(0, 0.0) + self._time([step])
        return self

    def gantt(self) -> Gantt:
        streams = max((bar.lane for bar in self.bars), default=0) + 1
        names = tuple(f"stream {number}" for number in range(streams))
        copies = copies_of(self.plan)
        return Gantt(names, tuple(self.bars), links=tuple(self.links), copies=copies)

    def _wait(self, stream: int, event: int) -> None:
        source, done, last = self._events.get(event, (stream, 0.0, "the start"))
        ready = self._ready[stream] = max(self._ready.get(stream, 0.0), done)
        tip = (f"stream {stream} waits for event {event}", f"stream {source} was at {last}")
        self.links.append(Link(source, done, stream, ready, tip))
        self._waits.setdefault(stream, []).append(f"event {event} of stream {source}, after {last}")

    def _dispatch(
        self, dispatch: Dispatch | None, name: str, stream: int, steps: Sequence[Step]
    ) -> None:
        start, seconds = self._ready.get(stream, 0.0), self._time(steps)
        known = not any(isinstance(step, Call | Delegate | While) for step in _all(steps))
        waits = tuple(self._waits.pop(stream, ()))
        launches = sum(isinstance(step, Launch) for step in _all(steps))
        tip = [f"stream {stream}, {launches} launches, {seconds_text(seconds)} by the model"]
        if not known:
            tip.append("at least: what the host does, or how often, is not known")
        color = "gray"
        if dispatch is not None:
            color = color_of(dispatch.kind)
            tip += [f"{dispatch.kind} ({', '.join(dispatch.ops)})", line_of(dispatch.loc)]
        tip += [f"waits for {text}" for text in waits]
        self.bars.append(
            Bar(name, stream, 1, start, start + seconds, f"@{name}", tuple(tip), color, known)
        )
        self.rows.append(Row(name, stream, launches, seconds, waits))
        self._ready[stream], self._last[stream] = start + seconds, f"@{name}"

    def _time(self, steps: Sequence[Step]) -> float:
        """Of steps one after the other."""
        total = 0.0
        for step in steps:
            match step:
                case Launch(kernel=kernel):
                    total += self.seconds.get(kernel, 0.0) + LAUNCH_SECONDS
                case Loop(trip, inner):
                    total += trip * self._time(inner)
                case Branch():
                    total += max(map(self._time, bodies(step)), default=0.0)
                case Call() | Delegate():
                    total += _HOST_SECONDS
                case Record() | Wait():
                    pass
                case _:
                    inner_steps = bodies(step)
                    total += sum(map(self._time, inner_steps)) if inner_steps else LAUNCH_SECONDS
        return total


def _all(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for inner in bodies(step):
            yield from _all(inner)


def levels(
    program: CudaProgram, plan: Plan, seconds: Mapping[str, float]
) -> Iterator[tuple[tuple[Dispatch, int] | None, Streams]]:
    """The function, then each body once: with its dispatch and its number there."""
    yield from _levels(program.steps, plan, seconds, None)


def _levels(
    steps: Sequence[Step],
    plan: Plan,
    seconds: Mapping[str, float],
    where: tuple[Dispatch, int] | None,
) -> Iterator[tuple[tuple[Dispatch, int] | None, Streams]]:
    yield where, Streams(plan, seconds).run(steps)
    known = {dispatch.name: dispatch for dispatch in plan.dispatches}
    for step in steps:
        if isinstance(step, Dispatched) and step.name in known:
            dispatch = known[step.name]
            seen: set[int] = set()  # a loop that was unrolled has its body several times
            for inner in _bodies_in(step.steps):
                if inner.number not in seen:
                    seen.add(inner.number)
                    plan_inside = dispatch.bodies[inner.number].plan
                    at = (dispatch, inner.number)
                    yield from _levels(inner.steps, plan_inside, seconds, at)


def _bodies_in(steps: Sequence[Step]) -> Iterator[Body]:
    """Those of one dispatch, but not those of the dispatches inside."""
    for step in steps:
        if isinstance(step, Body):
            yield step
        elif not isinstance(step, Dispatched):
            for inner in bodies(step):
                yield from _bodies_in(inner)
