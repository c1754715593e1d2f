"""What a value is computed from: weights and constants alone, or arguments, too.

Input: a graph in which inputs may be bound. Output: an answer about one value. Invariant: each op
is looked at once, however often and of how many values it is asked; answers stay right while values
are replaced by equal ones, as a rewrite does. What ops with bodies give counts as of arguments:
`determined.py` looks into these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from stagejit.base.symbolic import Undecided, at_most
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.memo import OverOperands
from stagejit.graph.ops import build
from stagejit.graph.ops.control import bodies_of
from stagejit.graph.ops.moving.slices import known_box
from stagejit.index.box import Box
from stagejit.index.box_index import cover, left_of
from stagejit.rewrites.weights.made import base_of


class Behind(IntEnum):
    """What determines a value, the most that varies."""

    CONSTANTS = 0
    WEIGHTS = 1
    ARGUMENTS = 2


class _Known(OverOperands[Behind]):
    """What is behind values of one graph, as long as the same inputs are bound."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph, self.bound = graph, list(graph.bound)

    @classmethod
    def of(cls, graph: Graph) -> _Known:
        found: _Known | None = graph.analyses.get(cls)
        if found is None or found.bound != graph.bound:
            found = graph.analyses[cls] = cls(graph)
        return found

    def behind(self, value: Value) -> Sequence[Value]:
        known = value.op.definition
        return () if known.has_bodies or not is_pure(value.op) else value.op.operands

    def found(self, value: Value) -> Behind:
        known = value.op.definition
        if known.is_input:
            return Behind.WEIGHTS if self.graph.is_bound(value) else Behind.ARGUMENTS
        if known.has_bodies or not is_pure(value.op):
            return Behind.ARGUMENTS
        return max((self[x] for x in value.op.operands), default=Behind.CONSTANTS)


def is_known(graph: Graph, value: Value) -> bool:
    """Whether weights and constants determine the value."""
    return _Known.of(graph)[value] is not Behind.ARGUMENTS


def is_determined(graph: Graph, value: Value) -> bool:
    """Whether weights, at least one, determine the value."""
    return any(graph.bound) and _Known.of(graph)[value] is Behind.WEIGHTS


def weights_behind(graph: Graph, value: Value) -> tuple[Value, ...]:
    """The bound inputs that, with constants, determine a value, in the order of the graph's; none
    where anything else does."""
    if not is_determined(graph, value):
        return ()
    seen, pending = {value}, [value]
    while pending:
        new = {x for x in pending.pop().op.operands if x not in seen}
        seen |= new
        pending += new
    inputs = (x for x in seen if x.op.definition.is_input)
    return tuple(sorted(inputs, key=lambda x: x.op.attrs["index"]))


SourceOf = Callable[[Value], Value]


def itself(value: Value) -> Value:
    return value


class ReadFrom(OverOperands[Mapping[Value, int]]):
    """What a call has to read for a value, and how many bytes of each: the value itself, or what it
    is computed from, where that is no more. Of a part, as much as it is a part of its operand.
    source: what stands for an operand. of_parts: what is put together counts as its parts, though a
    call may write it before it is read."""

    def __init__(self, source: SourceOf = itself, *, of_parts: bool = False) -> None:
        super().__init__()
        self.source, self.of_parts = source, of_parts

    def nbytes(self, values: Iterable[Value]) -> int:
        """For all of these; what several need is read once."""
        return sum(self._together(values).values())

    def behind(self, value: Value) -> Sequence[Value]:
        return [self.source(x) for x in value.op.operands] if self._passes(value.op) else ()

    def _passes(self, op: Op) -> bool:
        return _may_be_computed(op) or (self.of_parts and op.definition.is_insert)

    def found(self, value: Value) -> Mapping[Value, int]:
        known, own = value.op.definition, value.type.nbytes
        if known.counts or known.is_empty:
            return {}
        if not self._passes(value.op):
            return {value: own}
        read = self._together(self.behind(value))
        nbytes = sum(read.values())
        if known.is_extract and value.type.has_numbers:
            whole = value.op.operands[0].type.nbytes
            return {value: min(own, nbytes * own // max(whole, 1))}
        return read if at_most(nbytes, own) else {value: own}

    def _together(self, values: Iterable[Value]) -> Mapping[Value, int]:
        found = dict[Value, int]()
        for value in values:
            found.update(self[value])
        return found


def _may_be_computed(op: Op) -> bool:
    """Where its result is read, of its operands."""
    known = op.definition
    if known.is_loop:
        return is_one_by_one(op)
    return not known.counts and (known.is_splat or known.is_view or known.is_pointwise)


def is_one_by_one(op: Op) -> bool:
    """Whether elements are made by themselves: of a map, or of one in a loop over layers."""
    known = op.definition
    if not known.is_loop:
        return known.is_pointwise
    alone = op.attrs["carries"] == 0 and op.attrs["condition"] is None
    return alone and all(
        not inner.operands or _may_be_computed(inner) for inner in op.attrs["body"].ops()
    )


_MOST_RESTS = 16


class _Parted(dict[Value, list[Box] | None]):
    """Of values of one graph that products read boxes of: boxes of what these leave; None where
    some overlap, so that both together would be more than what was bound."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.incomplete = graph, dict[Value, Value]()

    def __missing__(self, value: Value) -> list[Box] | None:
        readers = self.graph.users(value)
        boxes = {known_box(op) for op in readers if is_known_box(op) and self._is_factor(op.result)}
        try:
            found = self._rests(value, sorted(boxes, key=lambda box: box.offsets))
        except Undecided:
            found = None
        self[value] = found
        return found

    def _rests(self, value: Value, boxes: Sequence[Box]) -> list[Box] | None:
        if not boxes:
            return None
        rests = left_of(Box.whole(value.shape), boxes)
        if len(rests) > _MOST_RESTS or not cover([*boxes, *rests], value.shape):
            return None
        is_one = not rests or self.incomplete.setdefault(base_of(value), value) is value
        return rests if is_one else None

    def _is_factor(self, value: Value) -> bool:
        """Whether a product reads it, or another order of its elements."""
        readers = self.graph.users(value)
        return any(
            op.definition.is_product
            or (op.definition.undone is not None and self._is_factor(op.result))
            for op in readers
        )


def is_known_box(op: Op) -> bool:
    return op.definition.is_extract and None not in op.attrs["offsets"]


def is_part_for_products(graph: Graph, value: Value) -> bool:
    """Whether products read a value that is a box of a weight, and others the rest of that, or
    `rests_of_parts`: what was bound can be put together of them."""
    base = _parted_base(graph, value)
    return base is not None and _parted(graph)[base] is not None


def rests_of_parts(graph: Graph) -> list[Value]:
    """Boxes of what nobody reads of weights of which products read parts, added to the graph."""
    bases = (_parted_base(graph, value) for op in graph.ops() for value in op.results)
    found = dict.fromkeys(base for base in bases if base is not None)
    boxes = [(base, box) for base in found for box in _parted(graph)[base] or ()]
    return [
        build(
            graph, "extract_slice", [base],
            offsets=box.offsets, sizes=box.sizes, strides=box.strides,
        )
        for base, box in boxes
    ]  # fmt: skip


def _parted(graph: Graph) -> _Parted:
    found: _Parted = graph.analyses.setdefault(_Parted, _Parted(graph))
    return found


def _parted_base(graph: Graph, value: Value) -> Value | None:
    """What a value is a box of, if that is a weight, or that in another order."""
    box = base_of(value)
    if box.op not in graph or not is_known_box(box.op):
        return None
    base = box.op.operands[0]
    return base if graph.is_bound(base_of(base)) else None


def is_pure(op: Op) -> bool:
    """Whether it gives the same of the same, and does nothing else."""
    known = op.definition
    if op.attrs.get("effects") or known.is_left or known.is_call or known.forwards or known.orders:
        return False
    if not op.results or known.is_foreign:
        return False
    return all(is_pure(inner) for body in bodies_of(op) for inner in body.ops())


def is_widened(value: Value) -> bool:
    """Whether fewer bytes are read than the value has: it is converted where it is read."""
    op = value.op
    while op.definition.is_pointwise and op.operands:
        inner = op.operands[0]
        if op.definition.is_conversion and inner.type.dtype.bits < op.result.type.dtype.bits:
            return True
        op = inner.op
    return False
