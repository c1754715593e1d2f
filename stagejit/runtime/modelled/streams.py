"""The model of a GPU: when the dispatches of a program run, on which streams.

Input: a CUDA program, its kernels, the device. Output: what is on the streams from when to when,
and who waits for whom; seconds of each dispatch, and of the call. Invariant: order and waiting are
those of the program; nothing was measured. A loop that the device ends is there with one iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.codegen.generate import Generated
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
from stagejit.runtime.hosting.program_steps import Loop
from stagejit.runtime.modelled.kernels import Modelled, Path, launch_seconds


@record
class Queued:
    """A dispatch on its stream. waits: for which events, in words."""

    name: str
    stream: int
    launches: int
    start: float
    took: Modelled
    waits: tuple[str, ...]


@record
class Waited:
    """What is on a stream from `end` on waited for what was on another one at `start`."""

    event: int
    source: int
    last: str
    start: float
    stream: int
    end: float


@record
class Costs:
    """kernels: of one launch, by symbol. start: of a launch that does nothing. unknown: seconds
    that stand for what the host does in between, so that a picture has room for it."""

    kernels: Mapping[str, float]
    start: float
    unknown: float = 0.0

    @staticmethod
    def of(kernels: Iterable[Generated], device: Machine, unknown: float = 0.0) -> Costs:
        """By the model."""
        seconds = {each.symbol: launch_seconds(each.kernel, device) for each in kernels}
        return Costs(seconds, device.start_seconds, unknown)

    def of_steps(self, steps: Sequence[Step]) -> float:
        """Of steps one after the other."""
        return sum(map(self._of_step, steps))

    def _of_step(self, step: Step) -> float:
        match step:
            case Launch(kernel=kernel):
                return self.kernels.get(kernel, self.start)
            case Loop(trip, inner):
                return trip * self.of_steps(inner)
            case Branch():
                return max(map(self.of_steps, bodies(step)), default=0.0)
            case Call() | Delegate():
                return self.unknown
            case Record() | Wait():
                return 0.0
            case _:
                inside = bodies(step)
                return sum(map(self.of_steps, inside)) if inside else self.start


@dataclass
class OnStreams:
    """One level of a program: the steps of a function, or of a body. inner: those of the bodies of
    its dispatches, each once."""

    costs: Costs
    queued: list[Queued] = field(default_factory=list)
    waited: list[Waited] = field(default_factory=list)
    inner: dict[tuple[str, int], OnStreams] = field(default_factory=dict)
    _ready: dict[int, float] = field(default_factory=dict)  # when what is on a stream is done
    _last: dict[int, str] = field(default_factory=dict)  # what is on it
    _events: dict[int, tuple[int, float, str]] = field(default_factory=dict)
    _waits: dict[int, list[str]] = field(default_factory=dict)

    def run(self, steps: Sequence[Step]) -> OnStreams:
        for step in steps:
            match step:
                case Record(stream, event):
                    done = self._ready.get(stream, 0.0), self._last.get(stream, "the start")
                    self._events[event] = (stream, *done)
                case Wait(stream, event):
                    self._wait(stream, event)
                case Dispatched(name, stream, inner):
                    self._dispatch(name, stream, inner)
                case _:
                    self._ready[0] = self._ready.get(0, 0.0) + self.costs.of_steps([step])
        return self

    @property
    def whole(self) -> Modelled:
        """Of the call, or of one turn of the body."""
        known = all(each.took.is_known for each in self.queued)
        return Modelled(max(self._ready.values(), default=0.0), known)

    def paths(self, around: Path = ()) -> Iterator[tuple[Path, Modelled]]:
        """The time of each dispatch, those of loops and branches too."""
        for each in self.queued:
            yield (*around, each.name), each.took
        for at, inner in self.inner.items():
            yield from inner.paths((*around, *at))

    def _wait(self, stream: int, event: int) -> None:
        source, done, last = self._events.get(event, (stream, 0.0, "the start"))
        ready = self._ready[stream] = max(self._ready.get(stream, 0.0), done)
        self.waited.append(Waited(event, source, last, done, stream, ready))
        self._waits.setdefault(stream, []).append(f"event {event} of stream {source}, after {last}")

    def _dispatch(self, name: str, stream: int, steps: Sequence[Step]) -> None:
        start, seconds = self._ready.get(stream, 0.0), self.costs.of_steps(steps)
        inside = list(_all(steps))
        took = Modelled(seconds, not any(isinstance(s, Call | Delegate | While) for s in inside))
        launches = sum(isinstance(step, Launch) for step in inside)
        waits = tuple(self._waits.pop(stream, ()))
        self.queued.append(Queued(name, stream, launches, start, took, waits))
        self._ready[stream], self._last[stream] = start + seconds, f"@{name}"
        for body in _bodies_in(steps):  # a loop that was unrolled has its body several times
            if (name, body.number) not in self.inner:
                self.inner[name, body.number] = OnStreams(self.costs).run(body.steps)


def on_streams(program: CudaProgram, costs: Costs) -> OnStreams:
    """The function."""
    return OnStreams(costs).run(program.steps)


def _all(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for inner in bodies(step):
            yield from _all(inner)


def _bodies_in(steps: Sequence[Step]) -> Iterator[Body]:
    """Those of one dispatch, but not those of the dispatches inside."""
    for step in steps:
        if isinstance(step, Body):
            yield step
        elif not isinstance(step, Dispatched):
            for inner in bodies(step):
                yield from _bodies_in(inner)
