"""Checks a plan: ranges, happens-before, memory.

Input: a plan. Output: nothing, or a VerificationError that names the first fault. Invariant:
accepts every plan that `build.py` makes, and rejects it when any one barrier is missing, or a
range of it has one element less.

Nothing of the planner is reused but the box arithmetic: conflicts are found again from the
accesses, order is what the barriers alone imply, and settled is what they name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from stagejit.errors import VerificationError
from stagejit.index.bit_sets import bits
from stagejit.index.box import Box
from stagejit.index.box_index import BoxIndex
from stagejit.schedule.plans.plan import Access, Buffer, Plan
from stagejit.schedule.verifier.bodies import verify_bodies
from stagejit.schedule.verifier.parts import verify_parts
from stagejit.schedule.verifier.settled import Settled
from stagejit.schedule.verifier.slots import check_slots


def verify_plan(plan: Plan) -> None:
    """Raises VerificationError for a plan that could compute something wrong."""
    names = [dispatch.name for dispatch in plan.dispatches]
    _require(len(set(names)) == len(names), "two dispatches have one name")
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    _require(len(buffers) == len(plan.buffers), "two buffers have one name")
    _check_scalars(plan, buffers)
    known = {scalar.symbol for scalar in plan.scalars}
    for dispatch in plan.dispatches:
        for access in (*dispatch.reads, *dispatch.writes):
            _check_access(dispatch.name, access, buffers)
            _require(
                known.issuperset(access.box.symbols()),
                f"@{dispatch.name} touches {access}, which has a symbol that stands for nothing",
            )
    before = _order_of(plan, names)
    _check_conflicts(plan, before)
    _check_contents(plan, buffers)
    for dispatch in plan.dispatches:
        for body in dispatch.bodies:
            verify_plan(body.plan)
        verify_bodies(dispatch, buffers)
        verify_parts(dispatch, buffers)
    check_slots(plan, before)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(f"plan: {fault}")


def _check_scalars(plan: Plan, buffers: dict[str, Buffer]) -> None:
    """The host can compute every symbol when a call starts: from scalars that it is given."""
    names = [scalar.symbol.name for scalar in plan.scalars]
    _require(len(set(names)) == len(names), "two symbols have one name")
    for scalar in plan.scalars:
        _require(scalar.symbol.low <= scalar.symbol.high, f"{scalar} has no value")
        for name in sorted(scalar.names):
            buffer = buffers.get(name)
            given = buffer is not None and buffer.kind == "argument" and buffer.shape == ()
            whole = buffer is not None and buffer.dtype.kind in ("bool", "int", "uint")
            _require(given and whole, f"{scalar}: {name} is no scalar integer argument")


def _check_access(name: str, access: Access, buffers: dict[str, Buffer]) -> None:
    _require(access.buffer in buffers, f"@{name} touches an unknown buffer {access.buffer}")
    buffer = buffers[access.buffer]
    _require(
        Box.whole(buffer.shape).contains(access.box),
        f"@{name} leaves the buffer: {access} of {buffer.shape}",
    )
    expected = Access.of(buffer, access.box, exact=access.exact, may=access.may)
    _require(access == expected, f"@{name} states wrong bytes for {access}")


def _order_of(plan: Plan, names: Sequence[str]) -> list[int]:
    """For each dispatch the bit set of those that barriers order before it."""
    position = {name: at for at, name in enumerate(names)}
    direct = [0] * len(names)
    for barrier in plan.barriers:
        known = barrier.src in position and barrier.dst in position
        _require(known, f"{barrier}: no such dispatch")
        first, second = position[barrier.src], position[barrier.dst]
        _require(first < second, f"{barrier} points backwards")
        direct[second] |= 1 << first
    before = [0] * len(names)
    for at in range(len(names)):
        before[at] = direct[at]
        for earlier in bits(direct[at]):
            before[at] |= before[earlier]
    return before


_Touch = tuple[int, bool, Access]  # position of the dispatch, whether it writes


def _check_conflicts(plan: Plan, before: Sequence[int]) -> None:
    """All elements of every conflict have settled by the barriers on the way."""
    settled = Settled(plan, before)
    touches: dict[str, list[_Touch]] = {}
    for at, dispatch in enumerate(plan.dispatches):
        for writes, accesses in ((False, dispatch.reads), (True, dispatch.writes)):
            for access in accesses:
                touches.setdefault(access.buffer, []).append((at, writes, access))
    for buffer, of_buffer in touches.items():
        for first, second, common in _in_conflict(of_buffer):
            hazard = ("WAW" if second[1] else "RAW") if first[1] else "WAR"
            settled.check(first[0], second[0], hazard, buffer, common)


def _in_conflict(touches: Sequence[_Touch]) -> Iterator[tuple[_Touch, _Touch, Box]]:
    """Overlapping touches of one buffer by two dispatches, at least one of which writes, and where.

    touches: in order of the dispatches. What a later dispatch overwrites is left out from then on:
    whoever waits for that dispatch has waited for those before it."""
    read: BoxIndex[_Touch] = BoxIndex()
    written: BoxIndex[_Touch] = BoxIndex()
    for _, group in itertools.groupby(touches, key=lambda touch: touch[0]):
        of_dispatch = list(group)
        for touch in of_dispatch:
            for index in (written, read) if touch[1] else (written,):
                for earlier, common in index.common(touch[2].box):
                    yield earlier, touch, common
        for touch in of_dispatch:
            if touch[1]:
                read.cut(touch[2].box)
                written.cut(touch[2].box)
        for touch in of_dispatch:
            (written if touch[1] else read).add(touch[2].box, touch)


def _check_contents(plan: Plan, buffers: dict[str, Buffer]) -> None:
    """Nothing is read from a transient or result before something has been written there."""
    written: dict[str, BoxIndex[None]] = {}
    for dispatch in plan.dispatches:
        for access in dispatch.reads:
            if (
                buffers[access.buffer].kind in ("argument", "weight", "constant")
                or not access.nbytes
            ):
                continue
            _require(
                access.buffer in written and written[access.buffer].any_overlaps(access.box),
                f"@{dispatch.name} reads {access}, which nothing has written",
            )
        for access in dispatch.writes:
            written.setdefault(access.buffer, BoxIndex()).add(access.box, None)
