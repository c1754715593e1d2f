"""sum-to-contract: a sum of products whose factors repeat is a contraction.

Input: a sum over axes that both factors of a product have, where each of them repeats along axes of
the other: a matrix product written with broadcasts. Output: a `contract` of what they repeat.
Invariant: sums are accumulated in the type in which they were, f32 or f64.

Note [When a contraction is cheaper]: it loads an element once for a tile of results, the sum once
for each. Interleaved on two cores, f32, (M, N, K) and microseconds of the sum, the contraction:
(4, 4, 256) 6.0, 5.9; (2, 64, 64) 7.5, 7.0; (16, 16, 16) 10.5, 10.4; (64, 64, 4) 8.5, 7.5; (64, 64,
64) 11, 8; (128, 128, 128) 81, 35. Its error is that of any contraction: of 1,024 terms 5e-7 of the
largest result, where the sum, which adds up more partial sums, has 2e-7.
"""

from __future__ import annotations

import math

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.driving.driver import Outcome, declined, rewrite
from stagejit.types import f32, f64

NAME = "sum-to-contract"

FEWEST_REPEATS = 16  # of each factor
FEWEST_PRODUCTS = 1 << 15


@record
class _Factor:
    """`source`, and for each of its axes the one of the product along which it lies."""

    source: Value
    axes: tuple[int, ...]

    def axes_of(self, product_axes: list[int]) -> tuple[int, ...]:
        return tuple(self.axes.index(axis) for axis in product_axes)


@rewrite(NAME, roots="reduce", of="map", counts=True)
def sum_of_products(graph: Graph, op: Op) -> Outcome:
    """reduce add (map mul (broadcast %a), (broadcast %b))  -->  contract %a, %b"""
    product = op.operands[0].op
    if op.attrs["fn"] != "add" or function_of(product) != "mul":
        return None
    shape, dtype = product.result.shape, op.result.type.dtype
    if dtype not in (f32, f64) or not op.result.type.size:
        return None
    lhs, rhs = map(_factor, product.operands)
    summed = [axis for axis in op.attrs["axes"] if shape[axis] != 1]
    shared = [axis for axis in lhs.axes if axis in rhs.axes]
    free = [[axis for axis in side.axes if axis not in shared] for side in (lhs, rhs)]
    wide = {axis for axis, size in enumerate(shape) if size != 1}
    if not summed or not all(free) or wide != {*lhs.axes, *rhs.axes}:
        return None
    if not {*summed} <= {*shared}:
        return declined("an axis that is summed over is one of a single factor")
    repeats = [math.prod(shape[axis] for axis in axes) for axes in free]
    if min(repeats) < FEWEST_REPEATS or math.prod(shape) < FEWEST_PRODUCTS:
        return declined("the factors are too small for a contraction to be cheaper")
    if len(graph.uses(product.result)) > 1:
        return declined("the products are read elsewhere")
    batch = sorted(axis for axis in shared if axis not in summed)
    value = build(
        graph, "contract", [_bare(graph, lhs), _bare(graph, rhs)], op.loc,
        contracting=(lhs.axes_of(summed), rhs.axes_of(summed)),
        batch=(lhs.axes_of(batch), rhs.axes_of(batch)), dtype=dtype,
    )  # fmt: skip
    order = [*batch, *free[0], *free[1]]  # axes of the product, as the contraction leaves them
    permutation = tuple(sorted(range(len(order)), key=lambda at: order[at]))
    if permutation != tuple(range(len(order))):
        value = build(graph, "transpose", [value], op.loc, permutation=permutation)
    return build(graph, "reshape", [value], op.loc, shape=op.result.shape)


def _factor(value: Value) -> _Factor:
    """What `value` repeats, without axes of one element."""
    source, axes = value, range(len(value.shape))
    if value.op.definition.repeats:
        source, axes = value.op.operands[0], value.op.attrs["axes"]
    wide = zip(source.shape, axes, strict=True)
    return _Factor(source, tuple(axis for size, axis in wide if size != 1))


def _bare(graph: Graph, factor: _Factor) -> Value:
    shape = tuple(size for size in factor.source.shape if size != 1)
    return build(graph, "reshape", [factor.source], factor.source.op.loc, shape=shape)


RULES = (sum_of_products,)
