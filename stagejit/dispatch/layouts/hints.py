"""Which layouts passes would like for memory between dispatches.

Input: a graph of dispatches. Output: `LayoutHint`s by memory, and why there is none where one was
looked for. Invariant: nothing is decided here.

`PASSES` make hints, in this order, each by the name that switches it off. `channels-last`: what
convolutions and strided windows read and write lies with its channels innermost, and so does what
is computed from it element by element. `infer-layouts`: what is made of values lies as they do (see
`orders.py`), so that a transposed argument stays as it came until somebody needs it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stagejit.base.threads.locks import remembered
from stagejit.dispatch.layouts.orders import (
    AMBIGUOUS,
    Order,
    Orders,
    layout_of,
    order_of,
    row_major,
)
from stagejit.dispatch.layouts.relay import bound_memory
from stagejit.graph.dims import ConvDims, WindowDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import memory_of
from stagejit.graph.ops.dispatches import parts_of
from stagejit.index.layout import Layout
from stagejit.index.wanted import LayoutHint

INFER = "infer-layouts"
CHANNELS = "channels-last"


@dataclass
class Hints:
    """`of`: by memory, each layout once, none of them row-major. `none`: why there is no hint,
    where an order was looked for."""

    graph: Graph
    of: dict[Value, list[LayoutHint]] = field(default_factory=dict)
    none: dict[Value, str] = field(default_factory=dict)

    def add(self, memory: Value, layout: Layout, source: str) -> None:
        known = self.of.setdefault(memory, [])
        if not layout.is_row_major and all(hint.layout != layout for hint in known):
            known.append(LayoutHint(layout, source))

    @remembered
    def free(self) -> dict[Value, str]:
        """Memory, and why it has to be row-major; "" where it need not be. Most graphs have no
        hints, and nobody asks."""
        found: dict[Value, str] = {}
        known: dict[Value, Value] = {}
        bound = bound_memory(self.graph)
        outputs = {memory_of(value, known) for value in self.graph.outputs}
        values = (value for op in self.graph.ops() for value in op.results)
        for value in (value for value in values if memory_of(value, known) is value):
            if value in outputs:
                found[value] = "the caller takes it row-major: its store transposes"
            elif value in bound:
                found[value] = "others than dispatches look at it, who take it for row-major"
            elif value.op.definition.is_empty:
                found[value] = "it is written in parts, each of which lies in one piece as it is"
            elif value.type.encoding is not None:
                found[value] = "a product reads it, and the target says how it lies"
            else:
                found[value] = ""
        return found

    def first(self, memory: Value) -> Layout | None:
        known = self.of.get(memory)
        return known[0].layout if known else None


def channels_last(graph: Graph, hints: Hints) -> None:
    """Hints for what convolutions and windows touch, and for all memory of the same rank that
    dispatches which touch it touch."""
    dispatches = [op for op in graph.ops() if op.definition.is_dispatch]
    wanted = {op: found for op in dispatches if (found := list(_wanted(op)))}
    if not wanted:
        return
    pending: list[Value] = []
    known: dict[Value, Value] = {}
    touched = {op: _memory_of(op, known) for op in dispatches}
    users: dict[Value, list[Op]] = {}
    for op, memory in touched.items():
        for value in memory:
            users.setdefault(value, []).append(op)
        for shape, order in wanted.get(op, ()):
            for value in memory:
                if value.shape == shape and value not in hints.of:
                    hints.add(value, layout_of(order, shape), CHANNELS)
                    pending.append(value)
    while pending:
        value = pending.pop()
        layout = hints.first(value)
        if layout is None:
            continue
        for other in (other for op in users[value] for other in touched[op]):
            if other not in hints.of and len(other.shape) == len(value.shape):
                hints.add(other, layout, CHANNELS)
                pending.append(other)


def _memory_of(op: Op, known: dict[Value, Value]) -> dict[Value, None]:
    return dict.fromkeys(memory_of(value, known) for value in (*op.operands, *op.results))


def _wanted(op: Op) -> Iterator[tuple[tuple[int, ...], Order]]:
    """Shapes, with the order in which a value of that shape had better lie."""
    for inner in (inner for part in parts_of(op) for inner in part.ops()):
        if inner.definition.is_windowed:
            dims = ConvDims.of(inner.attrs)
            if dims.split is None and len(dims.lhs_spec) > 2:
                for spec, value in (
                    (dims.lhs_spec, inner.operands[0]),
                    (dims.out_spec, inner.result),
                ):
                    yield value.shape, (spec[0], *spec[2:], spec[1])
        elif inner.definition.is_window:
            order = _channel_of(inner)
            if order is not None:
                for value in (inner.operands[0], inner.result):
                    yield value.shape, order


def _channel_of(op: Op) -> Order | None:
    """The longest axis along which windows that step over elements do not move comes last."""
    dims, shape = WindowDims.of(op.attrs), op.operands[0].shape
    if all(stride == 1 for stride in dims.strides):
        return None
    still = [axis for axis, size in enumerate(dims.sizes) if size == 1 and dims.strides[axis] == 1]
    last = max(still, key=lambda axis: (shape[axis], axis), default=None)
    return None if last is None else (*(a for a in range(len(shape)) if a != last), last)


def infer(graph: Graph, hints: Hints) -> None:
    """Hints from what lies in memory already, as if all hints so far, and these, came true."""
    orders: dict[Value, Order] = {}
    memories: dict[Value, Value] = {}
    for op in graph.ops():
        if not op.definition.is_dispatch:
            continue
        first = parts_of(op)[0]
        given = {}
        for own, value in zip(first.inputs, op.operands, strict=True):
            memory = memory_of(value, memories)
            if value.shape == memory.shape and memory in orders:
                given[own] = orders[memory]
        found = Orders(first, given)
        tied = dict(op.attrs["carried"])
        for value, output in zip(op.results, first.outputs, strict=True):
            if value.index in tied:
                continue
            known = hints.first(value)
            order = found.known.get(output)
            if known is not None and not hints.free.get(value):
                orders[value] = order_of(known, value.shape)
            elif order is None:
                hints.none[value] = _why(found)
            elif order != row_major(value.shape):
                layout = layout_of(order, value.shape)
                hints.add(value, layout, INFER)
                if not hints.free.get(value) and not layout.is_row_major:
                    orders[value] = order


def _why(found: Orders) -> str:
    if found.ambiguous:
        names = sorted({op.kind for op in found.ambiguous})
        return f"{AMBIGUOUS}: operands of {', '.join(names)} lie in different orders"
    return "a view cuts across the axes of what it is made of"


Pass = Callable[[Graph, Hints], None]
PASSES: tuple[tuple[str, Pass], ...] = ((CHANNELS, channels_last), (INFER, infer))
