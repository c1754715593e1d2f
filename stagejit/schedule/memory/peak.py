"""What the peak of memory is made of.

Input: a plan whose sizes are numbers. Output: a `Peak`: where it is, and which buffers are in use
there; text, and data. Invariants: plain data; the buffers and what is idle add up to what a call
allocates, `Plan.peak_nbytes`, and what lies on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.numbers import counted, nbytes_text
from stagejit.base.records import record
from stagejit.schedule.memory.lifetimes import (
    AnyBody,
    AnyPlan,
    Lifetime,
    lives_of,
    most_in_use,
    touched,
)
from stagejit.schedule.memory.packing import FRAME_NBYTES

_MOST_BUFFERS = 16  # that a text has


@record
class InUse:
    """A transient buffer that is in use at the peak.

    name: of the buffer; what: its line in the plan. nbytes: of it. writer, loc: the dispatch that
    writes it, and that one's line; until: the one that touches it last. inside: where loops or
    branches have their own transients in it, the peak of each of these bodies.
    """

    name: str
    what: str
    nbytes: int
    writer: str = ""
    until: str = ""
    loc: Loc = UNKNOWN
    inside: tuple[Inside, ...] = ()


@record
class Inside:
    """Body `number` of a dispatch. threads: that have an equal part of the buffer each, of which
    this is one. peak: of its transients. carried: its arguments and results that lie in the buffer
    beside them, all the time: what changes places from one iteration to the next."""

    dispatch: str
    number: int
    threads: int
    peak: Peak
    carried: tuple[InUse, ...] = ()


@record
class Peak:
    """Where most bytes of transients are in use, and by which buffers.

    position, dispatch, loc: of the dispatch that runs then; "" where there are no transients.
    nbytes: of `buffers`, the largest first. idle_nbytes: what a call has for transients and does
    not use then. stack_nbytes: of the arena, where it is small enough to lie on the stack; these
    are no part of `Plan.peak_nbytes`: nbytes + idle_nbytes == peak_nbytes + stack_nbytes.
    """

    position: int
    dispatch: str
    loc: Loc
    nbytes: int
    idle_nbytes: int
    stack_nbytes: int
    buffers: tuple[InUse, ...]

    @property
    def allocated_nbytes(self) -> int:
        """Bytes that a call allocates: `Plan.peak_nbytes`."""
        return self.nbytes + self.idle_nbytes - self.stack_nbytes

    def as_text(self) -> str:
        """Where it is; then the buffers, each with its dispatch and line."""
        return "\n".join(self._lines(""))

    __str__ = as_text

    def as_json(self) -> dict[str, Any]:
        """Plain data: the fields, lines as "file:line"."""
        return {
            "dispatch": self.dispatch,
            "line": str(self.loc) if self.loc else "",
            "nbytes": self.nbytes,
            "idle_nbytes": self.idle_nbytes,
            "stack_nbytes": self.stack_nbytes,
            "allocated_nbytes": self.allocated_nbytes,
            "buffers": [_data(each) for each in self.buffers],
        }

    def _lines(self, where: str) -> Iterator[str]:
        if not self.buffers:
            yield f"no transients{where}"
            return
        at = f" {self.loc}" if self.loc else ""
        said = [f"{nbytes_text(self.nbytes)} of transients{where} while @{self.dispatch} runs{at}"]
        if self.idle_nbytes:
            said.append(f"{nbytes_text(self.idle_nbytes)} idle then")
        if self.stack_nbytes:
            said.append(f"{nbytes_text(self.stack_nbytes)} on the stack")
        yield "; ".join(said)
        for each in self.buffers[:_MOST_BUFFERS]:
            yield f"  {_said(each)}"
            for inside in each.inside:
                yield from (f"    {line}" for line in inside.peak._lines(_within(inside)))
                yield from (f"      {_said(each)}" for each in inside.carried)
        if rest := self.buffers[_MOST_BUFFERS:]:
            nbytes = sum(each.nbytes for each in rest)
            yield f"  and {counted(len(rest), 'more buffer')} of {nbytes_text(nbytes)}"


def _said(each: InUse) -> str:
    what = each.what.replace(" transient slot ", " transient at byte ")  # of the arena
    said = f"{nbytes_text(each.nbytes)}  {what}"
    if each.writer:
        said += f", written by @{each.writer}"
    if each.until:
        said += f", until @{each.until}"
    return f"{said}  {each.loc}" if each.loc else said


def _within(inside: Inside) -> str:
    part = f", for each of {inside.threads} threads" if inside.threads > 1 else ""
    return f" in body {inside.number} of @{inside.dispatch}{part}"


def _data(each: InUse) -> dict[str, Any]:
    return {
        "name": each.name,
        "what": each.what,
        "nbytes": each.nbytes,
        "writer": each.writer,
        "until": each.until,
        "line": str(each.loc) if each.loc else "",
        "inside": [
            {
                "dispatch": inside.dispatch,
                "body": inside.number,
                "threads": inside.threads,
                "peak": inside.peak.as_json(),
                "carried": [_data(each) for each in inside.carried],
            }
            for inside in each.inside
        ],
    }


def peak_of(plan: AnyPlan, *, inside: bool = False) -> Peak:
    """See `Plan.peak`. inside: of a body, whose transients lie in memory of the plan around it."""
    position, there = most_in_use(plan, lives_of(plan))
    buffers = tuple(_in_use(plan, life) for life in there)
    nbytes, arena = sum(each.nbytes for each in buffers), plan.arena_nbytes
    stack = arena if arena <= FRAME_NBYTES and not inside else 0
    passed = sum(b.nbytes for b in plan.buffers if b.kind == "transient" and b.slot is None)
    at = plan.dispatches[position] if buffers else None
    return Peak(
        position,
        at.name if at else "",
        at.loc if at else UNKNOWN,
        nbytes,
        passed + arena - nbytes,
        stack,
        buffers,
    )


def _carried(body: AnyBody, workspace: str) -> Iterator[InUse]:
    places = {b.offset_nbytes: b.buffer for b in body.bindings if b.outer == workspace}
    for name in places.values():
        buffer = body.plan.buffer(name)
        if buffer.nbytes:
            what = str(buffer).removeprefix("buffer ")
            yield InUse(name, f"{what}, from one iteration to the next", buffer.nbytes)


def _last_touch(plan: AnyPlan, life: Lifetime) -> int:
    """Also that of the dispatch that writes another buffer over it, which has the memory then."""
    name = life.buffer.name
    return max(
        (
            at
            for at, dispatch in enumerate(plan.dispatches)
            if any(buffer == name for buffer, _ in touched(dispatch))
        ),
        default=life.last,
    )


def _in_use(plan: AnyPlan, life: Lifetime) -> InUse:
    name = life.buffer.name
    writer = None if life.writer is None else plan.dispatches[life.writer]
    inside = tuple(
        Inside(
            dispatch.name,
            number,
            body.threads,
            peak_of(body.plan, inside=True),
            tuple(_carried(body, name)),
        )
        for dispatch in plan.dispatches
        for number, body in enumerate(dispatch.bodies)
        if body.workspace == name
    )
    return InUse(
        name,
        str(life.buffer).removeprefix("buffer "),
        life.buffer.nbytes,
        writer.name if writer else "",
        plan.dispatches[_last_touch(plan, life)].name,
        writer.loc if writer else UNKNOWN,
        inside,
    )
