"""From a schedule to a CUDA program: all segments of a function in one.

Input: a schedule, the generated kernel of every region. Output: a `CudaProgram`, plain data.
Invariant: a dispatch is queued after those that its barriers name, by streams and events
(`streams.py`); a launch gets exactly the buffers that its dispatch's accesses name.

Note [Levels]: the dispatches of a plan share out streams: its own, on which it begins and ends, and
others beside it. The body of a loop is a level of its own on the stream of the loop, so the next
turn, or what comes after the loop, waits for all of it.

Note [The host in between]: an equation that is left to jax, or a routine of a library, takes its
operands from the device and gives its results back while nothing else runs. So what comes before
may share memory with what comes after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jax.extend.core import Literal

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.codegen.generate import Generated
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.dispatch.regions import Region
from stagejit.errors import InternalError
from stagejit.graph.ir import Value
from stagejit.options import Options
from stagejit.runtime.cuda.driver import Array, Source
from stagejit.runtime.cuda.programs.executor import Executable
from stagejit.runtime.cuda.programs.host_calls import require_runs_here
from stagejit.runtime.cuda.programs.program import (
    Body,
    Branch,
    Call,
    Copy,
    CudaProgram,
    Delegate,
    Dispatched,
    Launch,
    Record,
    Step,
    Store,
    Wait,
    While,
)
from stagejit.runtime.cuda.programs.streams import MOST_STREAMS, START, Lanes, lanes, sources
from stagejit.runtime.cuda.programs.timing import sites_of
from stagejit.runtime.hosting import program_steps
from stagejit.runtime.hosting import steps as hosting
from stagejit.runtime.hosting.program_steps import BufferRef, ForeignArray, Loop
from stagejit.runtime.hosting.scopes import Pass, Scope, moved
from stagejit.runtime.hosting.sites import NOWHERE
from stagejit.schedule import schedule as scheduled
from stagejit.schedule.memory.packing import aligned
from stagejit.schedule.plans.plan import Dispatch
from stagejit.schedule.schedule import Delegation, Run, Schedule
from stagejit.schedule.threads.waves import NAME

_MOST_BLOCKS = 2**31 - 1
_ALIGNED = 256
_LAUNCH_SECONDS, _FLOPS, _BANDWIDTH = 3e-6, 2e13, 2e12


def cuda_program(
    schedule: Schedule, kernels: Mapping[Region, Generated], options: Options
) -> tuple[CudaProgram, list[Decision]]:
    """The program of a function, and how many streams its dispatches share."""
    hosting = _Hosting(schedule, kernels, options)
    return hosting.program(), hosting.decisions


@record
class _Item:
    """A dispatch of a level. seconds: about what it takes; alone: see Note [The host in
    between]."""

    name: str
    seconds: float
    steps: Callable[[Scope], Sequence[Step]]
    alone: bool = False


@dataclass
class _Hosting(hosting.Hosting[Step]):
    schedule: Schedule
    kernels: Mapping[Region, Generated]
    options: Options
    streams: int = 1
    events: int = 0
    delegated: int = 0
    workspaces: dict[int, int] = field(default_factory=dict)  # by stream
    decisions: list[Decision] = field(default_factory=list)

    def program(self) -> CudaProgram:
        plan, schedule = self.schedule.plan, self.schedule
        memory = _Memory(schedule)
        items: list[_Item] = []
        for part in schedule.segments:
            if isinstance(part, Run):
                items += map(self._item, part.steps)
            else:
                items.append(self._delegated(part))
        steps = self._level(items, Scope(schedule, memory.places))
        written = {access.buffer for dispatch in plan.dispatches for access in dispatch.writes}
        workspaces = (self.workspaces.get(stream, 0) for stream in range(self.streams))
        return CudaProgram(
            re.sub(r"\W", "_", plan.name) or "f",
            steps,
            tuple(memory.given.values()),
            len(schedule.graph.inputs),
            tuple(memory.results),
            tuple(memory.places[name] for name in schedule.outputs),
            tuple(at for at, name in enumerate(memory.given) if name in written),
            (memory.arena_nbytes, *workspaces),
            self.streams,
            self.events,
        )

    # ---------------------------------------------------------------- streams

    def steps(self, run: Run, scope: Scope) -> tuple[Step, ...]:
        return self._level([self._item(step) for step in run.steps], scope)

    def _item(self, step: scheduled.Step) -> _Item:
        region = step.region
        make = self._launches if region.has_kernel else self.without_kernel
        alone = region.definition.is_foreign
        return _Item(
            step.dispatch.name, _seconds(step.dispatch), lambda scope: make(step, scope), alone
        )

    def _level(self, items: Sequence[_Item], scope: Scope) -> tuple[Step, ...]:
        """See Note [Levels]."""
        waits: dict[str, list[str]] = {}
        for barrier in scope.schedule.plan.barriers:
            waits.setdefault(barrier.dst, []).append(barrier.src)
        most = MOST_STREAMS if self.options.enabled(NAME) else 1
        alone = [number for number, item in enumerate(items) if item.alone]
        before = sources([item.name for item in items], waits)
        made = lanes(before, [item.seconds for item in items], alone, most, settled=scope.settled)
        self._note(scope.schedule.plan.name, items, made)
        inner = replace(scope, opened=scope.opened + made.count - 1, settled=False)
        self.streams = max(self.streams, inner.opened)
        events = {at: self.events + number for number, at in enumerate(sorted(made.recorded))}
        self.events += len(events)
        steps: list[Step] = []
        for at, lane in enumerate(made.streams):
            stream = scope.opened + lane - 1 if lane else scope.stream
            steps += [Wait(stream, events[source]) for source in made.waits[at]]
            if START < at <= len(items):
                item, own = items[at - 1], replace(inner, stream=stream)
                steps.append(Dispatched(item.name, stream, tuple(item.steps(own))))
            if at in events:
                steps.append(Record(stream, events[at]))
        return tuple(steps)

    def _note(self, name: str, items: Sequence[_Item], made: Lanes) -> None:
        if len(items) > 1:
            crossings = sum(map(len, made.waits))
            reason = f"{len(items)} dispatches on {made.count} streams, {crossings} waits"
            if made.count == 1:
                reason = f"{len(items)} dispatches on one stream"
            self.decisions.append(Decision(NAME, f"@{name}", made.count > 1, reason))

    # ---------------------------------------------------------------- kernels

    def _launches(self, step: scheduled.Step, scope: Scope) -> list[Step]:
        """A dispatch and its borders."""
        return [launch for part in step.region.parts for launch in self._launch(part, scope)]

    def _launch(self, region: Region, scope: Scope) -> list[Step]:
        generated = self.kernels[region]
        kernel, stream = generated.kernel, scope.stream
        if not kernel.total:
            return []
        refs = [
            moved(
                scope.place(scope.schedule.buffer_of[arg.value]),
                arg.offset * arg.value.type.dtype.itemsize,
            )
            for arg in kernel.args
        ]
        if kernel.workspace_nbytes:
            known = self.workspaces.get(stream, 0)
            self.workspaces[stream] = max(known, aligned(kernel.workspace_nbytes, _ALIGNED))
            refs.append(BufferRef("arena", 1 + stream))
        blocks = min(kernel.total, _MOST_BLOCKS)
        return [
            Launch(
                stream,
                generated.symbol,
                tuple(refs),
                params,
                kernel.total,
                blocks,
                kernel.function.threads,
                dynamic_nbytes(kernel.function.buffers),
            )
            for params in kernel.passes
        ]

    # ---------------------------------------------------------------- steps besides kernels

    def body(
        self, step: scheduled.Step, number: int, scope: Scope, these: Pass
    ) -> tuple[Step, ...]:
        decided = step.region.definition.is_branch or step.dispatch.bodies[number].trip is None
        inner = replace(scope, settled=decided)  # the host has read a number right before
        return (Body(number, super().body(step, number, inner, these)),)

    def site(self, step: scheduled.Step, scope: Scope) -> int:
        return NOWHERE

    def copy(self, scope: Scope, to: BufferRef, source: BufferRef, nbytes: int, site: int) -> Step:
        return Copy(scope.stream, to, source, nbytes)

    def store(self, scope: Scope, place: BufferRef, nbytes: int, first: int, step: int = 0) -> Step:
        return Store(scope.stream, place, nbytes, first, step)

    def call(self, scope: Scope, made: program_steps.Call) -> Step:
        return Call(scope.stream, made.target, made.operands, made.results, made.attributes)

    def loop(self, step: scheduled.Step, scope: Scope, trip: int, body: Sequence[Step]) -> Step:
        return Loop(trip, tuple(body))

    def iterations(
        self, step: scheduled.Step, scope: Scope, trip: int, body: Sequence[Step]
    ) -> Step:
        """All of them by one "thread": the host, which queues one after the other."""
        return Loop(1, (Loop(trip, tuple(body)),))

    def repeat(
        self,
        step: scheduled.Step,
        scope: Scope,
        condition: Sequence[Step],
        predicate: BufferRef,
        body: Sequence[Step],
    ) -> Step:
        return While(scope.stream, tuple(condition), predicate, tuple(body))

    def branch(
        self, scope: Scope, index: BufferRef, nbytes: int, branches: Sequence[Sequence[Step]]
    ) -> list[Step]:
        return [Branch(scope.stream, index, nbytes, tuple(map(tuple, branches)))]

    # ---------------------------------------------------------------- equations left to jax

    def _delegated(self, delegation: Delegation) -> _Item:
        op = delegation.step.region.anchor
        if op is None:
            raise InternalError("an equation has no op", step="cuda program")
        equation, number = op.attrs["equation"], self.delegated
        self.delegated += 1

        def made(scope: Scope) -> list[Step]:
            def array(name: str, value: Value) -> ForeignArray:
                type = value.type
                return ForeignArray(scope.place(name), type.dtype.name, type.shape, type.nbytes)

            operands = tuple(
                None if isinstance(atom, Literal) else array(name, value)
                for atom, value, name in zip(
                    equation.invars, op.operands, delegation.operands, strict=False
                )
            )  # a token, the last operand, only orders
            results = tuple(
                array(name, value)
                for _, value, name in zip(
                    equation.outvars, op.results, delegation.results, strict=False
                )
            )
            return [Delegate(scope.stream, number, str(equation.primitive), operands, results)]

        return _Item(delegation.step.dispatch.name, 0.0, made, alone=True)


def _seconds(dispatch: Dispatch) -> float:
    """Only to tell which chain is the longest: as on a large GPU."""
    return _LAUNCH_SECONDS + max(dispatch.flops / _FLOPS, dispatch.nbytes / _BANDWIDTH)


class _Memory:
    """Where the buffers of a function are. given: bytes of arguments and constants by buffer;
    results: bytes of results that are not in an argument."""

    def __init__(self, schedule: Schedule) -> None:
        buffers = schedule.plan.buffers
        names = [schedule.buffer_of[value] for value in schedule.graph.inputs]
        names += [buffer.name for buffer in buffers if buffer.kind == "constant"]
        by_name = {buffer.name: buffer for buffer in buffers}
        self.given = {name: by_name[name].nbytes for name in names}
        self.results: list[int] = []
        self.places = {name: BufferRef("arg", at) for at, name in enumerate(names)}
        self.arena_nbytes = aligned(schedule.arena_nbytes, _ALIGNED)
        for buffer in buffers:
            if buffer.kind == "result":
                self.places[buffer.name] = BufferRef("result", len(self.results))
                self.results.append(buffer.nbytes)
        for buffer in buffers:
            if buffer.name in self.places:
                continue
            if buffer.host:
                self.places[buffer.name] = moved(self.places[buffer.host], buffer.slot or 0)
            elif buffer.slot is not None:
                self.places[buffer.name] = BufferRef("arena", 0, buffer.slot)
            else:  # what passes from one segment to another
                self.places[buffer.name] = BufferRef("arena", 0, self.arena_nbytes)
                self.arena_nbytes += aligned(buffer.nbytes, _ALIGNED)


def _source(generated: Generated) -> Source:
    function = generated.kernel.function
    nbytes = dynamic_nbytes(function.buffers)
    return Source(generated.symbol, generated.text, function.threads, nbytes)


def executable(
    program: CudaProgram,
    schedule: Schedule,
    kernels: Mapping[Region, Generated],
    options: Options,
    weights: Callable[[], Sequence[Array]] = tuple,
) -> Executable:
    """A program with all that it needs to run. weights: gives the last of its inputs, which no call
    does. Raises UnsupportedOpError for equations that the host cannot run in between."""
    equations = []
    for part in schedule.segments:
        if isinstance(part, Delegation) and part.step.region.anchor is not None:
            equations.append(part.step.region.anchor.attrs["equation"])
            require_runs_here(equations[-1])
    constants = {
        schedule.buffer_of[value]: value.type.layout.laid_out(np.asarray(value.op.attrs["value"]))
        for value in schedule.buffer_of
        if value.op.definition.is_constant
    }
    launched = {launch.kernel for launch in program.launches()}
    made = {each.symbol: each for each in kernels.values() if each.symbol in launched}
    return Executable(
        program,
        tuple(_source(each) for each in made.values()),
        tuple(
            np.asarray(constants[buffer.name])
            for buffer in schedule.plan.buffers
            if buffer.kind == "constant"
        ),
        tuple(equations),
        tuple(value.type for value in schedule.graph.inputs),
        tuple(value.type for value in schedule.graph.outputs),
        weights,
        options.cache_dir,
        dict(sites_of(schedule.plan)),
    )
