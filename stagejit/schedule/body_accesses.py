"""What a loop or a branch touches: the union of what its bodies touch.

Input: a region, and where the buffers of its bodies lie. Output: boxes of the values around it.
Invariant: no body touches anything else; a box is exact iff it is so inside.

A slice of xs or ys that moves with the iteration is, over all iterations, one more dimension of its
box. Where the body sees another shape than the graph around it, the range of bytes is translated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stagejit.dispatch.accesses import Touch, joined
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Value
from stagejit.graph.ops.views import behind_aliases
from stagejit.index.box import Box
from stagejit.schedule.access import swept
from stagejit.schedule.bodies import Layout, Place
from stagejit.schedule.plan import Access, Carry, Plan

_INSIDE = "what a body touches is known at run time only"
_RESHAPED = "a body sees another shape"


def touches_of(region: Region, layout: Layout) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    """What the dispatch of a loop or branch reads and writes."""
    reads: dict[Value, list[Touch]] = {}
    writes: dict[Value, list[Touch]] = {}
    bodies: list[tuple[list[Touch], list[Touch], bool]] = []
    op = region.anchor
    assert op is not None
    if op.definition.is_branch:
        index = behind_aliases(op.operands[0])
        reads[index] = [Touch(index, Box.whole(index.shape))]
    for schedule, trip, places, carries in zip(
        layout.schedules, layout.trips, layout.places, layout.carries, strict=True
    ):
        body = _Body(schedule.plan, trip or 1, places)
        may = trip is None  # its condition may fail at once
        bodies.append((list(body.reads()), [*body.writes(), *body.moves(carries)], may))
    for number, (read, written, may) in enumerate(bodies):
        others = bodies[:number] + bodies[number + 1 :] if op.definition.is_branch else []
        for touch in read:
            certain = not may and all(_is_certain(touch, other[0]) for other in others)
            reads.setdefault(touch.value, []).append(replace(touch, may=touch.may or not certain))
        for touch in written:
            certain = not may and all(_is_certain(touch, other[1]) for other in others)
            writes.setdefault(touch.value, []).append(replace(touch, may=touch.may or not certain))
    return _united(reads), _united(writes)


def _is_certain(touch: Touch, others: Sequence[Touch]) -> bool:
    """Whether another branch touches all of the box, too."""
    return any(o.value is touch.value and o.must and o.box.contains(touch.box) for o in others)


def _united(touches: dict[Value, list[Touch]]) -> tuple[Touch, ...]:
    return tuple(touch for found in touches.values() for touch in joined(found))


class _Body:
    """One body's plan with the places of its buffers that are not in the workspace."""

    def __init__(self, plan: Plan, trip: int, places: Sequence[Place]) -> None:
        self.plan, self.trip = plan, trip
        self.places = {place.buffer: place for place in places if place.value is not None}
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}

    def reads(self) -> Iterator[Touch]:
        """Reads of arguments; what a body reads of its own results, it has written before."""
        for dispatch in self.plan.dispatches:
            for access in dispatch.reads:
                if access.buffer in self.places and self.buffers[access.buffer].kind == "argument":
                    yield self._around(access)

    def writes(self) -> Iterator[Touch]:
        for dispatch in self.plan.dispatches:
            for access in dispatch.writes:
                if access.buffer in self.places:
                    yield self._around(access)

    def moves(self, carries: Sequence[Carry]) -> Iterator[Touch]:
        """Carries that are computed elsewhere come back to where they are expected."""
        for carry in carries:
            value = self.places[carry.argument].value
            if value is not None:
                yield Touch(value, Box.whole(value.shape))

    def _around(self, access: Access) -> Touch:
        """What an access inside of a body touches outside of it."""
        place, buffer = self.places[access.buffer], self.buffers[access.buffer]
        (box, exact), value, shape = self._swept(access), place.value, buffer.shape
        assert value is not None
        if place.stride_nbytes:
            box, shape = Box.of(((0, self.trip, 1), *box.dims())), (self.trip, *shape)
        box, fits = box.reshaped(shape, value.shape)
        reason = "" if exact and fits else _INSIDE if fits else _RESHAPED
        return Touch(value, box, reason, access.may)

    def _swept(self, access: Access) -> tuple[Box, bool]:
        """What it touches over all iterations, and whether all of that."""
        box, exact = swept(access.box, self.plan.scalars, self.trip)
        return box, exact and access.exact
