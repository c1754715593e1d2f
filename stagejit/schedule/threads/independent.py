"""Whether the iterations of a loop depend on each other.

Input: a counted loop, and where the buffers of its body lie. Output: why an iteration has to wait
for others, or nothing. Invariant: where nothing is said, no iteration touches an element that
another one writes, but for transients.

Note [Independent iterations]: what an iteration writes is told by the accesses of its dispatches.
A slice of a result is another one each time. What stays where it is (a carry) is written at boxes
whose offsets count the iterations: those of two iterations are apart where they are so along one
axis. What only counts iterations, its thread knows. Any other carry is what the next one waits for.

Note [Offsets that count]: an offset is a sum of what counts iterations, each times a number, and of
what is the same in all of them. One that has anything else in it, a remainder, a square, an element
of what is sliced, may be anywhere in another iteration.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.base.symbolic import Expr, Int, Symbol, terms_of
from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph import python_functions
from stagejit.index.box import Box
from stagejit.index.progressions import Dim
from stagejit.schedule.bodies import PlacedBody
from stagejit.schedule.conflicts.access import boxes_by_buffer

# The first value and the step of what counts iterations; None for what is the same in all of them.
_Counts = Mapping[Symbol, tuple[int, int] | None]


def dependence(region: Region, body: PlacedBody) -> str:
    """region: the loop; body: where each thread has its counters. Empty if iterations may run in
    any order, and at the same time."""
    for inner in with_inner(region.bodies[0].regions):
        anchor = inner.anchor
        if anchor is not None and anchor.attrs.get("target") == python_functions.TARGET:
            return f"@{inner.name} calls Python, which sees iterations in order"
    if body.carries:
        return f"an iteration waits for {body.carries[0].argument} of the one before"
    still = {p.buffer for p in body.places if p.value is not None and not p.stride_nbytes}
    plan, trip = body.schedule.plan, body.trip or 1
    dispatches = plan.dispatches
    read = boxes_by_buffer(access for each in dispatches for access in each.reads)
    written = boxes_by_buffer(access for each in dispatches for access in each.writes)
    counted = {counter.buffer for counter in body.counters}
    constants = still - counted - written.keys()
    counts = {
        s.symbol: s.counts
        for s in plan.scalars
        if (s.names <= constants if s.counts is None else s.within(trip))
    }
    for name in sorted(still & written.keys()):
        for write in written[name]:
            for how, others in (("read", read.get(name, {})), ("written", written[name])):
                if not all(_apart(write, other, counts) for other in others):
                    what = f"what an iteration writes of {name}{write}"
                    return f"{what} may be {how} by another one"
    return ""


def _apart(a: Box, b: Box, counts: _Counts) -> bool:
    """Whether box `a` of one iteration and box `b` of any other one have no element in common."""
    pairs = zip(a.dims(), b.dims(), strict=True)
    return any(_apart_along(*pair, counts) for pair in pairs)


def _apart_along(a: Dim, b: Dim, counts: _Counts) -> bool:
    """The same for one axis: both move by as much, and by more than both are long together."""
    (first, step), (other, same) = _moving(a[0], counts), _moving(b[0], counts)
    distance: Int = first - other
    if step is None or step != same or not isinstance(distance, int):
        return False
    return abs(step) + distance >= _span(b) and abs(step) - distance >= _span(a)


def _span(dim: Dim) -> int:
    _, size, stride = dim
    span: int = (size - 1) * stride + 1
    return span


def _moving(offset: Int, counts: _Counts) -> tuple[Int, int | None]:
    """Where an offset is in the first iteration, and how far each one moves it; None where that is
    not known, or not the same each time. See Note [Offsets that count]."""
    first: Int = 0
    step = 0
    for product, factor in terms_of(offset):
        if any(symbol not in counts for symbol in product):
            return 0, None
        moving = [known for symbol in product if (known := counts[symbol]) is not None]
        if not moving:
            first = first + (Expr(((product, factor),)) if product else factor)
        elif len(product) == 1:
            first, step = first + factor * moving[0][0], step + factor * moving[0][1]
        else:
            return 0, None
    return first, step
