"""What lies before the inserts of a chain: where they do not touch a box, and where they leave
nothing of it.

Input: a graph, a value, a box to read of it. Output: the earliest value of which the box reads the
same elements. Invariant: every insert that is passed leaves the box alone. And: a graph, and the
same where nothing is filled that inserts cover.

Note [Jumps]: a buffer may be updated thousands of times, and read in between. Each insert knows a
jump over a power of two of those before it (Myers' skew-binary pointers, one for each insert), with
the box around all that they write. So a read passes what it does not touch in logarithmically many
steps where updates lie in order, and one by one only where they surround it. An insert whose
destination is replaced gets a new jump; jumps over inserts that were replaced stay right, since a
value is only ever replaced by an equal one.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value, is_free
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.slices import known_box
from stagejit.index.box import Box, ends_meet
from stagejit.index.box_index import surely_cover
from stagejit.rewrites.driving.driver import Log

NAME = "fuse-insert"


Ends = tuple[tuple[int, ...], tuple[int, ...]]  # first and last position along each axis


@record
class _Jump:
    """From an insert of `box`, whose destination is `parent`, to `to`; `ends` is around all
    between."""

    box: Box
    parent: Value
    to: Value
    ends: Ends
    depth: int


class _Jumps(dict[Value, _Jump]):
    """Those of one graph."""

    @classmethod
    def of(cls, graph: Graph) -> _Jumps:
        found: _Jumps = graph.analyses.setdefault(cls, cls())
        return found


def is_placed(op: Op) -> bool:
    """Whether it is an insert at a known place."""
    return op.definition.is_insert and None not in op.attrs["offsets"]


def untouched_before(graph: Graph, value: Value, box: Box) -> Value:
    """The value before all inserts that leave the box alone."""
    jumps = _Jumps.of(graph)
    while is_placed(value.op):
        jump = _jump_from(jumps, value)
        if not ends_meet(*jump.ends, *box.ends) and jump.to.op in graph:
            value = jump.to
        elif not jump.box.overlaps(box):
            value = jump.parent
        else:
            break
    return value


def _jump_from(jumps: dict[Value, _Jump], value: Value) -> _Jump:
    missing = []
    at = value
    while is_placed(at.op) and (at not in jumps or jumps[at].parent is not at.op.operands[1]):
        missing.append(at)
        at = at.op.operands[1]
    for made in reversed(missing):
        jumps[made] = _made(jumps, made.op)
    return jumps[value]


def _made(jumps: dict[Value, _Jump], insert: Op) -> _Jump:
    box, parent = known_box(insert), insert.operands[1]
    ends = box.ends
    first = jumps.get(parent)
    if first is None:
        return _Jump(box, parent, parent, ends, 1)
    second = jumps.get(first.to)
    below = 0 if second is None else second.depth
    further = 0 if second is None else _depth(jumps, second.to)
    if second is not None and first.depth - below == below - further:
        ends = _around(ends, first.ends, second.ends)
        return _Jump(box, parent, second.to, ends, first.depth + 1)
    return _Jump(box, parent, parent, ends, first.depth + 1)


def _depth(jumps: dict[Value, _Jump], value: Value) -> int:
    jump = jumps.get(value)
    return 0 if jump is None else jump.depth


def _around(*ends: Ends) -> Ends:
    starts, stops = zip(*ends, strict=True)
    return tuple(map(min, zip(*starts, strict=True))), tuple(map(max, zip(*stops, strict=True)))


# ------------------------------------------------------------------------ nothing is left


def elide_covered_fills(log: Log) -> None:
    """insert_slice ... into (insert_slice %x into (fill %v)) that cover it  -->  ... into empty"""
    for op in log.graph.ops():
        if is_placed(op) and is_free(op.operands[1]) and _covers(log.graph, op):
            type = op.result.type
            empty = build(log.graph, "empty", (), op.loc, shape=type.shape, dtype=type.dtype)
            log.graph.set_operand(op, 1, empty)
            log.apply(NAME, op, "the inserts cover the destination: no fill")


def _covers(graph: Graph, first: Op) -> bool:
    """Whether the inserts from `first` on, of which nobody reads what is there between, leave
    nothing of its destination."""
    boxes, at = [], first
    while True:
        boxes.append(known_box(at))
        uses = graph.uses(at.result)
        if len(uses) != 1 or uses[0].operand != 1 or not is_placed(uses[0].user):
            break
        at = uses[0].user
    return surely_cover(boxes, first.result.shape)
