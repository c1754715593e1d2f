"""Where buffers lie when a step runs: those of a function, and of the bodies of its loops.

Input: a schedule, bindings of bodies. Output: `BufferRef`s. Invariant: a buffer of a body lies
where its binding says, or in its slot of the body's workspace; each loop around adds one stride.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from stagejit.base.records import record
from stagejit.errors import InternalError
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.schedule.plans.plan import Binding, Body, Buffer, Plan
from stagejit.schedule.schedule import Run, Schedule


@record
class Scope:
    """A schedule where it runs. places: where its buffers start; loops: how many counted loops
    are around it; alone: whether one thread runs it, beside others with other iterations; threads,
    thread: how many do, and which loop is over them; stream: of a GPU, the one that it begins and
    ends on; opened: streams of what is around it; settled: whether the host has waited for all that
    comes before; path: of what is in it, see `sites`; outer: of the buffers of a body that are
    bound what they are, and in which plan."""

    schedule: Schedule
    places: Mapping[str, BufferRef]
    loops: int = 0
    alone: bool = False
    threads: int = 1
    thread: int = 0
    stream: int = 0
    opened: int = 1
    settled: bool = False
    path: str = ""
    outer: Mapping[str, tuple[Plan, str]] = field(default_factory=dict)

    def place(self, name: str) -> BufferRef:
        """Where a buffer starts. What has no elements lies anywhere: it has no memory."""
        if name not in self.places:
            if not self.schedule.plan.buffer(name).nbytes:
                return BufferRef("arena", 0)
            raise InternalError(f"buffer {name} has no memory in this run", step="host program")
        return self.places[name]


@record
class Pass:
    """Which iterations a copy of a loop's body makes: `first`, `first + every`, ...; exchanged:
    with the buffers of carries exchanged."""

    first: int = 0
    every: int = 1
    exchanged: bool = False


def places_of_run(run: Run, buffers: Iterable[Buffer]) -> Iterable[tuple[str, BufferRef]]:
    """Where the buffers of a run are for its handler."""
    results = {name: at for at, name in enumerate(run.results)}
    arguments = {name: at for at, name in enumerate(run.arguments)}
    for buffer in buffers:
        name = buffer.name
        if name in results:  # also where it came in as an argument: see HostProgram.aliases
            yield name, BufferRef("result", results[name])
        elif name in arguments:
            yield name, BufferRef("arg", arguments[name])
        elif buffer.kind == "weight":
            yield name, BufferRef("bound", buffer.index or 0)
        elif buffer.host in results:
            yield name, BufferRef("result", results[buffer.host], buffer.slot or 0)
        elif buffer.slot is not None:
            yield name, BufferRef("arena", 0, buffer.slot)


def inside(
    body: Body, schedule: Schedule, bindings: Iterable[Binding], scope: Scope, these: Pass
) -> Scope:
    """The scope of a body. The innermost loop of `scope` is that of the body, unless `these` is one
    iteration only."""
    bindings = tuple(bindings)
    places = bound(body, bindings, scope, these)
    outer = {
        each.buffer: scope.outer.get(each.outer, (scope.schedule.plan, each.outer))
        for each in bindings
    }
    for buffer in body.plan.buffers:
        if buffer.slot is not None and body.workspace:
            places[buffer.name] = moved(_around(body, body.workspace, scope), buffer.slot)
    return replace(scope, schedule=schedule, places=places, outer=outer)


def bound(
    body: Body, bindings: Iterable[Binding], scope: Scope, these: Pass
) -> dict[str, BufferRef]:
    """Where a body's arguments and results are in the iterations `these`."""
    places = {}
    for binding in bindings:
        stride = binding.stride_nbytes
        start = binding.offset_nbytes + these.first * stride
        ref = moved(_around(body, binding.outer, scope), start)
        if these.every and stride:
            ref = moving(ref, scope.loops - 1, these.every * stride)
        places[binding.buffer] = ref
    return places


def moved(ref: BufferRef, nbytes: int) -> BufferRef:
    """So many bytes farther."""
    return replace(ref, offset_nbytes=ref.offset_nbytes + nbytes) if nbytes else ref


def _around(body: Body, name: str, scope: Scope) -> BufferRef:
    """Where a buffer of the plan around a body starts; of the workspace the thread's own part."""
    place = scope.place(name)
    if body.threads == 1 or name != body.workspace:
        return place
    nbytes = scope.schedule.plan.buffer(name).nbytes
    return moving(place, scope.thread, nbytes // body.threads)


def moving(ref: BufferRef, loop: int, nbytes: int) -> BufferRef:
    """The same, farther by so many bytes in each turn of a loop, of those inside of which none
    moves it yet."""
    outer = ref.loop_strides_nbytes
    padding = (0,) * (loop - len(outer))
    return replace(ref, loop_strides_nbytes=(*outer, *padding, nbytes))
