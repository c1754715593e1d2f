"""From a schedule to host programs: one for each run of native dispatches.

Input: a schedule, the generated kernel of every region, a target. Output: `HostProgram`s, plain
data. Invariant: a launch gets exactly the buffers that its dispatch's accesses name; the order is
that of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.codegen.generate import Generated
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.errors import InternalError
from stagejit.graph.ir import Value
from stagejit.graph.ops.foreign import handler_types
from stagejit.graph.ops.views import behind_aliases
from stagejit.options import Options
from stagejit.runtime import program as host
from stagejit.runtime.launching import grain_of, launching
from stagejit.runtime.program import BufferRef, Copy, ForeignArray, HostProgram, Launch, Parallel
from stagejit.schedule.plan import Binding, Body, Buffer, exchanged
from stagejit.schedule.schedule import Run, Schedule, Step, Wave
from stagejit.types import TensorType

_SCRATCH_FAULT = "left its scratch, or read there what it had not written"


def host_program(
    run: Run,
    schedule: Schedule,
    kernels: Mapping[Region, Generated],
    target: Target,
    options: Options,
) -> HostProgram:
    """The program of one run."""
    return _Hosting(run, schedule, kernels, target, options).program()


@dataclass(frozen=True)
class _Scope:
    """A schedule where it runs. places: where its buffers start; loops: how many counted loops
    are around it; alone: whether one thread runs it, beside others with other iterations."""

    schedule: Schedule
    places: Mapping[str, BufferRef]
    loops: int = 0
    alone: bool = False

    def place(self, name: str) -> BufferRef:
        """Where a buffer starts. What has no elements lies anywhere: it has no memory."""
        if name not in self.places:
            if not self.schedule.plan.buffer(name).nbytes:
                return BufferRef("arena", 0)
            raise InternalError(f"buffer {name} has no memory in this run", step="host program")
        return self.places[name]


@dataclass(frozen=True)
class _Pass:
    """Which iterations a copy of a loop's body makes: `first`, `first + every`, ...; exchanged:
    with the buffers of carries exchanged."""

    first: int = 0
    every: int = 1
    exchanged: bool = False


class _Hosting:
    def __init__(
        self,
        run: Run,
        schedule: Schedule,
        kernels: Mapping[Region, Generated],
        target: Target,
        options: Options,
    ) -> None:
        self.run, self.kernels, self.target, self.options = run, kernels, target, options
        self.schedule = schedule
        self.name = re.sub(r"\W", "_", schedule.plan.name) or "f"
        self.faults: list[str] = []

    def program(self) -> HostProgram:
        run, buffers = self.run, {b.name: b for b in self.schedule.plan.buffers}
        scope = _Scope(self.schedule, dict(_places(run, buffers.values())))
        steps = self._steps(run, scope)
        return HostProgram(
            self.name,
            steps,
            tuple(buffers[name].nbytes for name in run.arguments),
            tuple(buffers[name].nbytes for name in run.results),
            run.arena_nbytes,
            run.aliases,
            tuple(self.faults),
        )

    def _steps(self, run: Run, scope: _Scope) -> tuple[host.Step, ...]:
        made: list[host.Step] = []
        for wave in self.schedule.waves[run]:
            known = wave.steps[0].region.definition
            if known.is_loop:
                made += self._loop(wave.steps[0], scope)
            elif known.is_branch:
                made.append(self._branch(wave.steps[0], scope))
            elif known.is_call:
                made.append(_call(wave.steps[0], scope))
            else:
                made += self._wave(wave, scope)
        return tuple(made)

    def _kernel(self, region: Region) -> Kernel:
        return self.kernels[region].kernel

    def _wave(self, wave: Wave, scope: _Scope) -> tuple[host.Step, ...]:
        """The launches of a wave; in a region the longest that stay on one core come first, as
        nobody can help with them at the end."""
        timed = [timed for step in wave.steps for timed in self._launches(step, scope)]
        if wave.shared:
            timed.sort(key=lambda item: (item[0].parallel, 0 if item[0].parallel else -item[1]))
        launches = tuple(launch for launch, _ in timed)
        return (Parallel(launches),) if wave.shared else launches

    # ---------------------------------------------------------------- loops and branches

    def _loop(self, step: Step, scope: _Scope) -> list[host.Step]:
        body = step.dispatch.bodies[0]
        if body.trip is None:
            return [self._while(step, scope)]
        if body.threads > 1:
            return self._iterations(step, body.trip, scope)
        back = self._copies(step, 0, scope)
        if body.trip == 1:
            return [*self._body(step, 0, scope, _Pass(every=0)), *back]
        inner = replace(scope, loops=scope.loops + 1)
        if not body.alternates:
            return [host.Loop(body.trip, (*self._body(step, 0, inner, _Pass()), *back))]
        pairs, rest = divmod(body.trip, 2)
        twice = (
            *self._body(step, 0, inner, _Pass(0, 2)),
            *self._body(step, 0, inner, _Pass(1, 2, exchanged=True)),
        )
        last = [*self._body(step, 0, scope, _Pass(body.trip - 1, 0)), *back] if rest else []
        return [host.Loop(pairs, twice), *last]

    def _iterations(self, step: Step, trip: int, scope: _Scope) -> list[host.Step]:
        """Those of a loop that threads share, and what its counters come to."""
        body, schedule = step.dispatch.bodies[0], step.bodies[0]
        inner = replace(scope, loops=scope.loops + 2, alone=True)
        places = _bound(body, body.bindings, inner, _Pass())
        begin, end = list[host.Step](), list[host.Step]()
        for counter in body.counters:
            nbytes, first, by = body.plan.buffer(counter.buffer).nbytes, counter.first, counter.step
            begin.append(host.Store(places[counter.buffer], nbytes, first, by))
            end.append(host.Store(scope.place(counter.outer), nbytes, first + trip * by))
        grain = grain_of(trip, trip * self._seconds(schedule), body.threads)
        steps = (*begin, *self._body(step, 0, inner, _Pass()))
        return [host.Iterations(trip, body.threads, grain, steps), *end]

    def _seconds(self, schedule: Schedule) -> float:
        """Of one execution on one core, loops of unknown length and branches counted once."""
        found = 0.0
        for step in schedule.steps():
            times = step.dispatch.bodies[0].trip or 1 if step.bodies else 1
            found += times * sum(map(self._seconds, step.bodies))
            if step.region.has_kernel:
                found += sum(self._kernel(part).seconds for part in step.region.parts)
        return found

    def _while(self, step: Step, scope: _Scope) -> host.Step:
        condition = self._body(step, 1, scope, _Pass(every=0))
        verdict = step.dispatch.bodies[1].bindings[-1]
        predicate = _moved(scope.place(verdict.outer), verdict.offset_nbytes)
        body, back = self._body(step, 0, scope, _Pass(every=0)), self._copies(step, 0, scope)
        if not step.dispatch.bodies[0].alternates:
            return host.While(condition, predicate, (*body, *back))
        # The buffers are exchanged now; they are exchanged again, or copied back before the end.
        turned = _Pass(every=0, exchanged=True)
        again = self._body(step, 1, scope, turned)
        twice = host.Branch(predicate, 1, (tuple(back), self._body(step, 0, scope, turned)))
        return host.While(condition, predicate, (*body, *again, twice))

    def _branch(self, step: Step, scope: _Scope) -> host.Step:
        anchor = step.region.anchor
        if anchor is None:
            raise InternalError(f"{step.dispatch.name} has no anchor", step="host program")
        index = behind_aliases(anchor.operands[0])
        branches = tuple(
            (*self._body(step, number, scope, _Pass(every=0)), *self._copies(step, number, scope))
            for number in range(len(step.bodies))
        )
        return host.Branch(
            scope.place(scope.schedule.buffer_of[index]), index.type.dtype.itemsize, branches
        )

    def _copies(self, step: Step, number: int, scope: _Scope) -> list[host.Step]:
        """Moves the carries of a body that are not updated in place to where they are expected."""
        body = step.dispatch.bodies[number]
        bound = {binding.buffer: binding for binding in body.bindings}
        nbytes = {buffer.name: buffer.nbytes for buffer in body.plan.buffers}

        def place(name: str) -> BufferRef:
            return _moved(scope.place(bound[name].outer), bound[name].offset_nbytes)

        return [
            Copy(place(carry.argument), place(carry.result), nbytes[carry.result])
            for carry in body.carries
        ]

    def _body(self, step: Step, number: int, scope: _Scope, these: _Pass) -> tuple[host.Step, ...]:
        """The steps of one body. The innermost loop of `scope` is that of the body, unless
        `these` is one iteration only."""
        body, schedule = step.dispatch.bodies[number], step.bodies[number]
        bindings = exchanged(step.dispatch, number) if these.exchanged else body.bindings
        places = _bound(body, bindings, scope, these)
        for buffer in body.plan.buffers:
            if buffer.slot is not None and body.workspace:
                places[buffer.name] = _moved(_around(body, body.workspace, scope), buffer.slot)
        inner = replace(scope, schedule=schedule, places=places)
        return tuple(
            made
            for part in schedule.segments
            if isinstance(part, Run)
            for made in self._steps(part, inner)
        )

    # ---------------------------------------------------------------- kernels

    def _launches(self, step: Step, scope: _Scope) -> Iterator[tuple[Launch, float]]:
        """The launches of a dispatch, with the seconds that each takes on one core: it and its
        borders do not depend on each other."""
        for part in step.region.parts:
            yield self._launch(part, step, scope), self._kernel(part).seconds

    def _sharing(self, kernel: Kernel, scope: _Scope) -> tuple[int, bool]:
        """Items a chunk, and whether threads share them."""
        return (1, False) if scope.alone else launching(kernel, self.target)

    def _launch(self, region: Region, step: Step, scope: _Scope) -> Launch:
        generated = self.kernels[region]
        kernel = generated.kernel
        names = [scope.schedule.buffer_of[arg.value] for arg in kernel.args]
        refs = [
            _moved(scope.place(name), arg.offset * arg.value.type.dtype.itemsize)
            for name, arg in zip(names, kernel.args, strict=True)
        ]
        params: tuple[int, ...] = ()
        if self.options.verify:
            self._require_readonly(kernel, names, step)
            sizes = [arg.value.type.room - arg.offset for arg in kernel.args]
            params = (*sizes, len(self.faults))
            refs.append(BufferRef("fault"))
            self.faults += [
                f"{self.name}: kernel of @{step.dispatch.name} {what}; this is "
                "a fault of stagejit, please report it"
                for what in (*(f"left buffer {name}" for name in names), _SCRATCH_FAULT)
            ]
        grain, parallel = self._sharing(kernel, scope)
        return Launch(
            generated.symbol,
            tuple(refs),
            params,
            kernel.total,
            grain,
            parallel=parallel,
            scratch_nbytes=kernel.function.scratch_nbytes,
        )

    def _require_readonly(self, kernel: Kernel, names: Sequence[str], step: Step) -> None:
        """Loads of a readonly buffer may move past stores, so nothing may be stored in it."""
        declared = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
        readonly = {name for name, buffer in zip(names, declared, strict=True) if buffer.readonly}
        stored = {name for name, arg in zip(names, kernel.args, strict=True) if arg.written}
        for read in step.dispatch.reads:
            for write in step.dispatch.writes:
                if read.buffer in readonly & stored and read.overlaps(write):
                    raise InternalError(
                        f"the kernel of @{step.dispatch.name} takes {read.buffer} for readonly "
                        "and writes it",
                        step="host",
                        loc=step.region.loc,
                    )


def _call(step: Step, scope: _Scope) -> host.Step:
    op = step.region.anchor
    if op is None:
        raise InternalError(f"{step.dispatch.name} has no anchor", step="host program")

    def arrays(values: Sequence[Value], types: Sequence[TensorType]) -> tuple[ForeignArray, ...]:
        return tuple(
            ForeignArray(
                scope.place(scope.schedule.buffer_of[behind_aliases(value)]),
                type.dtype.name,
                type.shape,
                type.nbytes,
            )
            for value, type in zip(values, types, strict=True)
        )

    operands, results = handler_types(op)
    return host.Call(
        op.attrs["target"],
        arrays(op.operands, operands),
        arrays(op.results, results),
        op.attrs["attributes"],
    )


def _places(run: Run, buffers: Iterable[Buffer]) -> Iterable[tuple[str, BufferRef]]:
    """Where the buffers of a run are for its handler."""
    results = {name: at for at, name in enumerate(run.results)}
    arguments = {name: at for at, name in enumerate(run.arguments)}
    for buffer in buffers:
        name = buffer.name
        if name in results:  # also where it came in as an argument: see HostProgram.aliases
            yield name, BufferRef("result", results[name])
        elif name in arguments:
            yield name, BufferRef("arg", arguments[name])
        elif buffer.host in results:
            yield name, BufferRef("result", results[buffer.host], buffer.slot or 0)
        elif buffer.slot is not None:
            yield name, BufferRef("arena", 0, buffer.slot)


def _moved(ref: BufferRef, nbytes: int) -> BufferRef:
    return replace(ref, offset_nbytes=ref.offset_nbytes + nbytes) if nbytes else ref


def _bound(
    body: Body, bindings: Iterable[Binding], scope: _Scope, these: _Pass
) -> dict[str, BufferRef]:
    """Where a body's buffers are in the iterations `these`."""
    places = {}
    for binding in bindings:
        stride = binding.stride_nbytes
        start = binding.offset_nbytes + these.first * stride
        ref = _moved(_around(body, binding.outer, scope), start)
        if these.every and stride:
            ref = _moving(ref, scope.loops - 1, these.every * stride)
        places[binding.buffer] = ref
    return places


def _around(body: Body, name: str, scope: _Scope) -> BufferRef:
    """Where a buffer of the plan around a body starts; of the workspace the thread's own part."""
    place = scope.place(name)
    if body.threads == 1 or name != body.workspace:
        return place
    nbytes = scope.schedule.plan.buffer(name).nbytes
    return _moving(place, scope.loops - 2, nbytes // body.threads)


def _moving(ref: BufferRef, loop: int, nbytes: int) -> BufferRef:
    """The same, farther by so many bytes in each turn of a loop, of those inside of which none
    moves it yet."""
    outer = ref.loop_strides_nbytes
    padding = (0,) * (loop - len(outer))
    return replace(ref, loop_strides_nbytes=(*outer, *padding, nbytes))
