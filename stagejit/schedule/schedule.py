"""`Schedule`: the plan, and what a backend needs to carry it out.

Input: made by `build.py`. Output: read by code generation and the runtime. Invariant: a run touches
nothing but its arguments, its results and its arena; segments are executed in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Value
from stagejit.schedule.plan import Dispatch, Plan


@dataclass(frozen=True, eq=False)
class Step:
    """One dispatch with its region.

    reads: names of the buffers of `region.reads`; writes: of `region.writes`.
    bodies: schedules of `region.bodies`, each one run; `dispatch.bodies` says where their buffers
    lie.
    """

    dispatch: Dispatch
    region: Region
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bodies: tuple[Schedule, ...] = ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """Every buffer that the step touches, each once."""
        inner = (body.workspace for body in self.dispatch.bodies if body.workspace)
        return tuple(dict.fromkeys((*self.reads, *self.writes, *inner)))


@dataclass(frozen=True, eq=False)
class Run:
    """Consecutive native dispatches: one custom call.

    arguments: buffers whose contents come in (arguments and constants of the function, and values
    of other segments), in order. results: buffers whose contents go out. aliases: (result,
    argument) positions of one and the same buffer, which the run updates in place. arena_nbytes:
    memory for the transients that live in this run only; `Buffer.slot` are offsets in it.
    """

    steps: tuple[Step, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...]
    arena_nbytes: int


@dataclass(frozen=True, eq=False)
class Delegation:
    """An equation left to XLA: `step.region.anchor` is the op. reads and writes of the step are its
    operands' and results' buffers."""

    step: Step
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """See the module's docstring.

    graph: of dispatches. segments: in execution order. A buffer that several segments write is one
    value after the other for XLA: each segment takes the latest. outputs: for each result its
    buffer,
    whose shape may be another row-major shape of the same elements. aliases: (result, argument)
    numbers that share memory. buffer_of: the buffer of every value that a region reads or writes.
    overwritten: by region, inside of loops and branches too, the inputs whose memory its results
    take, see `dispatch/in_place.py`.
    """

    graph: Graph
    plan: Plan
    segments: tuple[Run | Delegation, ...]
    outputs: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...]
    buffer_of: Mapping[Value, str]
    overwritten: Mapping[Region, frozenset[Value]]
