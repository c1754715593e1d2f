"""Checks which buffers of a plan share memory.

Input: a plan, and the order that its barriers alone imply. Output: nothing, or a VerificationError.
Invariant: buffers overlap only where one is over before the other begins, or where a dispatch
writes one over the other, whose last reader it is, box for box; and what touched the older one has
settled, by the ranges of barriers, before the newer one is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stagejit.errors import VerificationError
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.memory import Life, apart, finished_before
from stagejit.schedule.order import runs
from stagejit.schedule.plan import Access, Buffer, Plan
from stagejit.schedule.settled import Settled

_Memory = tuple[str, int]  # the result that lends it, or the number of the run
_Touch = tuple[int, bool, Access]  # position of the dispatch, whether it writes


@dataclass(frozen=True)
class _Placed:
    buffer: Buffer
    life: Life
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.buffer.nbytes


def check_slots(plan: Plan, before: Sequence[int]) -> None:
    """before[p]: the positions that barriers order before position p."""
    check = _Check(plan, before)
    for buffer in plan.buffers:
        if buffer.over:
            check.over(buffer)
        if buffer.host:
            check.host(buffer)
    for placed in check.by_memory().values():
        for number, a in enumerate(placed):
            for b in placed[:number]:
                check.apart(a, b)


class _Check:
    def __init__(self, plan: Plan, before: Sequence[int]) -> None:
        self.plan, self.before = plan, before
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}
        users: dict[str, int] = {}
        for at, dispatch in enumerate(plan.dispatches):
            for access in (*dispatch.reads, *dispatch.writes):
                users[access.buffer] = users.get(access.buffer, 0) | 1 << at
        self.lives = {
            buffer.name: Life(buffer.name, buffer.nbytes, users[buffer.name])
            for buffer in plan.buffers
            if buffer.nbytes and buffer.name in users
        }
        self.finished = finished_before(list(self.lives.values()), before)

    def by_memory(self) -> dict[_Memory, list[_Placed]]:
        """Placed buffers, by the memory that they lie in."""
        delegated = {item.dispatch for item in self.plan.delegated}
        segment = runs([dispatch.name in delegated for dispatch in self.plan.dispatches])
        found: dict[_Memory, list[_Placed]] = {}
        for buffer in self.plan.buffers:
            life = self.lives.get(buffer.name)
            if life is None or buffer.slot is None:
                continue
            first = (life.users & -life.users).bit_length() - 1
            memory = (buffer.host, 0) if buffer.host else ("", segment[first])
            found.setdefault(memory, []).append(_Placed(buffer, life, buffer.slot))
        return found

    def with_hosts(self) -> dict[_Memory, list[_Placed]]:
        """The same, and the results that lend their memory to some of them."""
        found = self.by_memory()
        for (host, _), placed in found.items():
            if host in self.lives:
                placed.append(_Placed(self.buffers[host], self.lives[host], 0))
        return found

    def apart(self, a: _Placed, b: _Placed) -> None:
        """Two buffers do not overlap, or are not alive together, or one is written over the
        other."""
        shared = a.start < b.stop and b.start < a.stop
        linked = a.buffer.over == b.buffer.name or b.buffer.over == a.buffer.name
        _require(
            not shared or linked or apart(a.life, b.life, self.finished),
            f"{a.buffer.name} and {b.buffer.name} share memory and are alive together",
        )

    def host(self, buffer: Buffer) -> None:
        """A result lends its memory until it is written."""
        host, name = self.buffers.get(buffer.host), buffer.name
        if host is None or host.kind != "result" or buffer.slot is None:
            raise _fault(f"{name} lies in {buffer.host}, which is no result with memory of its own")
        _require(buffer.slot + buffer.nbytes <= host.nbytes, f"{name} does not fit in {host.name}")
        if name in self.lives and host.name in self.lives and host.over != name:
            _require(
                not self.lives[name].users & ~self.finished[host.name],
                f"{name} is alive when {host.name} is written, in whose memory it lies",
            )

    def over(self, new: Buffer) -> None:
        """One dispatch is the last to touch a buffer and the first to touch the one that takes its
        place, and touches the same elements of both."""
        old, pair = self.buffers.get(new.over), f"{new.name} over {new.over}"
        if old is None or old.kind != "transient" or old.nbytes != new.nbytes:
            raise _fault(f"{pair}: there is no such transient of that size")
        place = (new.slot, new.host) if new.kind == "transient" else (0, new.name)
        _require((old.slot, old.host) == place, f"{pair}: they do not lie at one place")
        both = self.lives[old.name].users & self.lives[new.name].users
        _require(both.bit_count() == 1, f"{pair}: no one dispatch touches both")
        at = both.bit_length() - 1
        _require(
            not self.lives[old.name].users & ~both & ~self.before[at],
            f"{pair}: the old one is touched later",
        )
        _require(
            all(self.before[user] >> at & 1 for user in bits(self.lives[new.name].users & ~both)),
            f"{pair}: the new one is touched before",
        )
        dispatch = self.plan.dispatches[at]
        read = {(a.hull, a.must) for a in dispatch.reads if a.buffer == old.name}
        written = {(a.hull, a.must) for a in dispatch.writes if a.buffer == new.name}
        whole = {((0, new.nbytes), True)}
        _require(
            read == written == whole and not any(a.buffer == old.name for a in dispatch.writes),
            f"{pair}: @{dispatch.name} does not read all of one and write all of the other",
        )


def check_shared(plan: Plan, before: Sequence[int]) -> None:
    """All of an access has settled when another buffer is touched where it lies."""
    settled = Settled(plan, before)
    at_byte: dict[_Memory, BoxIndex[_Touch]] = {}
    places = {
        placed.buffer.name: (memory, placed.start)
        for memory, in_memory in _Check(plan, before).with_hosts().items()
        for placed in in_memory
    }
    for at, dispatch in enumerate(plan.dispatches):
        here: list[tuple[_Memory, Box, _Touch]] = []
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
            for access in accesses:
                if access.buffer in places and access.nbytes:
                    memory, start = places[access.buffer]
                    low, high = access.hull
                    box = Box((start + low,), (high - low,), (1,))
                    here.append((memory, box, (at, writes, access)))
        for memory, box, (_, writes, access) in here:
            for first, wrote, other in at_byte.setdefault(memory, BoxIndex()).overlapping(box):
                if other.buffer != access.buffer and (writes or wrote) and first != at:
                    hazard = ("WAW" if writes else "RAW") if wrote else "WAR"
                    settled.check(first, at, hazard, other.buffer, other.box)
        for memory, box, (_, writes, access) in here:
            if writes and access.nbytes == box.count:
                # Who waits for this one has waited for those.
                at_byte[memory].remove_within(box)
                at_byte[memory].cut(box, partial(_is_of_another, access.buffer))
        for memory, box, touch in here:
            at_byte[memory].add(box, touch)


def _is_of_another(buffer: str, touch: _Touch) -> bool:
    return touch[2].buffer != buffer


def _fault(fault: str) -> VerificationError:
    return VerificationError(f"plan: {fault}")


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise _fault(fault)
