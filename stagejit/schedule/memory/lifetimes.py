"""How long the buffers of a plan are in use, and how many bytes are at each position.

Input: a plan. Output: `Lifetime`s, and the sums; pictures and `Plan.peak` are made of them.
Invariant: a buffer is in use from the first dispatch that touches it to the last one, an argument
from the start, a result to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from stagejit.base.loc import Loc
from stagejit.base.records import record
from stagejit.schedule.conflicts.access import Access, Buffer
from stagejit.schedule.conflicts.binding import Binding


class AnyBody(Protocol):
    """What is asked of a `plan.Body`, which is made of what stands here."""

    @property
    def plan(self) -> AnyPlan: ...
    @property
    def bindings(self) -> tuple[Binding, ...]: ...
    @property
    def workspace(self) -> str: ...
    @property
    def threads(self) -> int: ...


class AnyDispatch(Protocol):
    """What is asked of a `plan.Dispatch`."""

    @property
    def name(self) -> str: ...
    @property
    def loc(self) -> Loc: ...
    @property
    def reads(self) -> tuple[Access, ...]: ...
    @property
    def writes(self) -> tuple[Access, ...]: ...
    @property
    def bodies(self) -> Sequence[AnyBody]: ...


class AnyPlan(Protocol):
    """What is asked of a `plan.Plan`."""

    @property
    def dispatches(self) -> Sequence[AnyDispatch]: ...
    @property
    def buffers(self) -> tuple[Buffer, ...]: ...
    @property
    def arena_nbytes(self) -> int: ...
    def buffer(self, name: str) -> Buffer: ...


@record
class Lifetime:
    """A buffer from position `first` to position `last` of a plan. writer: the position that writes
    it first, if any does."""

    buffer: Buffer
    first: int
    last: int
    writer: int | None

    @property
    def in_arena(self) -> bool:
        return self.buffer.slot is not None and not self.buffer.host


def touched(dispatch: AnyDispatch) -> Iterator[tuple[str, bool]]:
    """Buffers with whether they are written; a workspace is."""
    for access in dispatch.reads:
        yield access.buffer, False
    for access in dispatch.writes:
        yield access.buffer, True
    for body in dispatch.bodies:
        if body.workspace:
            yield body.workspace, True


def lives_of(plan: AnyPlan) -> list[Lifetime]:
    """Of all buffers, in the order of their first use; those that nobody touches are in use all
    the time."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    writer: dict[str, int] = {}
    for at, dispatch in enumerate(plan.dispatches):
        for name, writes in touched(dispatch):
            first.setdefault(name, at)
            last[name] = at
            if writes:
                writer.setdefault(name, at)
    end = max(len(plan.dispatches) - 1, 0)
    lives = [
        Lifetime(
            buffer,
            first.get(buffer.name, 0) if buffer.kind in ("transient", "result") else 0,
            last.get(buffer.name, end) if buffer.kind == "transient" else _until(buffer, last, end),
            writer.get(buffer.name),
        )
        for buffer in plan.buffers
    ]
    return sorted(lives, key=lambda life: (life.first, life.last))


def _until(buffer: Buffer, last: Mapping[str, int], end: int) -> int:
    """An argument whose memory a result takes is in use to the end."""
    if buffer.kind == "result" or buffer.result is not None:
        return end
    return last.get(buffer.name, 0)


def live_nbytes(lives: Sequence[Lifetime], positions: int) -> list[int]:
    """At each position."""
    changes = [0] * (positions + 1)
    for life in lives:
        changes[life.first] += life.buffer.nbytes
        changes[life.last + 1] -= life.buffer.nbytes
    found, now = [], 0
    for change in changes[:positions]:
        now += change
        found.append(now)
    return found


def owned(lives: Sequence[Lifetime]) -> list[Lifetime]:
    """Transients with memory of a call's own, not in a result. Where one is written over another
    one by the last dispatch that reads that, the larger one counts there."""
    by_name = {life.buffer.name: life for life in lives}
    over = {life.buffer.over: life for life in lives if life.buffer.over}
    found = []
    for life in lives:
        if life.buffer.kind != "transient" or life.buffer.host:
            continue
        first, last = life.first, life.last
        after, before = over.get(life.buffer.name), by_name.get(life.buffer.over)
        if after is not None and after.first == last:
            last -= after.buffer.nbytes >= life.buffer.nbytes
        if before is not None and before.last == first:
            first += before.buffer.nbytes > life.buffer.nbytes
        if last >= first:
            found.append(replace(life, first=first, last=last))
    return found


def most_in_use(plan: AnyPlan, lives: Sequence[Lifetime]) -> tuple[int, tuple[Lifetime, ...]]:
    """The first position with most bytes of transients, and those that are in use there, the
    largest first."""
    mine = owned(lives)
    nbytes = live_nbytes(mine, max(len(plan.dispatches), 1))
    at = max(range(len(nbytes)), key=lambda position: (nbytes[position], -position))
    there = [life for life in mine if life.first <= at <= life.last]
    there.sort(key=lambda life: -life.buffer.nbytes)
    return at, tuple(there)
