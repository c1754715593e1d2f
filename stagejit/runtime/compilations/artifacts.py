"""What the compiler's steps make of one function, from its jaxpr to what XLA calls.

Input: a `Request`, then each step of `pipeline.py`. Output: `Artifacts`. Invariant: a field exists
once its step has run.

Note [GPUs are loaded late]: what runs programs on a GPU (30 modules) is imported when there is a
compilation for one, before its steps, and not by those for the CPU.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from stagejit.base.decisions import Decision
from stagejit.base.threads.importing import importing
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.generate import Generated
from stagejit.codegen.own import machine_for
from stagejit.codegen.target import Target
from stagejit.dispatch.groups.group import Group, Grouping
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op
from stagejit.rewrites.driving.driver import Watch
from stagejit.rewrites.weights.made import Made, Source
from stagejit.rewrites.weights.scales import Factor
from stagejit.runtime.compilations.compile_times import CompileTimes
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.lowering.staged import Request, Staged
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.schedule import Run, Schedule

if TYPE_CHECKING:
    from stagejit.runtime.cuda.programs.executor import Executable
    from stagejit.runtime.cuda.programs.program import CudaProgram


@dataclass(eq=False, repr=False)
class Artifacts:
    """Of one function.

    left_to_xla: why no call of this function is ours; its plan then has no kernels. Empty for ours.
    seconds: time of each step that has run, by name. watch: sees graphs after their rewrites.
    is_shown: whether somebody may ask what was decided; of a function that is only called, nobody.
    """

    request: Request
    left_to_xla: str = ""
    target: Target | Device = field(default_factory=Target.host)
    seconds: dict[str, float] = field(default_factory=dict)
    watch: Watch | None = None
    is_shown: bool = True
    graph: Graph = field(init=False)
    sources: tuple[Source, ...] = ()  # of the bound inputs of the graph
    measures: tuple[Made, ...] = ()  # of weights, to be shown
    factors: tuple[Factor, ...] = ()  # of weights, that have to stay finite
    decisions: list[Decision] = field(default_factory=list)
    left: frozenset[Op] = frozenset()
    grouping: Grouping = field(init=False)
    dispatches: Graph = field(init=False)  # the same for all targets
    resolved: Graph = field(init=False)  # without encodings
    launched: dict[Group, Op] = field(init=False)
    whereabouts: Whereabouts = field(init=False)  # of the groups
    regions: list[Region] = field(init=False)
    schedule: Schedule = field(init=False)
    kernels: dict[Region, Generated] = field(default_factory=dict)
    hosts: dict[Run, HostProgram] = field(default_factory=dict)
    loop_texts: dict[str, str] = field(default_factory=dict)  # of loops that are one function
    cuda: CudaProgram = field(init=False)  # for a GPU, in the place of `hosts`
    on_threads: list[Decision] = field(default_factory=list)  # or streams, by the same step
    executable: Executable = field(init=False)
    snapshot: int | None = None  # which value is one, see `staging.py`
    loaded: dict[Run, LoadedProgram] = field(default_factory=dict)
    compiled_kernels: int = 0  # by the step "load"; others were in memory or on disk
    staged: Staged = field(init=False)

    @classmethod
    def of(cls, request: Request, left_to_xla: str = "") -> Self:
        """For the target that the options choose."""
        options = request.options
        if not options.on_gpu:
            return cls(request, left_to_xla, machine_for(options, Target.host, Target))
        with importing:
            from stagejit.runtime.cuda import steps as gpu
        there = functools.partial(gpu.device_of, options.target)
        return cls(request, left_to_xla, machine_for(options, there, Device))

    def __post_init__(self) -> None:
        """See Note [GPUs are loaded late]: no step waits for an import."""
        if isinstance(self.target, Device):
            with importing:
                importlib.import_module("stagejit.runtime.cuda.steps")

    def __repr__(self) -> str:
        return f"<Compilation of {self.request.name}: {', '.join(self.seconds) or 'no step'}>"

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    @property
    def texts(self) -> dict[str, str]:
        """What there is to call, by symbol: kernels, and loops that are one function."""
        return {made.symbol: made.text for made in self.kernels.values()} | self.loop_texts

    @property
    def compile_times(self) -> CompileTimes:
        """Of the steps that have run."""
        kernels = len({generated.symbol for generated in self.kernels.values()})
        return CompileTimes(self.request.name, dict(self.seconds), kernels, self.compiled_kernels)
