"""Checks a plan: ranges, happens-before, memory.

Input: a plan. Output: nothing, or a VerificationError that names the first fault. Invariant: accepts every
plan that `build.py` makes, and rejects it when any one barrier is missing.

Nothing of the planner is reused but the box arithmetic: conflicts are found again from the accesses, and
order is what the barriers alone imply.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.dispatch.box import Box
from stagejit.errors import VerificationError
from stagejit.schedule.memory import Life, apart, finished_before
from stagejit.schedule.order import runs
from stagejit.schedule.plan import Access, Barrier, Buffer, Plan


def verify_plan(plan: Plan) -> None:
    """Raises VerificationError for a plan that could compute something wrong."""
    names = [dispatch.name for dispatch in plan.dispatches]
    _require(len(set(names)) == len(names), "two dispatches have one name")
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    _require(len(buffers) == len(plan.buffers), "two buffers have one name")
    for dispatch in plan.dispatches:
        for access in (*dispatch.reads, *dispatch.writes):
            _check_access(dispatch.name, access, buffers)
    before = _order_of(plan, names)
    _check_conflicts(plan, before)
    _check_contents(plan, buffers)
    _check_slots(plan, before)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(f"plan: {fault}")


def _check_access(name: str, access: Access, buffers: dict[str, Buffer]) -> None:
    _require(access.buffer in buffers, f"@{name} touches an unknown buffer {access.buffer}")
    buffer = buffers[access.buffer]
    _require(not access.box.count or Box.whole(buffer.shape).contains(access.box),
             f"@{name} leaves the buffer: {access} of {buffer.shape}")
    expected = Access.of(buffer, access.box, exact=access.exact)
    _require(access == expected, f"@{name} states wrong bytes for {access}")


def _order_of(plan: Plan, names: Sequence[str]) -> list[int]:
    """For each dispatch the bit set of those that barriers order before it."""
    position = {name: at for at, name in enumerate(names)}
    direct = [0] * len(names)
    for barrier in plan.barriers:
        _require(barrier.src in position and barrier.dst in position, f"{barrier}: no such dispatch")
        first, second = position[barrier.src], position[barrier.dst]
        _require(first < second, f"{barrier} points backwards")
        direct[second] |= 1 << first
    before = [0] * len(names)
    for at in range(len(names)):
        before[at] = direct[at]
        for earlier in range(at):
            if direct[at] >> earlier & 1:
                before[at] |= before[earlier]
    return before


def _check_conflicts(plan: Plan, before: Sequence[int]) -> None:
    """Every conflict has a barrier that names it, or a chain of barriers through other dispatches."""
    named: dict[tuple[str, str, str, str], list[Barrier]] = {}
    waits: dict[str, set[str]] = {}
    for barrier in plan.barriers:
        named.setdefault((barrier.src, barrier.dst, barrier.buffer, barrier.hazard), []).append(barrier)
        waits.setdefault(barrier.dst, set()).add(barrier.src)
    position = {dispatch.name: at for at, dispatch in enumerate(plan.dispatches)}
    touches: dict[str, list[tuple[int, bool, Access]]] = {}
    for at, dispatch in enumerate(plan.dispatches):
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
            for access in accesses:
                touches.setdefault(access.buffer, []).append((at, writes, access))
    for of_buffer in touches.values():
        for number, (first, first_writes, a) in enumerate(of_buffer):
            for second, second_writes, b in of_buffer[:number] + of_buffer[number + 1:]:
                if second <= first or not (first_writes or second_writes) or not a.overlaps(b):
                    continue
                hazard = ("WAW" if second_writes else "RAW") if first_writes else "WAR"
                src, dst = plan.dispatches[first].name, plan.dispatches[second].name
                common = a.box.intersection(b.box)
                barriers = named.get((src, dst, a.buffer, hazard), [])
                if any(box.contains(common) for one in barriers for box in one.ranges):
                    continue
                through = any(before[position[middle]] >> first & 1
                              for middle in waits.get(dst, ()) if middle != src)
                _require(through, f"@{dst} does not wait for @{src}: {hazard} on {a.buffer}{common}")


def _check_contents(plan: Plan, buffers: dict[str, Buffer]) -> None:
    """Nothing is read from a transient or result before something has been written there."""
    written: dict[str, list[Access]] = {}
    for dispatch in plan.dispatches:
        for access in dispatch.reads:
            if buffers[access.buffer].kind in ("argument", "constant") or not access.nbytes:
                continue
            _require(any(access.overlaps(other) for other in written.get(access.buffer, ())),
                     f"@{dispatch.name} reads {access}, which nothing has written")
        for access in dispatch.writes:
            written.setdefault(access.buffer, []).append(access)


def _check_slots(plan: Plan, before: Sequence[int]) -> None:
    """Buffers that overlap in an arena are never alive together."""
    delegated = {item.dispatch for item in plan.delegated}
    segment = runs([dispatch.name in delegated for dispatch in plan.dispatches])
    users: dict[str, int] = {}
    for at, dispatch in enumerate(plan.dispatches):
        for access in (*dispatch.reads, *dispatch.writes):
            users[access.buffer] = users.get(access.buffer, 0) | 1 << at
    lives: dict[int, list[tuple[Buffer, Life]]] = {}
    for buffer in plan.buffers:
        if buffer.slot is not None and buffer.nbytes and users.get(buffer.name):
            life = Life(buffer.name, buffer.nbytes, users[buffer.name])
            first = (life.users & -life.users).bit_length() - 1
            lives.setdefault(segment[first], []).append((buffer, life))
    for of_run in lives.values():
        finished = finished_before([life for _, life in of_run], before)
        for number, (a, a_life) in enumerate(of_run):
            for b, b_life in of_run[:number]:
                _require(not _overlap(a, b) or apart(a_life, b_life, finished),
                         f"{a.name} and {b.name} share memory and are alive together")


def _overlap(a: Buffer, b: Buffer) -> bool:
    assert a.slot is not None and b.slot is not None
    return a.slot < b.slot + b.nbytes and b.slot < a.slot + a.nbytes
