"""Whether the iterations of a loop depend on each other.

Input: a counted loop, and where the buffers of its body lie. Output: why an iteration has to wait
for others, or nothing. Invariant: where nothing is said, no iteration touches an element that
another one writes, but for transients.

Note [Independent iterations]: what an iteration writes is told by the accesses of its dispatches.
A slice of a result is another one each time. What stays where it is (a carry) is written at boxes
whose offsets count the iterations: those of two iterations are apart where they are so along one
axis. What only counts iterations, its thread knows. Any other carry is what the next one waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph import python_functions
from stagejit.index.box import Box
from stagejit.index.progressions import Dim
from stagejit.schedule.access import Access
from stagejit.schedule.bodies import PlacedBody
from stagejit.symbolic import Int, Symbol, substitute

_Counts = Mapping[Symbol, tuple[int, int]]


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
    counts = {s.symbol: s.counts for s in plan.scalars if s.counts is not None and s.within(trip)}
    touched = {name: list(_touching(body, name)) for name in sorted(still)}
    for name, accesses in touched.items():
        for write in (access for writes, access in accesses if writes):
            for writes, other in accesses:
                if not _apart(write.box, other.box, counts):
                    how = "written" if writes else "read"
                    what = f"what an iteration writes of {name}{write.box}"
                    return f"{what} may be {how} by another one"
    return ""


def _touching(body: PlacedBody, name: str) -> Iterator[tuple[bool, Access]]:
    """What an iteration touches of one buffer, and whether it writes it."""
    for dispatch in body.schedule.plan.dispatches:
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
            for access in accesses:
                if access.buffer == name and access.nbytes:
                    yield writes, access


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
    """Where an offset is in the first iteration, and how far each one moves it, if that is known
    and the same each time."""
    at: list[Int] = []
    for number in range(3):
        values: dict[Symbol, Int] = {
            symbol: first + number * step for symbol, (first, step) in counts.items()
        }
        at.append(substitute(offset, values))
    step, again = at[1] - at[0], at[2] - at[1]
    return at[0], step if isinstance(step, int) and step == again else None
