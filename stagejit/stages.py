"""`Traced`, `Lowered`, `Compiled`: what `f.trace`, `f.lower` and `.compile()` return.

Input: JAX's own stages of a call. Output: the same objects as subclasses that also show our
compiler's stages. Invariants: all that `jax.stages` documents works as with `jax.jit`; what is
shown is what runs: JAX's lowering is run up to the point where it would ask our compiler, and says
what it would ask for, or why it would not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax

from stagejit.base.threads.importing import importing
from stagejit.base.threads.locks import remembered
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.target import Target
from stagejit.compat import has_static_shape, hide_frames
from stagejit.errors import OptionsError
from stagejit.graph.ir import Graph
from stagejit.pipeline import Compilation
from stagejit.runtime.compilations.compile_times import CompileTimes, noting
from stagejit.runtime.compilations.history import (
    Compiled as Remembered,
)
from stagejit.runtime.compilations.history import (
    Past,
    Signature,
    past_of,
)
from stagejit.runtime.compilations.kernel_names import with_kernels
from stagejit.runtime.compilations.passing import Passed, as_passed, passed_of
from stagejit.runtime.compilations.telling import record_call, signature_of_call
from stagejit.runtime.lowering.embedding import plan_request
from stagejit.schedule.plans.plan import Plan

if TYPE_CHECKING:
    from stagejit.explaining import Timed
    from stagejit.inspect.explain import Explanation
    from stagejit.inspect.pictures.picture import Picture
    from stagejit.inspect.pictures.rewrites import Recorder

hide_frames(__file__)


class _Shown:
    """What all stages show. Nothing is run that is not asked for."""

    @property
    def compilation(self) -> Compilation:
        """The pipeline's state after the steps that have been asked for."""
        raise NotImplementedError

    @property
    def past(self) -> Past:
        """What the function was compiled for so far, and how this call relates to it."""
        raise NotImplementedError

    @property
    def graph(self) -> Graph:
        """The graph after all rewrites, in normal form; `graph.nx` is its networkx graph."""
        return self.compilation.run_until("normalize").graph

    @property
    def plan(self) -> Plan:
        """The dispatches, the subranges they touch, the barriers between them."""
        return self.compilation.run_until("schedule").plan

    @property
    def explanation(self) -> Explanation:
        """By source line: dispatches, what was left to XLA, copied and packed, each decision with
        its reason, what is written where, and what was chosen for kernels."""
        return self.explained()

    def explained(
        self,
        *,
        disable: Sequence[str] = (),
        what_if: Sequence[str] | bool = (),
        timed: Timed | None = None,
    ) -> Explanation:
        """As `explanation`, with what rewrites are worth. disable, what_if: see `f.explain`. timed:
        seconds of a call under each of several options."""
        with importing:
            from stagejit.explaining import explanation_of  # see Note [Import time] of `api`

        names = (disable,) if isinstance(disable, str) else tuple(disable)
        asked = (what_if,) if isinstance(what_if, str) else what_if
        return explanation_of(
            self.compilation, self.past, disable=names, what_if=asked, timed=timed
        )

    def picture(self, what: str = "dispatches") -> Picture:
        """A drawing of a stage: "graph" (after all rewrites), "rewrites" (before and after each),
        "dispatches" (with the ranges of the barriers between them), "memory" (slots
        against time, and what the peak is made of) or "timeline" (threads of a CPU, streams of a
        GPU, in seconds of the compiler's model).

        Notebooks show it; `.save("x.html")` or `.save("x.svg")` writes a file, `.svg` is its text.
        Raises OptionsError for other names, UnsupportedOpError where symbolic sizes have no memory.
        """
        with importing:
            from stagejit.inspect.pictures import views
        drawn = self._drawn(what)
        if drawn is None:
            raise OptionsError(
                f"there is no picture {what!r}", next_step=f"choose one of {', '.join(views.NAMES)}"
            )
        return views.with_note(drawn, self.compilation.left_to_xla)

    def _drawn(self, what: str) -> Picture | None:
        from stagejit.inspect.pictures import views

        compilation = self.compilation
        match what:
            case "graph":
                return views.of_graph(self.graph)
            case "rewrites":
                return views.of_rewrites(compilation.request.name, recorded(compilation))
            case "dispatches":
                return views.of_dispatches(self.plan)
            case "memory" | "timeline" if self.plan.sizes:
                compilation.run_until("codegen")  # its error says which sizes
            case "memory":
                return views.of_memory(self.plan)
            case "timeline" if isinstance(compilation.target, Device):
                made = compilation.run_until("host")
                return views.of_streams(made.cuda, made.plan, made.kernels, compilation.target)
            case "timeline" if isinstance(compilation.target, Target):
                made = compilation.run_until("host")
                return views.of_threads(made.schedule, made.kernels, compilation.target)
        return None

    def __repr__(self) -> str:
        """What a prompt shows: nothing is compiled for it."""
        kind = type(self).__name__
        return f"<{kind} {self._name()}: .plan, .graph, .explanation, .picture(), .as_text()>"

    def _name(self) -> str:
        """Of the function."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """The dispatches, memory and graph, for notebooks."""
        with importing:
            from stagejit.inspect.pictures import views
        return views.html_of_all(self.graph, self.plan, self.compilation.left_to_xla)

    def _text(self, stage: str) -> str:
        with importing:
            from stagejit.explaining import texts_of
        texts = texts_of(self.compilation)
        if stage not in texts:
            raise OptionsError(
                f"there is no stage {stage!r}",
                next_step=_stage_elsewhere(stage)
                or f"choose one of {', '.join(texts)}, or a dialect of JAX's",
            )
        return texts[stage]()


def _stage_elsewhere(stage: str) -> str:
    """How to get a stage that only programs for the other kind of target have."""
    if stage in ("cuda", "ptx"):
        return f'a program for a GPU has it: stagejit.jit(f, backend="cuda"), then {stage!r}'
    if stage in ("llvm", "asm"):
        return f"a program for the CPU has it: stagejit.jit(f), without a backend, then {stage!r}"
    return ""


def recorded(compilation: Compilation) -> Recorder:
    """The graphs of a compilation after each of its steps: it is done once more."""
    from stagejit.inspect.pictures.rewrites import Recorder

    recorder = Recorder()
    made = Compilation(
        compilation.request, compilation.left_to_xla, compilation.target, watch=recorder
    )
    for step in ("trace", "rewrite", "evaluate", "normalize", "encode"):
        decided = len(made.decisions)
        graph = made.run_until(step).graph
        if step != "rewrite":  # its own steps were recorded
            recorder(step, graph, made.decisions[decided:])
    recorder("assemble", made.run_until("assemble").dispatches, ())
    made.run_until("place")
    decided = len(made.decisions)
    recorder("resolve", made.run_until("resolve").resolved, made.decisions[decided:])
    return recorder


class Traced(_Shown, jax.stages.Traced):
    """A function traced to a jaxpr: a `jax.stages.Traced` with a plan."""

    @classmethod
    def of(cls, traced: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Self:
        """`traced`, JAX's object, becomes one of ours, as its constructor differs by version. info:
        what JAX knows of the jitted function; args, kwargs: of the call, of which texts are
        remembered."""
        traced.__class__ = cls
        result: Self = traced
        result._passed = passed_of(info, args, kwargs)
        return result

    _passed: Passed = Passed()
    _compile_times: CompileTimes | None = None  # of the last lowering that compiled
    _planned: tuple[Compilation, list[Remembered], Signature | None] | None = None

    @property
    def compilation(self) -> Compilation:
        return self._plan()[0]

    @property
    def past(self) -> Past:
        """What the function was compiled for so far, and how this call relates to it."""
        _, history, signature = self._plan()
        return past_of(history, signature)

    def remember(self, seconds: float) -> None:
        """It was compiled by us, past JAX: the function remembers it, as what JAX compiles.
        seconds: that compiling took."""
        _, history, signature = self._plan()
        if signature is not None:
            record_call(history, signature, self.compilation.request, seconds)

    def _plan(self) -> tuple[Compilation, list[Remembered], Signature | None]:
        if self._planned is None:
            planned = plan_request(super().lower)
            made = Compilation.of(planned.request, planned.reason)
            call = planned.call
            if call is None or call.mark is None:
                self._planned = made, [], None
            else:
                with as_passed(self._passed):
                    signature = signature_of_call(call, planned.request)
                self._planned = made, call.mark.history, signature
        return self._planned

    def _name(self) -> str:
        return str(self.fun_name)

    def as_text(self) -> str:
        """The text of the jaxpr."""
        return str(self.jaxpr)

    def lower(self, **jax_options: Any) -> Lowered:
        """Lower to what XLA compiles, in which our kernels are calls. jax_options: those of JAX's
        `Traced.lower`."""
        found: list[CompileTimes] = []
        with as_passed(self._passed), noting(found, thread=threading.get_ident()):
            lowered = Lowered.of(super().lower(**jax_options), self)
        self._compile_times = found[-1] if found else self._compile_times
        return lowered


class _AfterTracing(_Shown):
    """What was made of `_traced`."""

    _traced: Traced

    @classmethod
    def of(cls, made: Any, traced: Traced) -> Self:
        """JAX's object itself becomes one of ours. made: that object; traced: what it was made
        of."""
        made.__class__ = cls
        made._traced = traced
        result: Self = made
        return result

    @property
    def compilation(self) -> Compilation:
        return self._traced.compilation

    @property
    def past(self) -> Past:
        return self._traced.past

    def _name(self) -> str:
        return self._traced._name()


class Lowered(_AfterTracing, jax.stages.Lowered):
    """A `jax.stages.Lowered` that shows the kernels and their schedule."""

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The text form of a stage.

        dialect: one of ours (jaxpr, graph, dispatches, plan, loops, host, and llvm or asm, for a
            GPU cuda or ptx) or of JAX's ("stablehlo", the default, or "hlo"). debug_info: whether
            JAX's have locations.

        Ours are stable between processes; "graph", "dispatches" and "plan" parse back. Raises
        OptionsError for others.
        """
        if dialect in (None, "stablehlo", "hlo"):
            return super().as_text(dialect, debug_info=debug_info)
        return self._text(dialect)

    def cost_analysis(self) -> Any:
        """As that of `Compiled`."""
        return _cost(super().cost_analysis(), self.plan)

    def compile(self, *args: Any, **jax_options: Any) -> Compiled:
        """Machine code, ready to call. args, jax_options: what JAX's takes (`compiler_options`).

        Raises UnsupportedOpError for symbolic sizes.
        """
        if not all(map(has_static_shape, self._traced.jaxpr.in_avals)):
            self.compilation.run_until("codegen")  # its error says more than XLA's
        return Compiled.of(super().compile(*args, **jax_options), self._traced)


class Compiled(_AfterTracing, jax.stages.Compiled):
    """A `jax.stages.Compiled`: call it with the kinds of arguments it was traced with."""

    @remembered
    def plan(self) -> Plan:
        """As that of `Lowered`; its dispatches say which kernels they launch (`kernel`)."""
        made = self.compilation.run_until("codegen")
        return with_kernels(made.plan, made.regions, made.kernels)

    @property
    def compile_times(self) -> CompileTimes:
        """How long each step of our compiler took, and how many kernels were compiled or cached.
        Where the function had been compiled before, of doing it again."""
        known = self._traced._compile_times
        return known or self.compilation.run_until("load").compile_times

    def as_text(self, stage: str | None = None) -> Any:
        """As `Lowered.as_text` for a stage of ours; without one, XLA's text of the executable."""
        return super().as_text() if stage is None else self._text(stage)

    def cost_analysis(self) -> Any:
        """XLA's analysis, in which `flops` and `bytes accessed` count our dispatches, too."""
        return _cost(super().cost_analysis(), self.plan)

    def memory_analysis(self) -> Any:
        """XLA's analysis, and ours as further attributes and as items; see `MemoryAnalysis`."""
        return MemoryAnalysis(super().memory_analysis(), self.compilation)


def _cost(theirs: Any, plan: Plan) -> dict[str, float]:
    """XLA knows nothing of what its calls of our programs do, and counts their buffers."""
    found = dict(theirs or {})
    native = [d for d in plan.dispatches if d.kind != "delegate"]
    if len(native) == len(plan.dispatches):
        found["bytes accessed"] = float(sum(d.nbytes for d in native))
    found["flops"] = max(found.get("flops", 0.0), 0.0) + float(sum(d.flops for d in native))
    return found


class MemoryAnalysis(dict[str, int]):
    """Bytes of a compiled function.

    As items: transient_nbytes and arena_nbytes, of transient buffers before and after packing (the
    end of the last slot); peak_nbytes, what of it a call allocates (see `Plan`);
    scratch_nbytes_per_worker, what kernels need besides while they run, allocated with the arena
    for each thread of XLA's pool; workspace_nbytes, what all threads of one kernel share, in the
    arena behind transients; argument_nbytes, result_nbytes, constant_nbytes.
    As attributes: all that JAX's `memory_analysis` has. `temp_size_in_bytes` is XLA's and ours.
    """

    def __init__(self, theirs: Any, compilation: Compilation) -> None:
        hosts, plan = compilation.run_until("host").hosts.values(), compilation.plan
        kernels = [made.kernel for made in compilation.kernels.values()]
        kinds = {"argument": 0, "result": 0, "constant": 0}
        for buffer in plan.buffers:
            if buffer.kind in kinds:
                kinds[buffer.kind] += buffer.nbytes
        super().__init__(
            transient_nbytes=plan.transient_nbytes,
            arena_nbytes=plan.arena_nbytes,
            peak_nbytes=plan.peak_nbytes,
            scratch_nbytes_per_worker=max((host.scratch_nbytes() for host in hosts), default=0),
            workspace_nbytes=max((kernel.workspace_nbytes for kernel in kernels), default=0),
            **{f"{kind}_nbytes": nbytes for kind, nbytes in kinds.items()},
        )
        self._theirs = theirs

    @property
    def temp_size_in_bytes(self) -> int:
        """XLA's temporaries and the arena of ours."""
        ours = self["peak_nbytes"] + self["workspace_nbytes"]
        return int(self._theirs.temp_size_in_bytes) + ours

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._theirs, name)
