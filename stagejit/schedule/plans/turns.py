"""How often a call runs what is inside of loops and branches, and what it copies around that.

Input: dispatches. Output: counts, None where only the call knows. Invariant: totals, explanations
and the model count with these, which are those of the host program (`runtime/hosting/steps.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from stagejit.base.numbers import counted, number_text
from stagejit.base.records import record
from stagejit.schedule.conflicts.access import Access
from stagejit.schedule.conflicts.binding import Carry


class _Body(Protocol):
    """A `plan.Body`."""

    @property
    def plan(self) -> Any: ...
    @property
    def trip(self) -> int | None: ...
    @property
    def carries(self) -> tuple[Carry, ...]: ...
    @property
    def alternates(self) -> bool: ...


class _Dispatch(Protocol):
    """A `plan.Dispatch`."""

    @property
    def kind(self) -> str: ...
    @property
    def reads(self) -> tuple[Access, ...]: ...
    @property
    def writes(self) -> tuple[Access, ...]: ...
    @property
    def flops(self) -> int: ...
    @property
    def filled_nbytes(self) -> int: ...
    @property
    def bodies(self) -> tuple[_Body, ...]: ...


D = TypeVar("D", bound=_Dispatch)


@record
class Carried:
    """Carries of one body that are copied to where the next turn, or what comes after the loop or
    branch, expects them. nbytes: of each, a time. times: in a run of the dispatch."""

    nbytes: tuple[int, ...]
    times: int | None

    @property
    def run_nbytes(self) -> int:
        """In a run of the dispatch; in one turn where only the call knows how many there are."""
        return sum(self.nbytes) * counted_once(self.times)


def counted_once(times: int | None) -> int:
    """What only the call knows counts once."""
    return 1 if times is None else times


def dispatches_text(outer: int, inner: int) -> str:
    """How many dispatches there are, those inside of loops and branches apart."""
    more = f" and {number_text(inner)} in bodies of loops and branches" if inner else ""
    return f"{counted(outer, 'dispatch')}{more}"


def turns_of(dispatch: _Dispatch, number: int) -> int | None:
    """How often a run of a dispatch runs one of its bodies."""
    trip = dispatch.bodies[0].trip
    if dispatch.kind != "loop" or trip is None:
        return None
    return trip + number  # a condition is asked once more


def times_inside(dispatch: _Dispatch, number: int, times: int | None) -> int | None:
    """How often a call runs a body of a dispatch that it runs so often itself."""
    turns = turns_of(dispatch, number)
    return None if turns is None or times is None else times * turns


def carried_by(dispatch: _Dispatch) -> tuple[Carried, ...]:
    """Those of each body that has some to copy."""
    found = []
    for number, body in enumerate(dispatch.bodies):
        nbytes = tuple(body.plan.buffer(carry.result).nbytes for carry in body.carries)
        times = turns_of(dispatch, number)
        if body.alternates and times is not None:
            times %= 2  # they have changed places then, and nothing else copies them back
        if nbytes and times != 0:
            found.append(Carried(nbytes, times))
    return tuple(found)


def launches(dispatches: Iterable[D], times: int | None = 1) -> Iterator[tuple[D, int | None]]:
    """Those of a plan, each before those inside of it, with how often a call runs it. times: how
    often it runs the plan."""
    for dispatch in dispatches:
        yield dispatch, times
        for number, body in enumerate(dispatch.bodies):
            inner = times_inside(dispatch, number, times)
            yield from launches(body.plan.dispatches, inner)


def totals_of(dispatch: _Dispatch) -> dict[str, int]:
    """Of one run; what a loop or a branch does is done inside of it, but for its carries. By names
    of `comparison.Totals`."""
    if dispatch.bodies:
        copied = sum(carried.run_nbytes for carried in carried_by(dispatch))
        moved = dict.fromkeys(("read_nbytes", "written_nbytes", "copied_nbytes"), copied)
        return {"launches": 0, "flops": 0, **moved}
    read, written = (
        sum(access.nbytes for access in side) for side in (dispatch.reads, dispatch.writes)
    )
    found = {"launches": 1, "read_nbytes": read, "written_nbytes": written}
    found |= {"flops": dispatch.flops}
    if dispatch.kind == "copy":
        filled = dispatch.filled_nbytes
        found |= {"copied_nbytes": written - filled, "filled_nbytes": filled}
    return found
