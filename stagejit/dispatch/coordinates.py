"""Where an element of one value lies in the space of another, as index maps that can be compared.

Input: shapes and views. Output: affine indices over one canonical set of variables for each shape.
Invariant: two maps from values of one shape are equal iff they are equal as Python objects.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from stagejit.dispatch.affine import Affine, Index, Var, linearize, shared
from stagejit.dispatch.pull import pull_view
from stagejit.graph.ir import Op

Shape = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def variables(shape: Shape) -> tuple[Var, ...]:
    """One variable for each dimension, always the same ones for a shape."""
    # The cache is for speed; which objects they are does not depend on it.
    return tuple(
        shared((shape, axis), functools.partial(Var, extent, "x"))
        for axis, extent in enumerate(shape)
    )


@functools.lru_cache(maxsize=4096)
def coordinates(shape: Shape) -> Index:
    """The index of an element of a value of `shape`, in terms of itself."""
    return tuple(Affine.of(var) for var in variables(shape))


def through_view(op: Op, index: Index) -> Index:
    """`index` maps coordinates of the view's operand; the result maps those of the view."""
    if op.kind == "fill":
        return index
    pulled = pull_view(op, coordinates(op.result.shape))
    step = dict(zip(variables(op.operands[0].shape), pulled, strict=True))
    return tuple(part.substitute(step) for part in index)


def keeps_row_major_order(index: Index, of: Shape, into: Shape) -> bool:
    """True where the map from coordinates of `of` into `into` is a reshape."""
    return linearize(index, into) == linearize(coordinates(of), of)


def without(items: Sequence[Affine], axes: Sequence[int]) -> Index:
    return tuple(part for axis, part in enumerate(items) if axis not in axes)
