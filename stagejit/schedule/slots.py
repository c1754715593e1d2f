"""Slots for the transients of a plan: in the arena, in results, over operands that are dead.

Input: what each position touches, the order that barriers enforce, the segments. Output: the
buffers with their places. Invariant: a buffer has a slot iff all that touches it is one native run;
see `packing.py` for which of them may overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.base.symbolic import bounds
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.graph.ir import Value
from stagejit.index.bit_sets import bits
from stagejit.options import Options
from stagejit.schedule.conflicts.hazards import Conflict, ancestors
from stagejit.schedule.memory.packing import Life, Slot, overwrites, pack
from stagejit.schedule.memory.shared import Place, shared
from stagejit.schedule.plans.plan import Buffer
from stagejit.schedule.schedule import Step

# Positions are put in order for this part of the arena, or more.
_WORTH_WAITING = 1 / 32


@record
class Slots:
    """buffers: by name, with their places. overwritten: by position, the inputs whose memory a
    result takes. run_of: the segment of each transient that has a slot. waits: who has to come
    after the last reader of a buffer, to write over it, besides what sharing memory needs by
    itself."""

    buffers: dict[str, Buffer]
    overwritten: dict[int, frozenset[Value]]
    run_of: dict[str, int]
    waits: tuple[Conflict, ...]
    decisions: tuple[Decision, ...]

    def shared(self) -> dict[str, Place]:
        """The places of buffers that share memory with others."""
        places = {}
        for name, buffer in self.buffers.items():
            if buffer.slot is not None:
                memory = f"@{buffer.host}" if buffer.host else f"arena {self.run_of[name]}"
                places[name] = Place(memory, buffer.slot, buffer.slot + buffer.nbytes)
            if buffer.host:
                host = self.buffers[buffer.host]
                places[host.name] = Place(f"@{host.name}", 0, host.nbytes)
        return shared(places)


@record
class _Placed:
    """slots: of each transient. over: which buffers are written over which. waits: what has to wait
    for that."""

    slots: dict[str, Slot]
    over: dict[str, str]
    waits: tuple[Conflict, ...]
    arena_nbytes: int


class Transients:
    """The transients of one plan, what else there is to place them in, and who touches them.

    edges: for each position those that come first, as bit sets. segment[p]: the number of the run
    or delegated equation. whole_function: False for the body of a loop or a branch, whose results
    may lie at any element of a buffer outside."""

    def __init__(
        self,
        steps: Sequence[Step],
        buffers: Mapping[str, Buffer],
        edges: Mapping[int, int],
        segment: Sequence[int],
        options: Options,
        *,
        whole_function: bool,
    ) -> None:
        self.steps, self.buffers, self.edges, self.options = steps, buffers, edges, options
        self.lives = _lives(steps, buffers)
        self.transients: dict[int, list[Life]] = {}  # by segment
        self.hosts: dict[int, list[Life]] = {}
        for name, life in self.lives.items():
            touching = list(bits(life.users))
            kind, first = buffers[name].kind, segment[touching[0]]
            if steps[touching[0]].delegated or (not life.nbytes and kind == "result"):
                continue
            if not isinstance(life.nbytes, int):
                continue  # where it lies is decided when its size is a number
            if kind == "transient" and all(segment[at] == first for at in touching):
                self.transients.setdefault(first, []).append(life)
            elif kind == "result" and whole_function:
                self.hosts.setdefault(first, []).append(life)
        self.pairs: list[tuple[int, str, str]] = []
        if options.enabled("write-in-place"):
            for number, transients in self.transients.items():
                self.pairs += _pairs(steps, transients, self.hosts.get(number, []))

    def slots(self) -> Slots:
        """Positions are put in order, where barriers leave it open, if that saves memory worth
        it."""
        if not self.transients:
            return Slots(dict(self.buffers), {}, {}, (), ())
        placed, waits = self._solve(()), self._waits()
        if waits:
            ordered = self._solve(waits)
            needed = [wait for wait in waits if wait.buffer in ordered.over.values()]
            if len(needed) < len(waits):
                ordered = self._solve(needed)
            if placed.arena_nbytes - ordered.arena_nbytes >= placed.arena_nbytes * _WORTH_WAITING:
                placed = ordered
        made = {name: _placed(buffer, placed) for name, buffer in self.buffers.items()}
        taken = dict(_taken(self.steps, placed.over))
        run_of = {life.name: at for at, lives in self.transients.items() for life in lives}
        more = tuple(w for w in placed.waits if w.buffer not in placed.over.values())
        return Slots(made, taken, run_of, more, tuple(_decisions(self.steps, made, taken)))

    def _solve(self, waits: Sequence[Conflict]) -> _Placed:
        """The slots if positions come in the order of `waits`, too."""
        before = self._before(waits)
        over = overwrites(self.lives, self.pairs, before)
        slots: dict[str, Slot] = {}
        arena_nbytes = 0
        for number, transients in self.transients.items():
            placed = _pack(transients, self.hosts.get(number, []), over, before, self.options)
            ends = (
                placed[life.name].offset + life.nbytes
                for life in transients
                if not placed[life.name].host
            )
            arena_nbytes = max(arena_nbytes, *ends, 0)
            slots |= placed
        return _Placed(slots, over, tuple(waits), arena_nbytes)

    def _waits(self) -> list[Conflict]:
        """What would have to wait so that more can be written in place: for those that read the
        buffer, too, and come earlier in the plan, but for no barrier."""
        before = self._before(())
        waits = dict.fromkeys(  # several results could take the same place
            (first, at, old)
            for at, old, _ in self.pairs
            for first in bits(self.lives[old].users & ~before[at] & ~(1 << at))
            if first < at and self.lives[old].users >> at == 1
        )
        return [self._until_read(*wait) for wait in waits]

    def _until_read(self, first: int, second: int, buffer: str) -> Conflict:
        reads = self.steps[first].dispatch.reads
        boxes = tuple(access.box for access in reads if access.buffer == buffer)
        return Conflict(first, second, "WAR", buffer, boxes)

    def _before(self, waits: Sequence[Conflict]) -> list[int]:
        edges = dict(self.edges)
        for wait in waits:
            edges[wait.second] = edges.get(wait.second, 0) | 1 << wait.first
        return ancestors(len(self.steps), edges)


def _placed(buffer: Buffer, placed: _Placed) -> Buffer:
    """The buffer where it has been placed."""
    slot, over = placed.slots.get(buffer.name), placed.over.get(buffer.name, "")
    if slot is None:
        return replace(buffer, over=over) if over else buffer
    return replace(buffer, slot=slot.offset, host=slot.host, over=over)


def _lives(steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> dict[str, Life]:
    users: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in step.buffers:
            users[name] = users.get(name, 0) | 1 << at
    return {
        name: Life(name, buffer.nbytes, users[name])
        for name, buffer in buffers.items()
        if name in users
    }


def _pairs(
    steps: Sequence[Step], transients: Sequence[Life], hosts: Sequence[Life]
) -> list[tuple[int, str, str]]:
    """Who may write which buffer over which other, if nobody else needed that."""
    old = {life.name: life for life in transients}
    new = old | {life.name: life for life in hosts}
    refused = functools.cache(refuse_in_place)  # steps that are alike ask the same
    return [
        (at, source, target)
        for at, step in enumerate(steps)
        for source, own in _read_once(step)
        if source in old
        for target, store in zip(step.writes, step.region.stores, strict=False)
        if target in new
        and target not in step.reads
        and new[target].nbytes == old[source].nbytes == own.type.nbytes
        and not refused(step.region.alike or step.region, own, store)
    ]


def _read_once(step: Step) -> Iterator[tuple[str, Value]]:
    """Buffers that are read as one input, largest first."""
    if step.delegated:
        return
    inputs = [value for part in step.region.parts for value in part.inputs]
    values = zip(step.reads, inputs, strict=True)
    for name, value in sorted(values, key=lambda item: -bounds(item[1].type.nbytes)[1]):
        if step.reads.count(name) == 1:
            yield name, value


def _pack(
    transients: Sequence[Life],
    hosts: Sequence[Life],
    over: Mapping[str, str],
    before: Sequence[int],
    options: Options,
) -> dict[str, Slot]:
    """Buffers that overwrite each other are placed as one."""
    lives = {life.name: life for life in (*transients, *hosts)}
    first = {name: _first(name, over) for name in lives}
    users: dict[str, int] = {}
    for name, life in lives.items():
        users[first[name]] = users.get(first[name], 0) | life.users
    taken = {first[host.name]: host.name for host in hosts}  # memory of a chain's last buffer
    wanted = [
        Life(name, lives[name].nbytes, of_chain)
        for name, of_chain in users.items()
        if name not in taken
    ]
    room = [Life(host, lives[host].nbytes, users[name]) for name, host in taken.items()]
    borrow = options.enabled("borrow-results")
    slots = pack(wanted, before, share=options.enabled("pack-slots"), hosts=room if borrow else ())
    slots |= {name: Slot(0, host) for name, host in taken.items()}
    return {life.name: slots[first[life.name]] for life in transients}


def _first(name: str, over: Mapping[str, str]) -> str:
    while name in over:
        name = over[name]
    return name


def _taken(
    steps: Sequence[Step], over: Mapping[str, str]
) -> Iterator[tuple[int, frozenset[Value]]]:
    for at, step in enumerate(steps):
        gone = {over[name] for name in step.writes if name in over}
        values = {
            value
            for name, value in zip(step.reads, step.region.reads, strict=False)
            if name in gone
        }
        if values:
            yield at, frozenset(values)


def _decisions(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], taken: Mapping[int, frozenset[Value]]
) -> Iterator[Decision]:
    for at in taken:
        step = steps[at]
        region = step.region
        for name in dict.fromkeys(step.writes):
            if buffers[name].over:
                reason = f"{name} is written over {buffers[name].over}, which nobody reads again"
                op = f"@{region.name} {region.kind}"
                yield Decision("write-in-place", op, True, reason, region.loc)
