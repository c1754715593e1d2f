"""From a schedule to host programs: one for each run of native dispatches.

Input: a schedule, the generated kernel of every region, a target. Output: `HostProgram`s, plain data.
Invariant: a launch gets exactly the buffers that its dispatch's accesses name; the order is that of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.region import Region
from stagejit.errors import InternalError
from stagejit.runtime.program import BufferRef, HostProgram, Launch, Parallel
from stagejit.schedule.plan import Buffer
from stagejit.schedule.schedule import Run, Schedule, Step

# Forking costs 0.5 us hot and 6 to 16 us when the workers have slept (KERNELS.md, "Latency").
FORK_SECONDS = 15e-6
# A chunk should be worth claiming, and there should be enough of them that late workers find some.
CHUNK_SECONDS = 2e-6
CHUNKS_PER_CORE = 8


def host_program(run: Run, schedule: Schedule, kernels: Mapping[Region, Generated],
                 target: Target, *, verify: bool) -> HostProgram:
    """The program of one run."""
    return _Hosting(run, schedule, kernels, target, verify=verify).program()


class _Hosting:
    def __init__(self, run: Run, schedule: Schedule, kernels: Mapping[Region, Generated],
                 target: Target, *, verify: bool) -> None:
        self.run, self.kernels, self.target, self.verify = run, kernels, target, verify
        self.name = re.sub(r"\W", "_", schedule.plan.name) or "f"
        self.buffers: dict[str, Buffer] = {b.name: b for b in schedule.plan.buffers}
        self.buffer_of = schedule.buffer_of
        self.faults: list[str] = []

    def program(self) -> HostProgram:
        run = self.run
        steps = tuple(each for step in run.steps for each in self._steps(step))
        return HostProgram(
            self.name, steps, tuple(self.buffers[name].nbytes for name in run.arguments),
            tuple(self.buffers[name].nbytes for name in run.results), run.arena_nbytes, run.aliases,
            tuple(self.faults))

    def _steps(self, step: Step) -> tuple[Launch | Parallel, ...]:
        """The launches of a dispatch: its borders run beside it where it forks."""
        launches = tuple(self._launch(part, step) for part in step.region.parts)
        if len(launches) > 1 and any(launch.parallel for launch in launches):
            return (Parallel(launches),)
        return launches

    def _launch(self, region: Region, step: Step) -> Launch:
        generated = self.kernels[region]
        kernel = generated.kernel
        names = [self.buffer_of[arg.value] for arg in kernel.args]
        refs = [self._ref(name, arg.offset * arg.value.type.dtype.itemsize)
                for name, arg in zip(names, kernel.args, strict=True)]
        params = kernel.params
        if self.verify:
            sizes = [arg.value.type.size - arg.offset for arg in kernel.args]
            params = (*params, *sizes, len(self.faults))
            refs.append(BufferRef("fault"))
            self.faults += [f"{self.name}: kernel of @{step.dispatch.name} left buffer {name}; this is "
                            "a fault of stagejit, please report it" for name in names]
        grain = self._grain(kernel.total, kernel.seconds)
        return Launch(
            generated.symbol, tuple(refs), params, kernel.total, grain,
            parallel=kernel.seconds > FORK_SECONDS and kernel.total > grain,
            scratch_nbytes=kernel.function.scratch_nbytes)

    def _grain(self, total: int, seconds: float) -> int:
        """Items a chunk."""
        balanced = total // (CHUNKS_PER_CORE * self.target.cores)
        worthwhile = int(CHUNK_SECONDS / max(seconds / max(total, 1), 1e-12))
        # Not so many that a core would stay without work.
        most = -(-total // self.target.cores)
        return max(1, min(max(balanced, worthwhile), most))

    def _ref(self, name: str, offset_nbytes: int) -> BufferRef:
        buffer = self.buffers[name]
        if name in self.run.results:  # also where it came in as an argument: see HostProgram.aliases
            return BufferRef("result", self.run.results.index(name), offset_nbytes)
        if name in self.run.arguments:
            return BufferRef("arg", self.run.arguments.index(name), offset_nbytes)
        if buffer.slot is None:
            raise InternalError(f"buffer {name} has no memory in this run", step="host program")
        return BufferRef("arena", 0, buffer.slot + offset_nbytes)
