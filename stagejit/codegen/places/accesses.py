"""What an access costs along a candidate vector variable.

Input: the affine offset of an access. Output: memory operations for one vector. Invariant: depends
on the form only, so every generator ranks variables alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from stagejit.base.machine import Machine
from stagejit.codegen.ir.strides import MOST_LANES_APART, dealing_cost, is_dealt
from stagejit.index.affine import Affine, Var

SHORTEST_SQUARE = 4  # rows of one that is worth its shuffles
_MOST_NARROW = 8  # vectors are no shorter than this part of a register


def read_cost(form: Affine, var: Var, lanes: int, neighbours: int = 0) -> float:
    """About 0 where the element is the same for all lanes, 1 where contiguous, else one per lane.

    neighbours: the number of elements that lie between two lanes and are wanted too, so that whole
    vectors are moved for all of them and dealt out.
    """
    coeff = 0
    for inner, times in form.terms:
        if inner is var:
            coeff = times
        elif var in loops_of(inner):
            return 2.0 * lanes
    if -1 <= coeff <= 1:
        return 1.0 if coeff else 0.1
    shared = coeff == neighbours != 0 and _phase_is_known(form, coeff)
    if is_dealt(coeff, lanes, shared=shared):
        return dealing_cost(coeff, lanes, shared=shared)
    return float(lanes)


def _phase_is_known(form: Affine, stride: int) -> bool:
    """Whether which of the elements between two lanes is read is known before the kernel runs."""
    return all(coeff % stride == 0 for inner, coeff in form.terms if inner.kind == "dynamic")


def looking_up_cost(
    form: Affine, var: Var, lanes: int, itemsize: int, machine: Machine
) -> float | None:
    """Of a read that vectors along `var` find in a table that registers hold: its loads, and the
    shuffles; None where they do not."""
    apart = [term for term in form.terms if term[0] is var or var in loops_of(term[0])]
    width = 0 if form.coeff(var) else table_width(apart, lanes, itemsize, machine)
    return 1.0 + -(-span_of(apart) // width) if width else None


def span_of(terms: Sequence[tuple[Var, int]]) -> int:
    """From the first to the last element where these terms of a place may stand."""
    return 1 + sum(coeff * (var.extent - 1) for var, coeff in terms)


def table_width(
    terms: Sequence[tuple[Var, int]], lanes: int, itemsize: int, machine: Machine
) -> int:
    """Elements of each register of the table in which each of so many lanes looks up the element
    at these terms of its place; 0 where it is gathered."""
    most = machine.table_nbytes(itemsize) // itemsize
    span = span_of(terms)
    if not terms or any(coeff < 0 for _, coeff in terms) or not max(span, lanes) <= most:
        return 0
    whole = max(16 // itemsize, 1 << (span - 1).bit_length(), lanes)
    width = min(whole, machine.vector_nbytes // itemsize, most)
    # Without masks, elements of a register that is not full would be loaded one by one.
    return width if machine.masks_lanes or span % width == 0 else 0


def loops_of(inner: Var) -> Collection[Var]:
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
    more: float = 0.0,
) -> float:
    """Memory operations per element, unused lanes of the last vector included; writes count
    twice. across: reads that lie along one of these may come in squares. more: operations of a
    vector besides."""
    costs = [(form, read_cost(form, var, lanes, neighbours)) for form in reads]
    ways = [sum(cost for _, cost in costs)]
    for tile in (tile for tile in across if tile is not var):
        squares = (min(cost, in_squares(form, var, lanes, tile)) for form, cost in costs)
        ways.append(sum(squares))
    total = more + min(ways) + 2 * sum(write_cost(form, var, lanes, neighbours) for form in writes)
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
    if gap > MOST_LANES_APART or not is_dealt(gap, lanes, shared=True):
        return []
    inner = sorted((var for var in variables if 0 < form.coeff(var) < gap), key=form.coeff)
    for var in inner:
        if form.coeff(var) != covered:
            return []
        covered *= var.extent
    return inner[::-1] if covered == gap else []
