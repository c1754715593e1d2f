"""Bufferization: values that are tied together share one buffer, of which dispatches access boxes.

Input: a graph of dispatches, its regions with what they touch, in execution order, and which
results lie in donated arguments. Output: the buffers, and a `Step` for each region. Invariant:
nothing is decided here; a buffer is what a chain of ties, barriers and aliases ends at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stagejit.base.formulas import bare, renamed
from stagejit.base.records import record
from stagejit.base.symbolic import Int, Symbol, expr
from stagejit.dispatch.ranges.accesses import Touch, reads_of, rereads_of, writes_of
from stagejit.dispatch.ranges.splits import TouchedParts, parts_of_region
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import before
from stagejit.graph.ops.elementwise import function_of
from stagejit.index.box import Box, hull_of
from stagejit.index.box_index import fill_box
from stagejit.schedule.bodies import Bodies, touches_of
from stagejit.schedule.plans.plan import Access, Buffer, BufferKind, Dispatch, HostScalar, Parts
from stagejit.schedule.schedule import Step
from stagejit.types import u8


@record(eq=False)
class Launch:
    """A region with what it touches: worked out once, whatever the order and the buffers are."""

    region: Region
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]
    bodies: Bodies | None = None
    parts: tuple[TouchedParts, ...] = ()

    @staticmethod
    def of(region: Region, bodies: Bodies | None = None) -> Launch:
        """bodies: those of a loop or branch."""
        if bodies is None:
            reads = (*reads_of(region), *rereads_of(region))
            parts = tuple(parts_of_region(region))
            return Launch(region, reads, tuple(writes_of(region)), parts=parts)
        return Launch(region, *touches_of(region, bodies), bodies)

    @property
    def delegated(self) -> bool:
        return self.region.definition.is_left


class Memory:
    """roots: for each value of a graph the earliest that lay in its memory; outputs: the number of
    the result that a root holds."""

    def __init__(self, graph: Graph) -> None:
        self.roots: dict[Value, Value] = {}
        results = (result for op in graph.ops() for result in op.results)
        for value in (*graph.inputs, *results):
            earlier = before(value)
            self.roots[value] = value if earlier is None else self.roots[earlier]
        self.outputs = {self.roots[value]: number for number, value in enumerate(graph.outputs)}


@record(eq=False)
class Bufferized:
    """buffers: by name. buffer_of: the name of the buffer of each value that has one. scalars: what
    the symbols in offsets stand for."""

    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
    buffer_of: Mapping[Value, str]
    scalars: tuple[HostScalar, ...]

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return tuple(step.dispatch for step in self.steps)


def bufferize(
    graph: Graph,
    memory: Memory,
    launches: Iterable[Launch],
    reused: Mapping[Value, Value],
    counted: Mapping[Value, tuple[int, int]],
) -> Bufferized:
    """reused: the donated argument that each of these roots lies in. counted: the first value and
    the step of inputs of a loop's body that count its iterations."""
    home = {value: reused.get(root, root) for value, root in memory.roots.items()}
    buffers = _Buffers(graph, home, {home[root]: at for root, at in memory.outputs.items()})
    symbols = _Symbols(buffers.names, {buffers.of(value).name: counted[value] for value in counted})
    steps = tuple(_step(launch, buffers, symbols) for launch in launches)
    for value in graph.outputs:
        buffers.of(value)
    return Bufferized(
        steps,
        {buffer.name: buffer for buffer in (*buffers.by_home.values(), *buffers.workspaces)},
        {value: buffers.by_home[at].name for value, at in home.items() if at in buffers.by_home},
        tuple(symbols.scalars.values()),
    )


class Names:
    """Hands out names that the text form of a plan can carry, no two of them equal: the caller's
    for arguments (`given`), numbered letters for all others."""

    def __init__(self, given: Sequence[str] = ()) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self.given = [self._distinct(re.sub(r"\W+", "_", name).strip("_") or "x") for name in given]

    def new(self, letter: str) -> str:
        """The next of `letter`0, `letter`1, ..."""
        while True:
            number = self._next.get(letter, 0)
            self._next[letter] = number + 1
            name = f"{letter}{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _distinct(self, name: str) -> str:
        if name in self._taken:
            return self.new(f"{name}_")
        self._taken.add(name)
        return name


class _Buffers:
    """Arguments and results have buffers from the start, constants and transients when they are
    first asked for. results: by home, their numbers."""

    def __init__(
        self, graph: Graph, home: Mapping[Value, Value], results: Mapping[Value, int]
    ) -> None:
        self.home, self.names, self._constants = home, Names(graph.input_names), 0
        self.by_home: dict[Value, Buffer] = {}
        self.workspaces: list[Buffer] = []
        counts = {"argument": itertools.count(), "weight": itertools.count()}
        for value, name in zip(graph.inputs, self.names.given, strict=True):
            kind: BufferKind = "weight" if graph.is_bound(value) else "argument"
            self.by_home[value] = Buffer(
                name,
                value.shape,
                value.type.dtype,
                kind,
                next(counts[kind]),
                result=results.get(value),
                layout=value.type.layout,
            )
        for value, number in sorted(results.items(), key=lambda item: item[1]):
            if value not in self.by_home:
                name = self.names.new("r")
                self.by_home[value] = Buffer(name, value.shape, value.type.dtype, "result", number)

    def of(self, value: Value) -> Buffer:
        """The buffer that the value lies in."""
        home = self.home[value]
        known = self.by_home.get(home)
        if known is None:
            known = self.by_home[home] = self._new(home)
        return known

    def _new(self, home: Value) -> Buffer:
        dtype = home.type.dtype
        if not home.op.definition.is_constant:
            name = self.names.new("t")
            return Buffer(name, home.shape, dtype, "transient", layout=home.type.layout)
        self._constants += 1
        name, number, layout = self.names.new("c"), self._constants - 1, home.type.layout
        return Buffer(name, home.shape, dtype, "constant", number, layout=layout)

    def workspace(self, nbytes: int) -> Buffer:
        """Memory for what a loop or a branch needs while it runs."""
        self.workspaces.append(Buffer(self.names.new("w"), (nbytes,), u8, "transient"))
        return self.workspaces[-1]


class _Symbols:
    """Short names for the offsets that the host computes: equal formulas with equal bounds get one,
    in order of appearance. counts: by the argument that counts iterations."""

    def __init__(self, names: Names, counts: Mapping[str, tuple[int, int]]) -> None:
        self.names, self.counts = names, counts
        self.scalars: dict[Symbol, HostScalar] = {}
        self.values: dict[Symbol, Int] = {}
        self.own: set[Symbol] = set()  # numbers of parts, which no formula gives

    def short(self, box: Box) -> Box:
        """The box in terms of short names."""
        symbols = box.symbols()
        for symbol in symbols:
            if symbol not in self.scalars and symbol not in self.own:
                formula = renamed(bare(symbol.name), self.names.given)
                short = Symbol(self.names.new("s"), symbol.low, symbol.high)
                self.scalars[symbol] = HostScalar(short, formula, self.counts.get(formula))
                self.values[symbol] = expr(short)
        return box.at(self.values) if symbols else box


def _step(launch: Launch, buffers: _Buffers, symbols: _Symbols) -> Step:
    region, bodies = launch.region, launch.bodies
    read = tuple(buffers.of(value).name for value in region.reads)
    written = tuple(buffers.of(value).name for value in region.writes)
    reads = dict.fromkeys(_access(touch, buffers, symbols) for touch in launch.reads)
    stored = tuple(_access(touch, buffers, symbols) for touch in launch.writes)
    writes = tuple(dict.fromkeys(stored))
    if region.borders:
        writes = _united(writes, {b.name: b for b in map(buffers.of, region.writes)})
    made = Dispatch(
        region.name,
        region.kind,
        _op_names(region),
        tuple(reads),
        writes,
        sum(op.definition.flops(op) for op in region.ops),
        region.loc,
    )
    if region.borders:  # their stores come after those of the region itself
        moved = sum(access.nbytes for access in stored[: len(region.stores)])
        made = replace(made, filled_nbytes=sum(access.nbytes for access in writes) - moved)
    if launch.parts:
        made = replace(made, parts=tuple(_parts(each, buffers, symbols) for each in launch.parts))
    if bodies is None:
        return Step(made, region, read, written, stored)
    workspace = ""
    if bodies.nbytes:
        own = buffers.workspace(bodies.nbytes)
        workspace = own.name
        made = replace(made, writes=(*writes, Access.of(own, Box.whole(own.shape))))
    made = replace(made, bodies=bodies.named(lambda value: buffers.of(value).name, workspace))
    inner = tuple(body.schedule for body in bodies.each)
    return Step(made, region, read, written, stored, inner)


def _parts(touched: TouchedParts, buffers: _Buffers, symbols: _Symbols) -> Parts:
    number = touched.number
    if touched.count > 1:
        number = Symbol(symbols.names.new("k"), number.low, number.high)
        symbols.values[touched.number] = expr(number)
    symbols.own.add(touched.number)
    reads = dict.fromkeys(_access(touch, buffers, symbols) for touch in touched.reads)
    writes = dict.fromkeys(_access(touch, buffers, symbols) for touch in touched.writes)
    return Parts(touched.first, touched.count, number, tuple(reads), tuple(writes))


def _access(touch: Touch, buffers: _Buffers, symbols: _Symbols) -> Access:
    buffer = buffers.of(touch.value)
    if touch.value.shape != buffer.shape:
        return Access.of(buffer, Box.whole(buffer.shape), exact=False, may=touch.may)
    return Access.of(buffer, symbols.short(touch.box), exact=touch.exact, may=touch.may)


def _united(accesses: Iterable[Access], buffers: Mapping[str, Buffer]) -> tuple[Access, ...]:
    """Boxes of one buffer that together fill their hull become one: an interior and its border."""
    made: list[Access] = []
    by_buffer: dict[str, list[Access]] = {}
    for access in accesses:
        by_buffer.setdefault(access.buffer, []).append(access)
    for name, of_buffer in by_buffer.items():
        boxes = [access.box for access in of_buffer if access.nbytes]
        hull = hull_of(boxes or [of_buffer[0].box])
        if all(access.must for access in of_buffer) and fill_box(boxes, hull):
            of_buffer = [Access.of(buffers[name], hull)]
        made += of_buffer
    return tuple(made)


def _op_names(region: Region) -> tuple[str, ...]:
    """What the region does, for people: constants and reshapes go without saying."""
    fills = region.kind == "fill"
    return tuple(
        _op_name(op)
        for op, known in ((op, op.definition) for op in region.ops)
        if not (
            known.is_constant
            or known.repeats
            or known.is_insert
            or known.keeps_order
            or known.splits
        )
        and (fills or not known.is_splat)
    )


def _op_name(op: Op) -> str:
    if op.definition.is_left:
        return equation_name(op)
    if op.definition.is_call:
        return str(op.attrs["target"])
    fn = op.attrs.get("fn")
    return function_of(op) or (op.kind if fn is None else f"{op.kind}_{fn}")


def equation_name(op: Op) -> str:
    """The primitive of an equation that is left to XLA."""
    primitive = getattr(op.attrs.get("equation"), "primitive", None)
    return str(getattr(primitive, "name", "equation"))
