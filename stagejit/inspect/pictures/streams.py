"""The timeline of a GPU: dispatches on streams, and events between them.

Input: a CUDA program, its kernels, the device. Output: a `Gantt` of each level, and a row for each
dispatch. Invariant: times are those of the model, see `modelled/streams.py`; what the host does in
between is drawn, but is no part of what is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stagejit.base.machine import Machine
from stagejit.base.numbers import counted, seconds_text
from stagejit.codegen.generate import Generated
from stagejit.inspect.pictures.dispatches import copies_of
from stagejit.inspect.pictures.drawing.gantt import Bar, Gantt, Link
from stagejit.inspect.pictures.words import color_of, line_of
from stagejit.runtime.cuda.programs.program import CudaProgram
from stagejit.runtime.modelled.kernels import Modelled
from stagejit.runtime.modelled.streams import Costs, OnStreams, Queued, on_streams
from stagejit.schedule.plans.plan import Dispatch, Plan

_HOST_SECONDS = 20e-6  # drawn for what the host does in between: a round trip, at least


@dataclass(frozen=True)
class Streams:
    """One level of a program: the steps of a function, or of a body. drawn: with room for what
    nobody knows; known: without."""

    plan: Plan
    drawn: OnStreams
    known: OnStreams

    @staticmethod
    def of(
        program: CudaProgram, plan: Plan, kernels: Iterable[Generated], device: Machine
    ) -> Streams:
        drawn, known = (
            on_streams(program, Costs.of(kernels, device, unknown))
            for unknown in (_HOST_SECONDS, 0.0)
        )
        return Streams(plan, drawn, known)

    @property
    def rows(self) -> list[Queued]:
        return self.known.queued

    @property
    def whole(self) -> Modelled:
        return self.known.whole

    def gantt(self) -> Gantt:
        dispatches = {dispatch.name: dispatch for dispatch in self.plan.dispatches}
        pairs = zip(self.drawn.queued, self.known.queued, strict=True)
        bars = tuple(_bar(drawn, known, dispatches.get(drawn.name)) for drawn, known in pairs)
        links = tuple(
            Link(
                each.source,
                each.start,
                each.stream,
                each.end,
                (
                    f"stream {each.stream} waits for event {each.event}",
                    f"stream {each.source} was at {each.last}",
                ),
            )
            for each in self.drawn.waited
        )
        streams = max((bar.lane for bar in bars), default=0) + 1
        names = tuple(f"stream {number}" for number in range(streams))
        return Gantt(names, bars, links=links, copies=copies_of(self.plan))


def _bar(drawn: Queued, known: Queued, dispatch: Dispatch | None) -> Bar:
    time = f"{seconds_text(known.took.seconds)} by the model"
    tip = [f"stream {known.stream}, {counted(known.launches, 'launch')}, {time}"]
    if not known.took.is_known:
        tip.append("at least: what the host does, or how often, is not known")
    color = "gray"
    if dispatch is not None:
        color = color_of(dispatch.kind)
        tip += [f"{dispatch.kind} ({', '.join(dispatch.ops)})", line_of(dispatch.loc)]
    tip += [f"waits for {text}" for text in known.waits]
    end = drawn.start + drawn.took.seconds
    return Bar(
        drawn.name,
        drawn.stream,
        1,
        drawn.start,
        end,
        f"@{drawn.name}",
        tuple(tip),
        color,
        known.took.is_known,
    )


def levels(made: Streams) -> Iterator[tuple[tuple[Dispatch, int] | None, Streams]]:
    """The function, then each body once: with its dispatch and its number there."""
    yield from _levels(made, None)


def _levels(
    made: Streams, where: tuple[Dispatch, int] | None
) -> Iterator[tuple[tuple[Dispatch, int] | None, Streams]]:
    yield where, made
    known = {dispatch.name: dispatch for dispatch in made.plan.dispatches}
    for (name, number), inner in made.drawn.inner.items():
        if name in known:
            plan = known[name].bodies[number].plan
            inside = Streams(plan, inner, made.known.inner[name, number])
            yield from _levels(inside, (known[name], number))
