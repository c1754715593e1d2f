"""From regions to a schedule: order, buffers, barriers, memory, runs.

Input: a graph of dispatches, its regions and options. Output: a `Schedule`. Invariant:
`verifier.verify_plan` accepts the plan; the same input gives the same plan in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.decisions import Decision
from stagejit.dispatch.accesses import Touch, reads_of, rereads_of, writes_of
from stagejit.dispatch.bodies import counted_inside
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.dispatch.outputs import donations
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.graph.ops.views import behind_aliases
from stagejit.index.box import Box
from stagejit.index.box_index import fill_box
from stagejit.options import Options
from stagejit.schedule import hazards, reduction
from stagejit.schedule.beside import NAME, brought_together, is_small
from stagejit.schedule.bodies import layout_of
from stagejit.schedule.body_accesses import touches_of
from stagejit.schedule.bufferize import Memory
from stagejit.schedule.names import Names
from stagejit.schedule.order import execution_order, readers_first, runs
from stagejit.schedule.plan import Access, Buffer, Delegated, Dispatch, Plan
from stagejit.schedule.schedule import Schedule
from stagejit.schedule.segments import segments_of
from stagejit.schedule.shared_memory import add_shared
from stagejit.schedule.slots import Slots, TransientMemory, Use, Wait
from stagejit.schedule.symbols import with_counts, with_short_symbols
from stagejit.types import u8


@dataclass(frozen=True, eq=False)
class _Item:
    """A region with what it touches."""

    region: Region
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]

    @property
    def delegated(self) -> bool:
        return self.region.definition.is_left


@dataclass(frozen=True, eq=False)
class _First:
    """What there is before anything is put in order. hazards: who waits for whom."""

    buffers: dict[Value, Buffer]
    dispatches: list[Dispatch]
    hazards: hazards.HazardGraph


def schedule(
    graph: Graph,
    regions: Sequence[Region],
    options: Options | None = None,
    decisions: Iterable[Decision] = (),
    *,
    pairs: Mapping[int, int] | None = None,
) -> Schedule:
    """The schedule of a graph of dispatches and its regions, see `dispatch/regions.py`.

    pairs: for the body of a loop or a branch, the argument that a result should lie in, by result.
        None for a whole function: the pairs of donated arguments and results that JAX makes.
    """
    options = options or Options()
    is_body = pairs is not None
    pairs = donations(graph) if pairs is None else pairs
    return _Builder(graph, regions, options, list(decisions), pairs, is_body=is_body).build()


class _Builder:
    """Builds one schedule."""

    def __init__(
        self,
        graph: Graph,
        regions: Sequence[Region],
        options: Options,
        decisions: list[Decision],
        pairs: Mapping[int, int],
        *,
        is_body: bool,
    ) -> None:
        self.graph, self.options, self.decisions, self.pairs = graph, options, decisions, pairs
        self.is_body = is_body
        self.inner = {region: self._inner(region) for region in regions if region.bodies}
        self.layouts = {region: layout_of(region, inner) for region, inner in self.inner.items()}
        self.memory = Memory(graph)
        self.items = [self._item(region) for region in regions]

    def build(self) -> Schedule:
        items, decisions = self.items, self.decisions
        first = self._made()
        order, other = self._orders(first.dispatches, first.hazards)

        def ordered(these: Sequence[int]) -> Schedule:
            self.items = [items[at] for at in these]
            self.decisions, self.memory.reused = list(decisions), {}
            return self._in_order(first if self.items == items else None)

        made = ordered(order)
        if other == order:
            return made
        beside = ordered(other)
        extra = beside.plan.peak_nbytes - made.plan.peak_nbytes
        moved = items[next(at for at, instead in zip(other, order, strict=True) if at != instead)]
        chosen, reason = (
            (made, f"it would take {extra} bytes of transients more")
            if extra > 0
            else (beside, "runs beside dispatches that it does not depend on")
        )
        name = f"@{moved.region.name} {moved.region.kind}"
        decision = Decision(NAME, name, chosen is beside, reason, moved.region.loc)
        plan = replace(chosen.plan, decisions=(*chosen.plan.decisions, decision))
        return replace(chosen, plan=plan)

    def _made(self) -> _First:
        """The dispatches of the items as they come, and who of them waits for whom."""
        buffers = self._buffers()
        dispatches = [self._dispatch(item, buffers, {}) for item in self.items]
        return _First(buffers, dispatches, self._hazards(dispatches))

    def _in_order(self, first: _First | None) -> Schedule:
        """The schedule, with the items as they are. first: what `_made` gave in this order."""
        if self.options.enabled("reuse-arguments"):
            self._reuse_arguments()
        workspaces = dict(self._workspaces())
        same = first if not self.memory.reused and not workspaces else None
        buffers = same.buffers if same else self._buffers()
        dispatches = (
            same.dispatches
            if same
            else [self._dispatch(item, buffers, workspaces) for item in self.items]
        )
        by_name = {b.name: b for b in (*buffers.values(), *workspaces.values())}
        dispatches, scalars = with_short_symbols(dispatches, by_name, self.graph.input_names)
        graph = same.hazards if same and not scalars else self._hazards(dispatches)
        segment = runs([item.delegated for item in self.items])
        names = {root: buffer.name for root, buffer in buffers.items()}
        slots = self._slots(by_name, names, workspaces, graph, segment)
        self.decisions += slots.decisions
        add_shared(graph, dispatches, slots.shared())
        for wait in slots.waits:
            hazards.add_conflict(graph, _conflict_of(wait, dispatches))
        full = self.options.full_barriers
        barriers = reduction.barriers(dispatches, by_name, graph, full=full)
        plan = Plan(
            self.graph.name,
            tuple(dispatches),
            tuple(barriers),
            tuple(slots.buffers.values()),
            tuple(self._delegated()),
            tuple(self.decisions),
            scalars,
        )
        buffer_of = dict(self.memory.buffer_of(names))
        outputs = tuple(buffer_of[value] for value in self.graph.outputs)
        parts = segments_of(
            [item.region for item in self.items], plan, segment, buffer_of, outputs, self.inner
        )
        aliases = tuple(
            (buffer.result, buffer.index)
            for buffer in plan.buffers
            if buffer.result is not None and buffer.index is not None
        )
        return Schedule(
            self.graph, plan, parts, outputs, aliases, buffer_of, self._overwritten(slots)
        )

    def _inner(self, region: Region) -> tuple[Schedule, ...]:
        """The schedules of the bodies of a loop or branch."""
        made = tuple(
            schedule(body.graph, body.regions, self.options, pairs=body.carried)
            for body in region.bodies
        )
        assert region.anchor is not None
        counted = counted_inside(region.anchor, region.scalars)
        if counted:
            made = (with_counts(made[0], counted), *made[1:])
        for inner in made:
            self.decisions += inner.plan.decisions
        return made

    def _item(self, region: Region) -> _Item:
        layout = self.layouts.get(region)
        if layout is None:
            reads = (*reads_of(region), *rereads_of(region))
            return _Item(region, reads, tuple(writes_of(region)))
        return _Item(region, *touches_of(region, layout))

    # ----------------------------------------------------------------- order

    def _orders(
        self, dispatches: Sequence[Dispatch], graph: hazards.HazardGraph
    ) -> tuple[list[int], list[int]]:
        """The items in execution order, and in another one in which small dispatches run beside
        others."""
        before = hazards.predecessors(graph)
        reading, writing = self._touching()
        for number, argument in self.pairs.items():
            value, root = self.graph.inputs[argument], self.memory.root(self.graph.outputs[number])
            if root is not value and self.options.enabled("reuse-arguments"):
                readers_first(reading.get(value, []), writing.get(root, []), before)
        delegated = [item.delegated for item in self.items]
        order = execution_order(delegated, before)
        if any(delegated) or self.options.full_barriers or not self.options.enabled(NAME):
            return order, order
        if not all(isinstance(made.nbytes, int) for made in dispatches):
            return order, order  # nothing says which ones are small
        small = [
            is_small(item.region, dispatch)
            for item, dispatch in zip(self.items, dispatches, strict=True)
        ]
        return order, brought_together(order, before, small)

    def _hazards(self, dispatches: Sequence[Dispatch]) -> hazards.HazardGraph:
        """Who waits for whom."""
        graph = hazards.hazard_graph(dispatches)
        barriers = [op for op in self.graph.ops() if op.definition.orders]
        if not barriers:
            return graph
        reading: dict[Value, list[int]] = {}
        for at, item in enumerate(self.items):
            for value in dict.fromkeys(map(behind_aliases, item.region.op.operands)):
                reading.setdefault(value, []).append(at)
        behind = [{at for value in op.results for at in reading.get(value, ())} for op in barriers]
        hazards.add_orders(graph, dispatches, behind)
        return graph

    def _buffers(self) -> dict[Value, Buffer]:
        """By the home of each value that a region reads, writes or the function returns."""
        touched: dict[Value, None] = {}
        for item in self.items:
            touched.update(dict.fromkeys(item.region.reads))
            touched.update(dict.fromkeys(item.region.writes))
        touched.update(dict.fromkeys(self.graph.outputs))
        return self.memory.buffers(touched)

    # --------------------------------------------------------------- buffers

    def _name_of(self, value: Value) -> str:
        """The dispatch that makes a result, as decisions name it."""
        made = (item.region for item in self.items if value in item.region.results)
        region = next(made, None)
        return value.op.kind if region is None else f"@{region.name} {region.kind}"

    def _workspaces(self) -> Iterator[tuple[Region, Buffer]]:
        """Memory for what loops and branches need while they run."""
        names = Names(self.graph.input_names)
        for item in self.items:
            layout = self.layouts.get(item.region)
            if layout is not None and layout.nbytes:
                yield item.region, Buffer(names.new("w"), (layout.nbytes,), u8, "transient")

    def _dispatch(
        self, item: _Item, buffers: Mapping[Value, Buffer], workspaces: Mapping[Region, Buffer]
    ) -> Dispatch:
        region, layout = item.region, self.layouts.get(item.region)
        reads = self._accesses(item.reads, buffers)
        writes = self._accesses(item.writes, buffers)
        if region.borders:
            writes = _united(writes, {buffer.name: buffer for buffer in buffers.values()})
        made = Dispatch(
            region.name,
            region.kind,
            _op_names(region),
            reads,
            writes,
            sum(op.definition.flops(op) for op in region.ops),
            region.loc,
        )
        if layout is None:
            return made
        workspace = workspaces.get(region)
        if workspace is not None:
            whole = Access.of(workspace, Box.whole(workspace.shape))
            made = replace(made, writes=(*made.writes, whole))
        return replace(
            made,
            bodies=layout.bodies(
                lambda value: buffers[self.memory.home(value)].name,
                workspace.name if workspace else "",
            ),
        )

    def _accesses(
        self,
        touches: Iterable[Touch],
        buffers: Mapping[Value, Buffer],
    ) -> tuple[Access, ...]:
        made = []
        for touch in touches:
            buffer = buffers[self.memory.home(touch.value)]
            box = touch.box if touch.value.shape == buffer.shape else Box.whole(buffer.shape)
            exact = touch.exact and box is touch.box
            made.append(Access.of(buffer, box, exact=exact, may=touch.may))
        return tuple(dict.fromkeys(made))

    # ----------------------------------------------------- reuse of arguments

    def _reuse_arguments(self) -> None:
        """Results that lie in the donated argument with which JAX pairs them."""
        reading, writing = self._touching()
        for number, argument in self.pairs.items():
            value, root = self.graph.inputs[argument], self.memory.root(self.graph.outputs[number])
            if root is value:
                continue
            reason = self._refuse_reuse(value, root, reading.get(value, []), writing.get(root, []))
            self.decisions.append(
                Decision(
                    "reuse-arguments",
                    self._name_of(self.graph.outputs[number]),
                    not reason,
                    reason
                    or f"written into the donated argument {self.graph.input_names[argument]}",
                    root.op.loc,
                )
            )
            if not reason:
                self.memory.reused[root] = value

    def _touching(self) -> tuple[dict[Value, list[int]], dict[Value, list[int]]]:
        """Positions that read, and that write, the buffer of each root."""
        reading: dict[Value, list[int]] = {}
        writing: dict[Value, list[int]] = {}
        for at, item in enumerate(self.items):
            for touching, values in ((reading, item.region.reads), (writing, item.region.writes)):
                for root in dict.fromkeys(self.memory.root(value) for value in values):
                    touching.setdefault(root, []).append(at)
        return reading, writing

    def _refuse_reuse(
        self, argument: Value, root: Value, reading: Sequence[int], writing: Sequence[int]
    ) -> str:
        """Why `root`, written at the positions `writing`, cannot lie in the memory of `argument`,
        read at `reading`; empty if it can."""
        if argument in self.memory.outputs:
            return "another result lies in it"
        if root.op.definition.is_left:
            return "a delegated equation makes the result"
        if not reading or not writing or reading[-1] < writing[0]:
            return ""
        if any(self.items[at].delegated for at in writing):
            return "a delegated equation makes the result"
        if reading[-1] > writing[0]:
            return "the argument is read after the result is written"
        region = self.items[writing[0]].region
        of_root = zip(region.stores, region.results, strict=True)
        stores = [store for store, value in of_root if value is root]
        if not stores:
            return "the dispatch writes a part of the result"
        given = zip(region.inputs, region.operands, strict=True)
        read = [own for own, value in given if self.memory.root(value) is argument]
        return next(filter(None, (refuse_in_place(region, own, stores[0]) for own in read)), "")

    # ---------------------------------------------------------------- memory

    def _slots(
        self,
        buffers: Mapping[str, Buffer],
        names: Mapping[Value, str],
        workspaces: Mapping[Region, Buffer],
        graph: hazards.HazardGraph,
        segment: Sequence[int],
    ) -> Slots:
        """Transients of one run get slots; those that pass between segments do not."""
        uses = [
            Use(
                item.region,
                tuple(names[self.memory.home(value)] for value in item.region.reads),
                tuple(names[self.memory.home(value)] for value in item.region.writes),
                workspaces[item.region].name if item.region in workspaces else "",
            )
            for item in self.items
        ]
        memory = TransientMemory(
            uses,
            buffers,
            hazards.predecessors(graph),
            segment,
            self.options,
            whole_function=not self.is_body,
        )
        return memory.slots()

    def _overwritten(self, slots: Slots) -> dict[Region, frozenset[Value]]:
        """The inputs whose memory a region's results take: of dead transients, of donated
        arguments, and those of regions inside of loops and branches."""
        made = {self.items[at].region: values for at, values in slots.overwritten.items()}
        for item in self.items:
            roots = {self.memory.root(value) for value in item.region.writes}
            gone = {
                self.memory.root(self.memory.reused[root])
                for root in roots
                if root in self.memory.reused
            }
            taken = frozenset(
                value for value in item.region.reads if self.memory.root(value) in gone
            )
            if taken:
                made[item.region] = made.get(item.region, frozenset()) | taken
        for schedules in self.inner.values():
            for inner in schedules:
                made |= inner.overwritten
        return made

    def _delegated(self) -> Iterable[Delegated]:
        for item in self.items:
            anchor = item.region.anchor
            if item.delegated and anchor is not None:
                yield Delegated(
                    item.region.name,
                    _equation_name(anchor),
                    " ".join(str(anchor.attrs.get("reason", "")).split()),
                    anchor.loc,
                )


def _united(accesses: Sequence[Access], buffers: Mapping[str, Buffer]) -> tuple[Access, ...]:
    """Boxes of one buffer that together fill their hull become one: an interior and its border."""
    by_buffer: dict[str, list[Access]] = {}
    for access in accesses:
        by_buffer.setdefault(access.buffer, []).append(access)
    made: list[Access] = []
    for name, of_buffer in by_buffer.items():
        boxes = [access.box for access in of_buffer if access.nbytes]
        hull = boxes[0] if boxes else of_buffer[0].box
        for box in boxes:
            hull, _ = hull.hull(box)
        if all(access.must for access in of_buffer) and fill_box(boxes, hull):
            of_buffer = [Access.of(buffers[name], hull)]
        made += of_buffer
    return tuple(made)


def _conflict_of(wait: Wait, dispatches: Sequence[Dispatch]) -> hazards.Conflict:
    """What is read before another buffer is written in its place."""
    reads = dispatches[wait.first].reads
    boxes = tuple(access.box for access in reads if access.buffer == wait.buffer)
    return hazards.Conflict(wait.first, wait.second, "WAR", wait.buffer, boxes)


def _op_names(region: Region) -> tuple[str, ...]:
    """What the region does, for people: constants and reshapes go without saying."""
    fills = region.kind == "fill"
    return tuple(
        _op_name(op)
        for op, known in ((op, op.definition) for op in region.ops)
        if not (known.is_constant or known.repeats or known.is_insert or known.keeps_order)
        and (fills or not known.is_splat)
    )


def _op_name(op: Op) -> str:
    if op.definition.is_left:
        return _equation_name(op)
    if op.definition.is_call:
        return str(op.attrs["target"])
    fn = op.attrs.get("fn")
    return function_of(op) or (op.kind if fn is None else f"{op.kind}_{fn}")


def _equation_name(op: Op) -> str:
    equation = op.attrs.get("equation")
    primitive = getattr(equation, "primitive", None)
    return str(getattr(primitive, "name", "equation"))
