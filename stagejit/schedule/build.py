"""From regions to a schedule: buffers, hazards, order, memory, barriers, runs.

Input: a graph of dispatches, its regions and options. Output: a `Schedule`. Invariant:
`verifier/plans.py` accepts the plan; the same input gives the same plan in every process.

Note [Program order first]: what a region touches of values is worked out once. Who waits for whom
in program order says in which order to run; buffers and hazards are those of program order where
that is the same, and where no result comes to lie in an argument. Where there are two orders, they
are told apart by the memory that they take: barriers are worked out for the one that is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from stagejit.base.decisions import Decision, path_inside
from stagejit.base.machine import SMALL_SERVER, Machine
from stagejit.base.records import record, replace
from stagejit.dispatch.bodies import counted_inside
from stagejit.dispatch.outputs import donations
from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops.moving.views import behind_aliases
from stagejit.options import Options
from stagejit.schedule import reuse
from stagejit.schedule.bodies import Bodies, placed_bodies
from stagejit.schedule.bufferize import Bufferized, Launch, Memory, bufferize, equation_name
from stagejit.schedule.conflicts import hazards
from stagejit.schedule.conflicts.hazards import HazardGraph
from stagejit.schedule.conflicts.order import (
    BESIDE,
    brought_together,
    execution_order,
    readers_first,
    runs,
)
from stagejit.schedule.conflicts.reduction import barriers
from stagejit.schedule.memory.shared import add_shared
from stagejit.schedule.plans.plan import Delegated, Plan
from stagejit.schedule.schedule import Schedule, Step, segments_of
from stagejit.schedule.slots import Slots, Transients
from stagejit.schedule.threads import parallel_loops
from stagejit.schedule.threads.waves import waves_of

# At 100 GFLOP/s and 25 GB/s a core, what takes less than some 40 microseconds.
_MOST_FLOPS, _MOST_NBYTES = 1 << 22, 1 << 20


def schedule(
    graph: Graph,
    regions: Sequence[Region],
    options: Options | None = None,
    decisions: Iterable[Decision] = (),
    machine: Machine = SMALL_SERVER,
) -> Schedule:
    """The schedule of a graph of dispatches and its regions, see `dispatch/regions.py`."""
    options = options or Options()
    context = _Context(options, machine)
    made = _Function(graph, regions, context, decisions, donations(graph)).schedule()
    return replace(made, waves=dict(waves_of(made, options, machine)))


@record
class _Context:
    """What a function is scheduled for. alone: it runs on one thread, which shares the iterations
    of a loop around it with others. known: bodies that run so, by their loop: each is scheduled
    once, however many loops are around it."""

    options: Options
    machine: Machine
    alone: bool = False
    known: dict[Region, Bodies] = field(default_factory=dict)


@record
class _Ordered:
    """A function whose dispatches have an order and memory, and no barriers yet. graph: without
    those who wait for memory that buffers share; reused: see `reuse`."""

    made: Bufferized
    graph: HazardGraph
    slots: Slots
    segment: Sequence[int]
    reused: Mapping[Value, Value]
    plan: Plan


class _Function:
    """A function to be scheduled, or the body of a loop or a branch.

    pairs: the argument that a result should lie in, by result; of a function those of donated
    arguments and results that JAX makes. counted: see `bufferize`."""

    def __init__(
        self,
        graph: Graph,
        regions: Sequence[Region],
        context: _Context,
        decisions: Iterable[Decision],
        pairs: Mapping[int, int],
        counted: Mapping[Value, tuple[int, int]] | None = None,
        *,
        is_body: bool = False,
    ) -> None:
        self.graph, self.pairs, self.is_body = graph, pairs, is_body
        self.context, self.options = context, context.options
        self.counted = counted or {}
        self.memory = Memory(graph)
        self.decisions = list(decisions)
        self.launches = [Launch.of(region, self._bodies(region)) for region in regions]

    def _bodies(self, region: Region) -> Bodies | None:
        """The bodies of a loop or branch. Threads share the outermost loop that they may."""
        if not region.bodies:
            return None
        if region.definition.is_loop and self.options.enabled(parallel_loops.NAME):
            made, decision = self._shared(region)
            self.decisions.append(decision)
        else:
            made = self._placed(region, self.context)
        for body in made.each:
            inside = body.schedule.plan
            path = path_inside("", region.name, inside.name)
            self.decisions += (each.inside(path) for each in inside.decisions)
        return made

    def _shared(self, region: Region) -> tuple[Bodies, Decision]:
        """The bodies of a loop, on several threads where they should share it."""
        known = self.context.known
        if region not in known:
            known[region] = self._placed(region, replace(self.context, alone=True))
        made = known[region]
        if self.context.alone:
            return made, parallel_loops.declined(region, "threads share a loop around it")
        made, decision = parallel_loops.shared(region, made, self.context.machine, self.options)
        loops = (inner for inner in with_inner(region.bodies[0].regions) if inner.bodies)
        if not decision.applied and any(loops):
            made = self._placed(region, self.context)
        return made, decision

    def _placed(self, region: Region, context: _Context) -> Bodies:
        """The bodies, each with its schedule."""
        assert region.anchor is not None
        counted, schedules = counted_inside(region.anchor, region.scalars), []
        for body in region.bodies:
            schedules.append(
                _Function(
                    body.graph, body.regions, context, (), body.carried, counted, is_body=True
                ).schedule()
            )
            counted = {}  # a condition counts nothing
        return placed_bodies(region, schedules)

    def schedule(self) -> Schedule:
        first = self._bufferized(self.launches, {})
        order, other = self._orders(*first)
        made = self._in_order(order, first)
        if other == order:
            return self._with_barriers(made)
        beside = self._in_order(other, first)
        extra = beside.plan.peak_nbytes - made.plan.peak_nbytes
        at = next(at for at, instead in zip(other, order, strict=True) if at != instead)
        moved = self.launches[at].region
        chosen, reason = (
            (made, f"it would take {extra} bytes of transients more")
            if extra > 0
            else (beside, "runs beside dispatches that it does not depend on")
        )
        name = f"@{moved.name} {moved.kind}"
        decision = Decision(BESIDE, name, chosen is beside, reason, moved.loc)
        plan = replace(chosen.plan, decisions=(*chosen.plan.decisions, decision))
        return self._with_barriers(replace(chosen, plan=plan))

    def _bufferized(
        self, launches: Sequence[Launch], reused: Mapping[Value, Value]
    ) -> tuple[Bufferized, HazardGraph]:
        """Buffers and accesses of what is launched in this order, and who waits for whom."""
        made = bufferize(self.graph, self.memory, launches, reused, self.counted)
        graph = hazards.hazard_graph(made.dispatches)
        ordering = [op for op in self.graph.ops() if op.definition.orders]
        if ordering:
            reading: dict[Value, list[int]] = {}
            for at, launch in enumerate(launches):
                for value in dict.fromkeys(map(behind_aliases, launch.region.op.operands)):
                    reading.setdefault(value, []).append(at)
            behind = [{at for v in op.results for at in reading.get(v, ())} for op in ordering]
            hazards.add_orders(graph, made.dispatches, behind)
        return made, graph

    def _orders(self, made: Bufferized, graph: HazardGraph) -> tuple[list[int], list[int]]:
        """The launches in execution order, and in another one in which small dispatches run beside
        others."""
        before = hazards.predecessors(graph)
        if self.pairs and self.options.enabled(reuse.NAME):
            reading, writing = reuse.touching(self.memory, self.launches)
            for number, argument in self.pairs.items():
                value = self.graph.inputs[argument]
                root = self.memory.roots[self.graph.outputs[number]]
                if root is not value:
                    readers_first(reading.get(value, ()), writing.get(root, ()), before)
        delegated = [launch.delegated for launch in self.launches]
        order = execution_order(delegated, before)
        if any(delegated) or self.options.full_barriers or not self.options.enabled(BESIDE):
            return order, order
        sizes = [step.dispatch.nbytes for step in made.steps]
        if not all(isinstance(nbytes, int) for nbytes in sizes):
            return order, order  # nothing says which ones are small
        small = [_is_small(*each) for each in zip(made.steps, sizes, strict=True)]
        return order, brought_together(order, before, small)

    def _in_order(self, order: Sequence[int], first: tuple[Bufferized, HazardGraph]) -> _Ordered:
        """first: buffers and hazards in program order."""
        launches = [self.launches[at] for at in order]
        decisions = self.decisions
        reused: dict[Value, Value] = {}
        if self.pairs and self.options.enabled(reuse.NAME):
            reused, more = reuse.reused_arguments(self.graph, self.memory, launches, self.pairs)
            decisions = [*decisions, *more]
        again = reused or launches != self.launches
        made, graph = self._bufferized(launches, reused) if again else first
        segment = runs([launch.delegated for launch in launches])
        before = hazards.predecessors(graph)
        transients = Transients(
            made.steps, made.buffers, before, segment, self.options, whole_function=not self.is_body
        )
        slots = transients.slots()
        plan = Plan(
            self.graph.name,
            made.dispatches,
            (),
            tuple(slots.buffers.values()),
            tuple(_delegated(made.steps)),
            (*decisions, *slots.decisions),
            made.scalars,
        )
        return _Ordered(made, graph, slots, segment, reused, plan)

    def _with_barriers(self, ordered: _Ordered) -> Schedule:
        made, graph, slots = ordered.made, ordered.graph, ordered.slots
        add_shared(graph, made.dispatches, slots.shared())
        for wait in slots.waits:
            graph.add(wait)
        full = self.options.full_barriers
        waits = tuple(barriers(made.dispatches, made.buffers, graph, full=full))
        outputs = tuple(made.buffer_of[value] for value in self.graph.outputs)
        parts = segments_of(made.steps, ordered.segment, slots.buffers, made.buffer_of, outputs)
        taken = self._overwritten(made.steps, slots.overwritten, ordered.reused)
        plan = replace(ordered.plan, barriers=waits)
        return Schedule(self.graph, plan, parts, outputs, made.buffer_of, taken)

    def _overwritten(
        self,
        steps: Sequence[Step],
        of_transients: Mapping[int, frozenset[Value]],
        reused: Mapping[Value, Value],
    ) -> dict[Region, frozenset[Value]]:
        """The inputs whose memory a region's results take: of dead transients, by position, of
        donated arguments, and those of regions inside of loops and branches."""
        found = {steps[at].region: values for at, values in of_transients.items()}
        roots = self.memory.roots
        for region in (step.region for step in steps if reused):
            gone = {reused.get(roots[value]) for value in region.writes}
            taken = frozenset(value for value in region.reads if roots[value] in gone)
            if taken:
                found[region] = found.get(region, frozenset()) | taken
        for launch in self.launches:
            for body in launch.bodies.each if launch.bodies else ():
                found |= body.schedule.overwritten
        return found


def _is_small(step: Step, nbytes: int) -> bool:
    """Whether a dispatch has too little work for all cores."""
    few = step.dispatch.flops <= _MOST_FLOPS and nbytes <= _MOST_NBYTES
    return few and step.region.has_kernel


def _delegated(steps: Iterable[Step]) -> Iterator[Delegated]:
    for region in (step.region for step in steps if step.delegated):
        anchor = region.anchor
        assert anchor is not None
        reason = " ".join(str(anchor.attrs.get("reason", "")).split())
        yield Delegated(region.name, equation_name(anchor), reason, anchor.loc)
