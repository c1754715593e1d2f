"""In which order the axes of a value lie, as far as that follows from what it is made of.

Input: the graph of a dispatch, or any other, and the orders of its inputs. Output: an `Order` for
each value. Invariant: an order names the axes along which elements differ, each once, the slowest
first; what repeats, and axes of one element, lie nowhere.

Note [Reference]: what is made of several operands lies as that one which has most axes, and it has
to be one order: where two of them differ, there is none, and the reason is "ambiguous". Axes that
only others have follow by their numbers (nvFuser, issue 2425: "reference tensor").

Note [One rule a trait]: a view moves axes; a sum drops some; a window or a running sum keeps all;
a convolution has features in the place of features. A product numbers its axes itself, and lies so:
(b, m, n) of `bmk,nk->bmn`, whatever order its operands have. All others lie row-major.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Var
from stagejit.index.coordinates import coordinates, variables
from stagejit.index.layout import Layout

Order = tuple[int, ...]
Shape = Sequence[int]

AMBIGUOUS = "ambiguous"


def row_major(shape: Shape) -> Order:
    return tuple(axis for axis, extent in enumerate(shape) if extent != 1)


def order_of(layout: Layout, shape: Shape) -> Order:
    """That of memory: tiles of one order lie in it."""
    return tuple(axis for axis in layout.order or range(len(shape)) if shape[axis] != 1)


def layout_of(order: Order, shape: Shape) -> Layout:
    """A layout in which these axes lie in this order, the others before the next one by number."""
    return Layout(completed(order, len(shape)))


def completed(order: Order, rank: int) -> Order:
    """All axes: one that is missing comes right before the next larger one."""
    found = list(order)
    for axis in reversed(range(rank)):
        if axis not in found:
            later = (at for at, other in enumerate(found) if other > axis)
            found.insert(next(later, len(found)), axis)
    return tuple(found)


class Orders:
    """Orders of the values of a graph. `given`: of inputs, row-major by default; `ambiguous`: the
    ops whose operands lie in different ones. A value without an order is not in `known`."""

    def __init__(self, graph: Graph, given: Mapping[Value, Order]) -> None:
        self.known: dict[Value, Order] = {}
        self.ambiguous: list[Op] = []
        for value in graph.inputs:
            self.known[value] = given.get(value, order_of(value.type.layout, value.shape))
        for op in graph.ops():
            for value in op.results:
                order = self._of(op, value)
                if order is not None:
                    self.known[value] = order

    def _of(self, op: Op, value: Value) -> Order | None:
        kind, shape = op.definition, value.shape
        if kind.is_free or kind.is_splat:
            return ()
        if kind.is_elementwise:
            return self._reference(op, shape)
        order = self.known.get(op.operands[0]) if op.operands else None
        if kind.is_view:
            return None if order is None else through_view(op, order)
        if kind.is_reduce:
            return None if order is None else _of_reduce(op, order)
        if kind.is_windowed:
            return None if order is None else _of_conv(op, order)
        if kind.is_window or kind.is_cumulative:
            return None if order is None else _of_window(order, shape)
        if kind.is_insert:  # which lies where its destination does
            return self.known.get(op.operands[1])
        return row_major(shape)

    def _reference(self, op: Op, shape: Shape) -> Order | None:
        orders = [self.known.get(value) for value in op.operands]
        if None in orders:
            return None
        most = max(len(order or ()) for order in orders)
        longest = {order for order in orders if order is not None and len(order) == most}
        if len(longest) != 1:
            self.ambiguous.append(op)
            return None
        (order,) = longest
        if most == len(shape):  # it has all axes already
            return order
        varying = {axis for other in orders for axis in other or ()}
        return tuple(axis for axis in completed(order, len(shape)) if axis in varying)


def through_view(op: Op, order: Order) -> Order | None:
    """The order of a view of what lies in `order`; None where it cuts across axes."""
    source, shape = op.operands[0].shape, op.result.shape
    if op.definition.keeps_order and order == row_major(source):
        return row_major(shape)
    pulled, axes = pull_view(op, coordinates(shape)), _numbers(shape)
    place = {axis: at for at, axis in enumerate(row_major(source))}
    found: list[int] = []
    before = -2
    for axis in order:
        own = _along(pulled[axis], axes)
        if own is None:
            return None
        if own and found[-1:] == own[:1]:  # quotient and remainder of one axis of the view
            if place[axis] != before + 1:
                return None
            own = own[1:]
        found += own
        before = place[axis]
    return tuple(found) if len(set(found)) == len(found) else None


def _numbers(shape: tuple[int, ...]) -> dict[Var, int]:
    return {var: axis for axis, var in enumerate(variables(shape)) if var.extent != 1}


def _along(part: Affine, axes: Mapping[Var, int]) -> list[int] | None:
    """The axes of a view that an axis of its operand becomes, slowest first; None for a mixture."""
    found: list[int] = []
    for var, _ in sorted(part.terms, key=lambda term: -abs(term[1])):
        loops = var.operand.loop_vars() if var.operand is not None else {var} & axes.keys()
        if len(loops) > 1:
            return None
        found += [axes[loop] for loop in loops]
    return found


def _of_reduce(op: Op, order: Order) -> Order:
    """What is left keeps its order."""
    gone = op.attrs["axes"]
    kept = [axis for axis in range(op.operands[0].type.rank) if axis not in gone]
    return tuple(kept.index(axis) for axis in order if axis not in gone)


def _of_window(order: Order, shape: Shape) -> Order:
    """An axis may have one element, or, with a border, no longer only one."""
    return tuple(axis for axis in completed(order, len(shape)) if shape[axis] != 1)


def _of_conv(op: Op, order: Order) -> Order | None:
    """Batch, features and pixels of the result as those of the image."""
    dims = ConvDims.of(op.attrs)
    if dims.split is not None:
        return row_major(op.result.shape)
    image = completed(order, op.operands[0].type.rank)
    out = [dims.out_spec[dims.lhs_spec.index(axis)] for axis in image]
    return tuple(axis for axis in out if op.result.shape[axis] != 1)
