"""Checks which buffers of a plan share memory.

Input: a plan, and the order that its barriers alone imply. Output: nothing, or a VerificationError.
Invariant: buffers overlap only where one is over before the other begins, or where a dispatch
writes one over the other, whose last reader it is, box for box; and what touched the older one has
settled, by the ranges of barriers, before the newer one is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.errors import VerificationError
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.conflicts.order import runs
from stagejit.schedule.memory.packing import Life, finished_before
from stagejit.schedule.plans.plan import Access, Buffer, Plan
from stagejit.schedule.verifier.settled import Settled

_Memory = tuple[str, int]  # the result that lends it, or the number of the run
_Touch = tuple[int, bool, Access]  # position of the dispatch, whether it writes


def check_slots(plan: Plan, before: Sequence[int]) -> None:
    """before[p]: the positions that barriers order before position p."""
    check = _Check(plan, before)
    for buffer in plan.buffers:
        if buffer.over:
            check.over(buffer)
        if buffer.host:
            check.host(buffer)
    check.apart()
    check.settled()


class _Check:
    """lives: of the buffers that are touched. places: where those begin that lie in an arena, or in
    a result; and these results, which lend their memory."""

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
        self.places: dict[str, tuple[_Memory, int]] = {}
        delegated = {item.dispatch for item in plan.delegated}
        segment = runs([dispatch.name in delegated for dispatch in plan.dispatches])
        for name, life in self.lives.items():
            buffer = self.buffers[name]
            if buffer.slot is not None:
                memory = (buffer.host, 0) if buffer.host else ("", segment[_first(life)])
                self.places[name] = memory, buffer.slot
            if buffer.host in self.lives:
                self.places[buffer.host] = (buffer.host, 0), 0

    def apart(self) -> None:
        """Of two buffers that overlap one is over before the other begins, or one is written over
        the other. In the order in which they begin: who comes after the one that lies where another
        one was comes after that one, too. A result lends its memory until it is written."""
        index: dict[_Memory, BoxIndex[str]] = {}
        for name in sorted(self.places, key=lambda name: _first(self.lives[name])):
            memory, start = self.places[name]
            taken, box = index.setdefault(memory, BoxIndex()), _span(start, self.lives[name].nbytes)
            for other in taken.overlapping(box):
                linked = self.buffers[name].over == other or self.buffers[other].over == name
                over = other != memory[0] and not self.lives[other].users & ~self.finished[name]
                fault = f"{other} and {name} share memory and are alive together"
                if name == memory[0]:
                    fault = f"{other} is alive when {name} is written, in whose memory it lies"
                _require(linked or over, fault)
            taken.cut(box)
            taken.add(box, name)

    def host(self, buffer: Buffer) -> None:
        """What lies in a result fits there."""
        host, name = self.buffers.get(buffer.host), buffer.name
        if host is None or host.kind != "result" or buffer.slot is None:
            raise _fault(f"{name} lies in {buffer.host}, which is no result with memory of its own")
        _require(buffer.slot + buffer.nbytes <= host.nbytes, f"{name} does not fit in {host.name}")

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
        read = {(a.box, a.must) for a in dispatch.reads if a.buffer == old.name}
        written = {(a.box, a.must) for a in dispatch.writes if a.buffer == new.name}
        _require(
            read == {(Box.whole(old.shape), True)}
            and written == {(Box.whole(new.shape), True)}
            and not any(a.buffer == old.name for a in dispatch.writes),
            f"{pair}: @{dispatch.name} does not read all of one and write all of the other",
        )

    def settled(self) -> None:
        """All of an access has settled when another buffer is touched where it lies."""
        settled = Settled(self.plan, self.before)
        at_byte: dict[_Memory, BoxIndex[_Touch]] = {}
        for at, dispatch in enumerate(self.plan.dispatches):
            here: list[tuple[BoxIndex[_Touch], Box, _Touch]] = []
            for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
                for access in accesses:
                    if access.buffer in self.places and access.nbytes:
                        memory, start = self.places[access.buffer]
                        index = at_byte.setdefault(memory, BoxIndex())
                        low, high = access.hull
                        here.append((index, _span(start + low, high - low), (at, writes, access)))
            for index, box, (_, writes, access) in here:
                for first, wrote, other in index.overlapping(box):
                    if other.buffer != access.buffer and (writes or wrote):
                        hazard = ("WAW" if writes else "RAW") if wrote else "WAR"
                        settled.check(first, at, hazard, other.buffer, other.box)
            for index, box, (_, writes, access) in here:
                if writes and access.nbytes == box.count:
                    index.cut(box)  # who waits for this one has waited for those
            for index, box, touch in here:
                index.add(box, touch)


def _first(life: Life) -> int:
    """The first position that touches the buffer."""
    return (life.users & -life.users).bit_length() - 1


def _span(start: int, nbytes: int) -> Box:
    return Box((start,), (nbytes,), (1,))


def _fault(fault: str) -> VerificationError:
    return VerificationError(f"plan: {fault}")


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise _fault(fault)
