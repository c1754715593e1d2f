"""Elements that lie here and there in rows, for vectors that go on from one row to the next.

Input: an index that the vector variable makes step from row to row, or an overlay. Output: the
elements, one for each lane. Invariant: nothing beyond the memory of a value is read.

Note [Whole vectors of rows]: rows of an image may be shorter than a vector. A store for each of
them crosses lines again and again, and most of its lanes are masked; the images lie one after the
other, so whole vectors are stored, which begin and end within rows. Where the loop over these is
written out, it is known where each lane lies: what lanes pick from memory are a few loads and
shuffles whose lanes are numbers, what lies beneath a border is one more. On two cores of a Granite
Rapids, 16384 images of 7x7 are padded in 0.27 ms, where rows were copied into what was filled
before in 0.42.
"""

from __future__ import annotations

import operator
from functools import reduce

from stagejit.base.machine import Machine
from stagejit.codegen.elements.positions import Positions, clamped, fits_i32, is_inside
from stagejit.codegen.ir.nodes import I32, I64, Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.strides import picked
from stagejit.codegen.places.whole_vectors import MOST_PICKED
from stagejit.graph.ir import Op
from stagejit.graph.ops.moving.slices import beneath, is_beneath
from stagejit.index.affine import Affine, Index


def from_rows(
    at: Positions, buffer: Buffer, offset: Affine, room: int, machine: Machine
) -> Register | None:
    """What lies at `offset`, of whose lanes it is known how far they are apart; None where it is
    not. room: elements of the buffer."""
    found, wanted = at.by_lanes(offset), at.wanted_lanes()
    if found is None or not wanted or at.position.within:
        return None
    same, apart = found
    low, high = (ends(apart[lane] for lane in wanted) for ends in (min, max))
    lanes, b = at.position.lanes, at.b
    if low == high:
        return b.load(buffer, at.scalar_index(same + low))
    count = -(-(high + 1 - low) // lanes)
    if count > MOST_PICKED:  # a lane that nobody wants is another one
        places = [apart[lane if lane in wanted else min(wanted)] for lane in range(lanes)]
        elem = I32 if room < 1 << 31 else I64
        table = b.load(b.table("apart", elem, places), 0, lanes)
        begin = b.cast("trunc", at.scalar_index(same), "i32") if elem is I32 else (
            at.scalar_index(same))  # fmt: skip
        return b.gather(buffer, b.splat(begin, lanes) + table, room=room)
    first, last = same.range()
    mask_from = high + 1 - low
    if last + low + count * lanes <= room:
        mask_from = count * lanes
    elif not machine.masks_lanes and first + high + 1 - count * lanes >= 0:
        low, mask_from = high + 1 - count * lanes, count * lanes
    begin, parts = at.scalar_index(same + low), []
    for start in range(0, count * lanes, lanes):
        mask = None if start + lanes <= mask_from else b.active(mask_from - start, lanes)
        parts.append(b.load(buffer, begin + start, lanes, mask=mask))
    places = [apart[lane] - low if lane in wanted else -1 for lane in range(lanes)]
    return picked(b, parts, places)


def overlaid(at: Positions, op: Op, index: Index) -> Register:
    """The element of an overlay."""
    (above, below), (place, rests) = op.operands, beneath(op, index)
    everywhere = is_beneath(op, place, rests)
    if everywhere is not None:
        return at.value(above, place) if everywhere else at.value(below, index)
    lanes, count = at.wanted_lanes(), at.position.lanes
    inside = lanes
    for axis, rest in rests.items():
        places, others = _of_lanes(at, place[axis]), _of_lanes(at, rest)
        if inside is None or places is None or others is None:
            return _chosen(at, op, index)
        extent = above.shape[axis]
        inside = frozenset(
            lane for lane in inside if 0 <= places[lane] < extent and not others[lane]
        )
    assert lanes is not None
    if inside == lanes or inside is None:
        return at.value(above, place)
    if not inside:
        return at.value(below, index)
    with at.at(wanted=inside):
        upper = at.value(above, place)
    with at.at(wanted=lanes - inside):
        lower = at.value(below, index)
    picks = [lane if lane in inside else count + lane if lane in lanes else -1
             for lane in range(count)]  # fmt: skip
    return at.b.shuffle(at.b.splat(upper, count), at.b.splat(lower, count), picks)


def _of_lanes(at: Positions, form: Affine) -> list[int] | None:
    """The number that an index is in each lane, where all are known."""
    found = at.by_lanes(form)
    if found is None or found[0].terms:
        return None
    same, apart = found
    return [same.const + each for each in apart]


def _chosen(at: Positions, op: Op, index: Index) -> Register:
    """The same where it is found out as the kernel runs: both are evaluated, the upper one at the
    nearest place that it has, or, where lanes go along it one by one, in the lanes that are there.
    """
    (above, below), (place, rests), b = op.operands, beneath(op, index), at.b
    nearest, inside, lanes = list(place), [], at.position.lanes
    mask = at.position.mask
    for axis, rest in rests.items():
        extent = above.shape[axis]
        coeff, _, varying = at.split(place[axis])
        masked = coeff == 1 and not varying and not rest.terms and not rest.const
        number = at.lane_index(place[axis], narrow=masked and fits_i32(place[axis]))
        fits = is_inside(b, number, extent)
        inside.append(fits)
        if rest.terms or rest.const:
            inside.append(b.compare("eq", at.lane_index(rest), 0))
        if masked:
            mask = fits if mask is None else mask & fits
        else:
            nearest[axis] = at.dynamic(clamped(b, number, extent), extent)
    fits = reduce(operator.and_, sorted(inside, key=lambda each: each.type.lanes))
    with at.at(mask=mask, within=mask is not at.position.mask):
        upper = at.value(above, tuple(nearest))
    lower = at.value(below, index)
    if lanes := max(each.type.lanes for each in (upper, lower, fits)):
        upper, lower, fits = (b.splat(each, lanes) for each in (upper, lower, fits))
    return b.select(fits, upper, lower)
