"""What an access costs along a candidate vector variable.

Input: the affine offset of an access. Output: memory operations for one vector. Invariant: depends
on the form only, so every generator ranks variables alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from stagejit.codegen.ir.strides import MOST_LANES_APART, dealing_cost, is_dealt
from stagejit.index.affine import Affine, Var

SHORTEST_SQUARE = 4  # rows of one that is worth its shuffles
_MOST_NARROW = 8  # vectors are no shorter than this part of a register


def read_cost(form: Affine, var: Var, lanes: int, neighbours: int = 0) -> float:
    """About 0 where the element is the same for all lanes, 1 where contiguous, else one per lane.

    neighbours: the number of elements that lie between two lanes and are wanted too, so that whole
    vectors are moved for all of them and dealt out.
    """
    if any(inner is not var and var in _loops_of(inner) for inner in form.vars()):
        return 2.0 * lanes
    coeff = form.coeff(var)
    if is_dealt(coeff, lanes, shared=coeff == neighbours):
        return dealing_cost(coeff, lanes, shared=coeff == neighbours)
    return 0.1 if coeff == 0 else 1.0 if abs(coeff) == 1 else float(lanes)


def _loops_of(inner: Var) -> Collection[Var]:
    return inner.follows if inner.operand is None else inner.operand.loop_vars()


def write_cost(form: Affine, var: Var, lanes: int, neighbours: int = 0) -> float:
    """As for a read; a store that lacks its neighbours goes lane by lane."""
    coeff = form.coeff(var)
    if is_dealt(coeff, lanes, shared=False) and coeff != neighbours:
        return float(lanes)
    return read_cost(form, var, lanes, neighbours)


def lanes_of(reads: Iterable[Affine], writes: Iterable[Affine], var: Var | None, lanes: int) -> int:
    """The lanes of a vector along `var`: fewer than fill a register where some access moves them
    one by one or through a square of vectors, whose code grows with their number; or where fewer
    are all that there are, so that less of a line is crossed and, perhaps, nothing masked."""
    if var is None:
        return 0
    if not all(read_cost(form, var, lanes) <= 1 for form in (*reads, *writes)):
        return min(lanes, MOST_LANES_APART)
    return min(lanes, max(1 << (var.extent - 1).bit_length(), lanes // _MOST_NARROW))


def vector_cost(
    reads: Iterable[Affine],
    writes: Iterable[Affine],
    var: Var,
    lanes: int,
    neighbours: int = 0,
    across: Iterable[Var] = (),
) -> float:
    """Memory operations per element, unused lanes of the last vector included; writes count
    twice. across: reads that lie along one of these may come in squares."""
    reads = list(reads)
    ways = [
        sum(min(read_cost(form, var, lanes, neighbours), in_squares(form, var, lanes, tile))
            for form in reads)
        for tile in (var, *across)
    ]  # fmt: skip
    total = min(ways) + 2 * sum(write_cost(form, var, lanes, neighbours) for form in writes)
    return total * -(-var.extent // lanes) / var.extent


def in_squares(form: Affine, var: Var, lanes: int, tile: Var) -> float:
    """What a read costs that lies along `tile`, of which some vectors are transposed together: its
    loads and its shuffles; infinite where it does not."""
    if tile is var or tile.extent < SHORTEST_SQUARE or form.coeff(tile) not in (1, -1):
        return math.inf
    return lanes / min(lanes, tile.extent) + math.log2(lanes)


def between_lanes(variables: Iterable[Var], form: Affine, vector: Var, lanes: int) -> list[Var]:
    """The variables whose positions are all the elements from one lane to the next, outermost
    first; none where something else lies there, or more than vectors can deal out."""
    gap, covered = form.coeff(vector), 1
    if not is_dealt(gap, lanes, shared=True):
        return []
    inner = sorted((var for var in variables if 0 < form.coeff(var) < gap), key=form.coeff)
    for var in inner:
        if form.coeff(var) != covered:
            return []
        covered *= var.extent
    return inner[::-1] if covered == gap else []
