"""Where an element of one value lies in the space of another, as index maps that can be compared.

Input: shapes and views. Output: affine indices over one canonical set of variables for each shape.
Invariant: two maps from values of one shape are equal iff they are equal as Python objects.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from stagejit.index.affine import Affine, Index, Var, linearize, shared

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


def keeps_row_major_order(index: Index, of: Shape, into: Shape) -> bool:
    """True where the map from coordinates of `of` into `into` is a reshape."""
    own = coordinates(of)
    return (of == into and index == own) or linearize(index, into) == linearize(own, of)


def without(items: Sequence[Affine], axes: Sequence[int]) -> Index:
    return tuple(part for axis, part in enumerate(items) if axis not in axes)
