"""`Traced`, `Lowered`, `Compiled`: what `f.trace`, `f.lower` and `.compile()` return.

Input: a traced call of a jitted function. Output: the stages of its compilation, each with a text
form. Invariant: what is shown is what runs: the same jaxpr goes through the same pipeline as in a
call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stagejit.errors import OptionsError
from stagejit.graph.ir import Graph
from stagejit.inspect.explain import Explanation, explain
from stagejit.pipeline import Compilation
from stagejit.runtime.embedding import Request
from stagejit.schedule.plan import Plan


@dataclass(frozen=True)
class Traced:
    """A function traced to a jaxpr. `jaxpr` is what the compiler receives."""

    request: Request
    _jax: Any  # jax.stages.Traced of the whole call

    @property
    def jaxpr(self) -> Any:
        return self.request.jaxpr

    @property
    def fun_name(self) -> str:
        """The name of the traced function; `jax.export` asks for it."""
        return str(self._jax.fun_name)

    @property
    def out_info(self) -> Any:
        """Shapes and dtypes of the results; `jax.eval_shape` asks for it."""
        return self._jax.out_info

    def as_text(self) -> str:
        return str(self.jaxpr)

    def lower(self, **jax_options: Any) -> Any:
        """Lowered by stagejit; with options of jax's own `lower` (as `jax.export` calls it), JAX's
        lowering of the whole call, which contains ours."""
        if jax_options:
            return self._jax.lower(**jax_options)
        return Lowered(self.request, self._jax)


@dataclass(frozen=True)
class Lowered:
    """A function lowered to kernels and a schedule, not yet to machine code."""

    request: Request
    _jax: Any

    @cached_property
    def compilation(self) -> Compilation:
        """The pipeline's state after every step but the last."""
        return Compilation(self.request)

    @property
    def graph(self) -> Graph:
        """The graph after all rewrites; `graph.nx` is its networkx graph."""
        return self.compilation.run_until("rewrite").graph

    @property
    def plan(self) -> Plan:
        return self.compilation.run_until("schedule").plan

    @property
    def explanation(self) -> Explanation:
        """Each decision with its reason, and what is written where, by source line."""
        return explain(self.compilation.run_until("schedule").schedule)

    def as_text(self, stage: str = "plan") -> str:
        """The text form of a stage: jaxpr, graph, plan, loops, host, llvm or asm.

        Stable between processes; "graph" and "plan" parse back. Raises OptionsError for others.
        """
        return _text(self.compilation, stage)

    def compile(self) -> Compiled:
        """Machine code, ready to call."""
        return Compiled(self.compilation.run_until("load"), self._jax.lower().compile())


@dataclass(frozen=True)
class Compiled:
    """A compiled function: call it with the same kinds of arguments it was traced with."""

    compilation: Compilation
    _jax: Any  # jax.stages.Compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jax(*args, **kwargs)

    @property
    def plan(self) -> Plan:
        return self.compilation.plan

    def as_text(self, stage: str = "llvm") -> str:
        """As `Lowered.as_text`; the usual stages here are "llvm" and "asm"."""
        return _text(self.compilation, stage)

    def cost_analysis(self) -> dict[str, float]:
        """`flops` of all dispatches and `bytes accessed`, by the cost model."""
        dispatches = self.plan.dispatches
        return {
            "flops": float(sum(d.flops for d in dispatches)),
            "bytes accessed": float(sum(d.nbytes for d in dispatches)),
        }

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of transient buffers, before and after packing, and of arguments and results.

        arena_nbytes: end of the last slot. peak_nbytes: what of it a call allocates (see `Plan`).
        scratch_nbytes_per_worker: what kernels need besides while they run, allocated with the
        arena for each thread of XLA's pool.
        """
        hosts = self.compilation.hosts.values()
        kinds = {"argument": 0, "result": 0, "constant": 0}
        for buffer in self.plan.buffers:
            if buffer.kind in kinds:
                kinds[buffer.kind] += buffer.nbytes
        return {
            "transient_nbytes": self.plan.transient_nbytes,
            "arena_nbytes": self.plan.arena_nbytes,
            "peak_nbytes": self.plan.peak_nbytes,
            "scratch_nbytes_per_worker": max((host.scratch_nbytes() for host in hosts), default=0),
            **{f"{kind}_nbytes": nbytes for kind, nbytes in kinds.items()},
        }


def _text(compilation: Compilation, stage: str) -> str:
    texts = compilation.texts()
    if stage not in texts:
        raise OptionsError(
            f"there is no stage {stage!r}", next_step=f"choose one of {', '.join(texts)}"
        )
    return texts[stage]()
