"""Checks which buffers of a plan share memory.

Input: a plan, and the order that its barriers alone imply. Output: nothing, or a VerificationError.
Invariant: buffers overlap only where one is over before the other begins, or where a dispatch
writes one over the other, whose last reader it is, box for box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagejit.dispatch.group import bits
from stagejit.errors import VerificationError
from stagejit.schedule.memory import Life, apart, finished_before
from stagejit.schedule.order import runs
from stagejit.schedule.plan import Buffer, Dispatch, Plan

_Memory = tuple[str, int]  # the result that lends it, or the number of the run


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
        read = {(a.hull, a.exact) for a in dispatch.reads if a.buffer == old.name}
        written = {(a.hull, a.exact) for a in dispatch.writes if a.buffer == new.name}
        whole = {((0, new.nbytes), True)}
        _require(
            read == written == whole and not any(a.buffer == old.name for a in dispatch.writes),
            f"{pair}: @{dispatch.name} does not read all of one and write all of the other",
        )
        self._ranges(dispatch, old, pair)

    def _ranges(self, dispatch: Dispatch, old: Buffer, pair: str) -> None:
        """Who waits for a reader of the old buffer waits for all that it reads."""
        reading = {other.name: other.reads for other in self.plan.dispatches}
        for barrier in self.plan.barriers:
            if (barrier.dst, barrier.hazard, barrier.buffer) == (dispatch.name, "WAR", old.name):
                _require(
                    all(
                        any(box.contains(access.box) for box in barrier.ranges)
                        for access in reading[barrier.src]
                        if access.buffer == old.name
                    ),
                    f"{pair}: {barrier} does not name all that is read",
                )


def _fault(fault: str) -> VerificationError:
    return VerificationError(f"plan: {fault}")


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise _fault(fault)
