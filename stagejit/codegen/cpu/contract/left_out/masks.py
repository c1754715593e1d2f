"""Results of a contraction that nobody reads, because a mask drops them where they are stored.

Input: a region whose stores select by predicates that do not depend on its sums. Output: these
predicates, and code that asks whether a tile has any element that they keep. Invariant: a sum of
which anything is stored is computed; the others are zeros, which may be anything.

Note [What to keep]: a sum that goes through several selects is stored where all of them keep it;
one that goes several ways, where any of these does. Of those ways only the selects that they share
are asked: that keeps more tiles, and no tile too few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_, or_

from stagejit.base.records import record
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cpu.contract.left_out.blocks import any_lane
from stagejit.codegen.cpu.contract.microkernel import SumTile
from stagejit.codegen.ir.nodes import I1
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Choice
from stagejit.codegen.nest.spans import Span
from stagejit.codegen.nest.tree import Cell, Do, Node, When, serial
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.index.affine import Index, Var

# Steps of the reduction an operation of the mask must save if it is to be worth asking: with one
# multiply-add a cycle or two for each vector, asking in vain then takes some 5 % longer.
_STEPS_AN_OPERATION = 8


@record
class Mask:
    """A sum is stored only where `value`, a predicate, is `kept` at `index`."""

    value: Value
    index: Index
    kept: bool


def masks_of(
    region: ClosedRegion, steps: int, index_of: Callable[[Value], Index]
) -> tuple[tuple[Mask, ...], tuple[Choice, ...]]:
    """What decides which sums of `steps` products are stored, if that is worth knowing, and what is
    told of it. index_of: where an element that is made of a sum lies."""
    selects = sorted(_selects(region), key=lambda each: region.ops.index(each[0]))
    if not selects:
        return (), ()
    operations = _operations(region, [select.operands[0] for select, _ in selects])
    told = f"a mask of {operations:.3g} operations keeps some of the sums of {steps} products"
    if steps < operations * _STEPS_AN_OPERATION:
        return (), (Choice("mask", f"all tiles: {told}"),)
    masks = [Mask(select.operands[0], index_of(select.result), kept) for select, kept in selects]
    return tuple(masks), (Choice("mask", f"tiles of which anything is stored: {told}"),)


def _selects(region: ClosedRegion) -> frozenset[tuple[Op, bool]]:
    """The selects on all ways from a sum to the stores, and what their predicates are where they
    keep it."""
    known: dict[Value, frozenset[tuple[Op, bool]]] = {region.anchor_op.result: frozenset()}
    for op in region.ops:
        ways = [
            known[operand] | _chosen(op, number, known)
            for number, operand in enumerate(op.operands)
            if operand in known
        ]
        if ways:
            known.update(dict.fromkeys(op.results, frozenset.intersection(*ways)))
    return frozenset.intersection(*(known[store.value] for store in region.stores))


def _chosen(op: Op, number: int, made: Mapping[Value, object]) -> frozenset[tuple[Op, bool]]:
    """What the predicate of an op is where it takes operand `number`, which is made of a sum."""
    if function_of(op) != "select" or op.operands[0] in made:
        return frozenset()
    return frozenset({(op, number == 1)})


def _operations(region: ClosedRegion, values: list[Value]) -> float:
    """To evaluate an element of all values; a load is one."""
    seen, pending, total = set[Value](), list(values), 0.0
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in region.inputs or value.op.definition.counts:
            total += 1.0
        if value not in region.inputs:
            total += value.op.definition.element_flops(value.op)
            pending += value.op.operands
    return total


def where_kept(masks: Sequence[Mask], tile: SumTile, loops: Node) -> Node:
    """`loops` where anything is stored of the tile, whose rows are asked in a loop."""
    some = Cell("some")
    others = [axis for axis in tile.sizes if axis is not tile.tiling.lane]
    rows = max(others, key=tile.sizes.__getitem__, default=None)
    row = Var(tile.sizes[rows] if rows is not None else 1, "row")
    first = [point for point in tile.points if rows is None or not point[rows]]

    def none() -> None:
        tile.emitter.cells[some] = (tile.b.const(False, I1),)

    def ask() -> None:
        elements = tile.emitter.elements
        env = elements.position.env
        with elements.at({} if rows is None else {rows: env[rows] + env[row]}):
            found = reduce(or_, [_kept(masks, tile, point) for point in first])
        tile.emitter.cells[some] = (tile.emitter.cells[some][0] | any_lane(found),)

    asked = (Do("none", none, (some,)), serial([row], Do("ask", ask, (some,))))
    return (*asked, _only(tile, lambda: tile.emitter.cells[some][0], loops))


def _only(tile: SumTile, wanted: Callable[[], Register], loops: Node) -> Node:
    """`loops` where they are wanted. A loop without steps carries the sums past itself, which code
    around it would do once more."""
    kept, plain = "some of it is stored", tile.plain
    if not plain or plain[0].vector:
        return When(kept, wanted, loops)
    emitter, b, var = tile.emitter, tile.b, plain[0].var

    def steps() -> dict[Var, Span]:
        span = emitter.span(var)
        return {var: Span.between(span.start, b.select(wanted(), span.stop, span.start))}

    return emitter.within(f"if {kept}", steps, loops)


def _kept(masks: Sequence[Mask], tile: SumTile, point: Mapping[Var, int]) -> Register:
    """Which elements of a vector of the tile are stored."""
    elements, tiling = tile.emitter.elements, tile.tiling
    lane = None if tiling.across else tiling.lane
    lanes = tiling.lanes if lane else 0
    exist = tile.exist(point)
    if exist is None and elements.position.mask is not None:
        exist = tile.b.active(lanes, lanes)
    env = elements.position.env
    places = {axis: env[axis] + step for axis, step in point.items()}
    with elements.at(places, vector=lane, lanes=lanes, mask=exist):
        found = [(mask, elements.value(mask.value, mask.index)) for mask in masks]
    return reduce(and_, [each if mask.kept else each ^ True for mask, each in found])
