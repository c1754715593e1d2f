"""contract-to-sum: a product of a matrix that is computed and a vector is a sum of products.

Input: contractions that read each element of an operand once, which elementwise functions make, on
a machine whose cores have kernels of their own. Output: a `reduce` of products, in which these
functions are evaluated. Invariant: sums are accumulated in the type in which they were, f32 or f64.

Note [When a sum is cheaper]: a contraction makes its operand in scratch, for the sake of all that
read it there: here nobody else does. Interleaved on two cores of a Zen 4, f32, microseconds of the
contraction, the sum: `max(m, 0) @ v` of 16x16 0.13, 0.04; of 100x100 4.5, 0.8; of 500x500 70, 17;
of 3000x3000 4000, 1070; `u @ max(m, 0)` 0.06, 0.05; 1.2, 0.7; 35, 19; 2350, 1720. A matrix that
lies in memory a contraction reads as fast, or faster.
"""

from __future__ import annotations

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.moving.splits import is_uneven
from stagejit.rewrites.driving.driver import Log
from stagejit.types import f32, f64

NAME = "contract-to-sum"

FEWEST_PRODUCTS = 256


@record
class _Product:
    """matrix: the number of the operand whose elements are read once. axes: for each axis of the
    other one that of the matrix along which it lies, but for those of one element that the matrix
    does not have. order: the axes of the result, as those of the matrix."""

    op: Op
    matrix: int
    axes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def summed(self) -> tuple[int, ...]:
        axes: tuple[int, ...] = self.op.attrs["contracting"][self.matrix]
        return axes


def sum_products(log: Log) -> bool:
    """contract (map f %m), %v  -->  reduce add (map mul (map f %m), (broadcast %v)); whether there
    was any."""
    made = False
    if log.machine.side_by_side and not any(log.graph.bound):
        for op in log.graph.ops():
            made |= _rewritten(log, op)
    return made


def _rewritten(log: Log, op: Op) -> bool:
    product = _product_of(op)
    if product is None:
        return False
    matrix = op.operands[product.matrix]
    reason = _refusal(log.graph, matrix)
    if reason is None:
        return False
    if not reason and matrix.type.size < FEWEST_PRODUCTS:
        reason = "there are too few products"
    if reason:
        log.decline(NAME, op, reason)
        return False
    log.replace(NAME, op, _sum_of(log.graph, product), "each element of the matrix is read once")
    return True


def _product_of(op: Op) -> _Product | None:
    known = op.definition
    if not known.is_product or known.is_windowed or known.applies:
        return None
    types = {value.type.dtype for value in (*op.operands, op.result)}
    if len(types) > 1 or types.isdisjoint((f32, f64)) or not op.result.type.size:
        return None
    pairs = list(zip(op.attrs["contracting"], op.attrs["batch"], strict=True))
    free = [
        [axis for axis in range(value.type.rank) if axis not in (*summed, *batch)]
        for value, (summed, batch) in zip(op.operands, pairs, strict=True)
    ]
    for number in (0, 1):
        vector = op.operands[1 - number]
        if all(vector.shape[axis] == 1 for axis in free[1 - number]):
            (own_summed, own_batch), (summed, batch) = pairs[number], pairs[1 - number]
            own = dict(zip((*summed, *batch), (*own_summed, *own_batch), strict=True))
            axes = tuple(own[axis] for axis in sorted(own))
            computed = axes and _is_computed(op.operands[number])
            if computed and not any(map(_is_uneven, op.operands)):
                return _Product(op, number, axes, (*own_batch, *free[number]))
    return None


def _is_uneven(value: Value) -> bool:
    """Whether some of its elements are none: reductions know that of their own operands only."""
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if is_uneven(value.op):
            return True
        if value not in seen and (
            value.op.definition.is_view or value.op.definition.is_elementwise
        ):
            pending += value.op.operands
        seen.add(value)
    return False


def _is_computed(value: Value) -> bool:
    while value.op.definition.is_view and not value.op.definition.is_splat:
        value = value.op.operands[0]
    return value.op.definition.is_elementwise


def _refusal(graph: Graph, matrix: Value) -> str | None:
    """Why the sum would not evaluate what makes the matrix and read the rest from memory; "" if it
    does."""
    pending, size = [matrix], matrix.type.size
    while pending:
        value = pending.pop()
        known, shared = value.op.definition, len(graph.uses(value)) > 1
        if shared and (value is matrix or known.is_elementwise):
            return "what makes the matrix is read elsewhere, too"
        if known.is_conversion:
            return "the matrix lies in memory in another type"
        if value.type.size < size or known.is_input or known.is_constant or known.is_splat:
            continue
        if not known.is_view and not known.is_elementwise:
            return "the matrix is made of what another kernel makes, which may store it"
        pending += value.op.operands[: 1 if known.is_view else None]
    return ""


def _sum_of(graph: Graph, product: _Product) -> Value:
    op, number = product.op, product.matrix
    matrix, vector = op.operands[number], op.operands[1 - number]
    shape = tuple(matrix.shape[axis] for axis in product.axes)
    vector = build(graph, "reshape", [vector], op.loc, shape=shape)
    spread = build(graph, "broadcast", [vector], op.loc, shape=matrix.shape, axes=product.axes)
    factors = [matrix, spread] if number == 0 else [spread, matrix]
    products = build(graph, "map", factors, op.loc, fn="mul", dtype=op.result.type.dtype)
    made = build(graph, "reduce", [products], op.loc, fn="add", axes=tuple(sorted(product.summed)))
    left = [axis for axis in range(matrix.type.rank) if axis not in product.summed]
    permutation = tuple(left.index(axis) for axis in product.order)
    if permutation != tuple(range(len(left))):
        made = build(graph, "transpose", [made], op.loc, permutation=permutation)
    return build(graph, "reshape", [made], op.loc, shape=op.result.shape)
