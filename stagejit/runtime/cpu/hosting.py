"""From a schedule to host programs: one for each run of native dispatches.

Input: a schedule, the generated kernel of every region, a target. Output: `HostProgram`s, plain
data. Invariant: a launch gets exactly the buffers that its dispatch's accesses name; the order is
that of the plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stagejit.base.decisions import Decision
from stagejit.base.records import replace
from stagejit.codegen.generate import Generated
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.errors import InternalError
from stagejit.graph import python_functions
from stagejit.options import Options
from stagejit.runtime.cpu.nans.checking import Checking, name_of
from stagejit.runtime.hosting import background, program_steps
from stagejit.runtime.hosting import program as host
from stagejit.runtime.hosting.launching import grain_of, launching
from stagejit.runtime.hosting.program import HostProgram, Launch, Parallel
from stagejit.runtime.hosting.program_steps import BufferRef, Workspace
from stagejit.runtime.hosting.scopes import Scope, moved, moving, places_of_run
from stagejit.runtime.hosting.sites import Sites
from stagejit.runtime.hosting.steps import Hosting
from stagejit.schedule.memory.packing import LINE_NBYTES, aligned
from stagejit.schedule.schedule import Run, Schedule, Step, Wave

_SCRATCH_FAULT = "left its scratch, or read there what it had not written"


def host_program(
    run: Run,
    schedule: Schedule,
    kernels: Mapping[Region, Generated],
    target: Target,
    options: Options,
    *,
    has_snapshot: bool = False,
) -> HostProgram:
    """The program of one run. has_snapshot: calls say of which moment weights are, also where it
    reads none: if it fails, nobody reads any more."""
    made = _Hosting(run, schedule, kernels, target, options).program()
    return replace(made, has_snapshot=True) if has_snapshot else made


class _Hosting(Hosting[host.Step]):
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
        self.name = name_of(schedule)
        self.faults: list[str] = []
        self.workspace_nbytes = 0  # of those kernels that run one after the other
        self.sites = Sites()
        self.checking = Checking(schedule, options) if options.checks else None

    def program(self) -> HostProgram:
        run, buffers = self.run, {b.name: b for b in self.schedule.plan.buffers}
        scope = Scope(self.schedule, dict(places_of_run(run, buffers.values())))
        steps = self.steps(run, scope)
        if self.checking is not None:
            steps = (*self.checking.begin(run, scope), *steps, *self.checking.end(run, scope))
        made = HostProgram(
            self.name,
            steps,
            tuple(buffers[name].nbytes for name in run.arguments),
            tuple(buffers[name].nbytes for name in run.results),
            self._arena_nbytes(),
            run.aliases,
            tuple(self.faults),
            self._bound_nbytes(),
            tuple(self.sites.made),
            () if self.checking is None else tuple(self.checking.texts),
        )
        handed_over = self._handed_over(made)
        return made if handed_over is None else replace(made, handed_over=handed_over)

    def _handed_over(self, program: HostProgram) -> Decision | None:
        """Whether it runs in the background: see `background.py`."""
        if not self.options.enabled(background.NAME):
            return None

        def refusal() -> str:
            if self.checking is not None:
                return "a check ends the call that it is of"
            if python_functions.TARGET in program.targets():
                return "it calls Python, whose functions may want what their caller holds"
            return ""

        seconds = self._seconds(self.run.steps) / self.target.cores
        return background.handed_over(self.name, seconds, len(self.run.results), refusal)

    def _bound_nbytes(self) -> tuple[int, ...]:
        """Of all weights of the function, where this run reads one."""
        buffers = self.schedule.plan.buffers
        weights = {buffer.name: buffer.nbytes for buffer in buffers if buffer.kind == "weight"}
        reads = any(name in weights for step in self.run.steps for name in step.buffers)
        return tuple(weights.values()) if reads else ()

    def steps(self, run: Run, scope: Scope) -> tuple[host.Step, ...]:
        made: list[host.Step] = []
        for wave in self.schedule.waves[run]:
            if wave.steps[0].region.has_kernel:
                made += self._wave(wave, scope)
            else:
                made += self.without_kernel(wave.steps[0], scope)
            if self.checking is not None:
                for step in wave.steps:
                    made += self.checking.after(step, scope)
        return tuple(made)

    def _kernel(self, region: Region) -> Kernel:
        return self.kernels[region].kernel

    def _wave(self, wave: Wave, scope: Scope) -> tuple[host.Step, ...]:
        """The launches of a wave; in a region the longest that stay on one core come first, as
        nobody can help with them at the end."""
        timed = [timed for step in wave.steps for timed in self._launches(step, scope)]
        if wave.shared:
            timed.sort(key=lambda item: (item[0].parallel, 0 if item[0].parallel else -item[1]))
        launches = tuple(launch for launch, _ in timed)
        return (Parallel(launches),) if wave.shared else launches

    # ---------------------------------------------------------------- steps besides kernels

    def site(self, step: Step, scope: Scope) -> int:
        return self.sites.number_of(step.dispatch, scope.path)

    def copy(
        self, scope: Scope, to: BufferRef, source: BufferRef, nbytes: int, site: int
    ) -> host.Step:
        return program_steps.Copy(to, source, nbytes, site)

    def store(
        self, scope: Scope, place: BufferRef, nbytes: int, first: int, step: int = 0
    ) -> host.Step:
        return program_steps.Store(place, nbytes, first, step)

    def call(self, scope: Scope, made: program_steps.Call) -> host.Step:
        return made

    def loop(self, step: Step, scope: Scope, trip: int, body: Sequence[host.Step]) -> host.Step:
        known = _workspace(step, scope), self.site(step, scope)
        return program_steps.Loop(trip, tuple(body), *known)

    def iterations(
        self, step: Step, scope: Scope, trip: int, body: Sequence[host.Step]
    ) -> host.Step:
        threads, seconds = step.dispatch.bodies[0].threads, self._seconds(step.bodies[0].steps())
        grain = grain_of(trip, trip * seconds, threads)
        return host.Iterations(trip, threads, grain, tuple(body), self.site(step, scope))

    def repeat(
        self,
        step: Step,
        scope: Scope,
        condition: Sequence[host.Step],
        predicate: BufferRef,
        body: Sequence[host.Step],
    ) -> host.Step:
        known = _workspace(step, scope), self.site(step, scope)
        return program_steps.While(tuple(condition), predicate, tuple(body), *known)

    def branch(
        self, scope: Scope, index: BufferRef, nbytes: int, branches: Sequence[Sequence[host.Step]]
    ) -> list[host.Step]:
        return [program_steps.Branch(index, nbytes, tuple(map(tuple, branches)))]

    def _seconds(self, steps: Iterable[Step]) -> float:
        """Of one execution on one core, loops of unknown length and branches counted once."""
        found = 0.0
        for step in steps:
            times = step.dispatch.bodies[0].trip or 1 if step.bodies else 1
            bodies = (self._seconds(body.steps()) for body in step.bodies)
            found += times * sum(bodies)
            if step.region.has_kernel:
                found += sum(self._kernel(part).seconds for part in step.region.parts)
        return found

    # ---------------------------------------------------------------- kernels

    def _launches(self, step: Step, scope: Scope) -> Iterator[tuple[Launch, float]]:
        """The launches of a dispatch, with the seconds that each takes on one core: it and its
        borders do not depend on each other, but the passes of one kernel do."""
        number = itertools.count()
        for part in step.region.parts:
            kernel, launch = self._kernel(part), self._launch(part, step, scope)
            for params in kernel.passes:
                passed = replace(launch, params=(*params, *launch.params), part=next(number))
                yield passed, kernel.seconds / len(kernel.passes)

    def _arena_nbytes(self) -> int:
        """Of transients, and of workspaces behind them."""
        nbytes, more = self.run.arena_nbytes, self.workspace_nbytes
        return aligned(nbytes, LINE_NBYTES) + more if more else nbytes

    def _workspaces(self, kernel: Kernel, scope: Scope) -> list[BufferRef]:
        """Behind transients; of each thread, where several run the kernel at once."""
        nbytes = kernel.workspace_nbytes
        self.workspace_nbytes = max(self.workspace_nbytes, scope.threads * nbytes)
        first = BufferRef("arena", 0, aligned(self.run.arena_nbytes, LINE_NBYTES))
        first = moving(first, scope.thread, nbytes) if scope.alone else first
        return [moved(first, at) for at in kernel.workspace_places]

    def _sharing(self, kernel: Kernel, scope: Scope) -> tuple[int, bool]:
        """Items a chunk, and whether threads share them."""
        return (1, False) if scope.alone else launching(kernel, self.target)

    def _launch(self, region: Region, step: Step, scope: Scope) -> Launch:
        generated = self.kernels[region]
        kernel = generated.kernel
        names = [scope.schedule.buffer_of[arg.value] for arg in kernel.args]
        refs = [
            moved(scope.place(name), arg.offset * arg.value.type.dtype.itemsize)
            for name, arg in zip(names, kernel.args, strict=True)
        ]
        refs += self._workspaces(kernel, scope)
        params: tuple[int, ...] = ()
        if self.options.verify:
            self._require_readonly(kernel, names, step)
            declared = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
            sizes = [arg.value.type.room - arg.offset for arg in kernel.args]
            own = zip(declared[len(sizes) :], kernel.workspaces, strict=True)
            sizes += [nbytes * 8 // buffer.elem.bits for buffer, nbytes in own]
            names += ["workspace"] * len(kernel.workspaces)
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
            site=self.site(step, scope),
        )

    def _require_readonly(self, kernel: Kernel, names: Sequence[str], step: Step) -> None:
        """Loads of a readonly buffer may move past stores, so nothing may be stored in it."""
        declared = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
        readonly = {name for name, buffer in zip(names, declared, strict=False) if buffer.readonly}
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


def _workspace(step: Step, scope: Scope) -> Workspace | None:
    """That of a loop, which has one if its body makes what it does not hand on."""
    name = step.dispatch.bodies[0].workspace
    return Workspace(scope.place(name), scope.schedule.plan.buffer(name).nbytes) if name else None
