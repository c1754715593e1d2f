"""Slots for the transients of a plan: in the arena, in results, over operands that are dead.

Input: what each position touches, the order that barriers enforce, the segments. Output: the
buffers with their places. Invariant: a buffer has a slot iff all that touches it is one native run;
see `memory.py` for which of them may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.decisions import Decision
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.dispatch.regions import Region
from stagejit.graph.ir import Value
from stagejit.index.bit_sets import bits
from stagejit.options import Options
from stagejit.schedule import memory
from stagejit.schedule.hazards import ancestors
from stagejit.schedule.memory import Life, Slot
from stagejit.schedule.plan import Buffer
from stagejit.schedule.shared_memory import Place, shared
from stagejit.symbolic import bounds

# Positions are put in order for this part of the arena, or more.
_WORTH_WAITING = 1 / 32


@dataclass(frozen=True)
class Use:
    """What one position does: its region, and the buffers of what that reads and writes, in order.
    workspace: the buffer of its bodies, if it has one."""

    region: Region
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    workspace: str = ""

    @property
    def native(self) -> bool:
        return not self.region.definition.is_left

    def buffers(self) -> Iterator[str]:
        yield from self.reads
        yield from self.writes
        if self.workspace:
            yield self.workspace


@dataclass(frozen=True)
class Wait:
    """Position `second` has to come after `first`, the last to read `buffer`, to write over it."""

    first: int
    second: int
    buffer: str


@dataclass(frozen=True)
class Slots:
    """buffers: by name, with their places. overwritten: by position, the inputs whose memory a
    result takes. run_of: the segment of each transient that has a slot. waits: order that is
    needed besides what was given, and besides what sharing memory needs by itself."""

    buffers: dict[str, Buffer]
    overwritten: dict[int, frozenset[Value]]
    run_of: dict[str, int]
    waits: tuple[Wait, ...]
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


@dataclass(frozen=True)
class _Placed:
    """slots: of each transient. over: which buffers are written over which. waits: what has to wait
    for that."""

    slots: dict[str, Slot]
    over: dict[str, str]
    waits: tuple[Wait, ...]
    arena_nbytes: int


class TransientMemory:
    """The transients of one plan, what else there is to place them in, and who touches them."""

    def __init__(
        self,
        uses: Sequence[Use],
        buffers: Mapping[str, Buffer],
        edges: Mapping[int, int],
        segment: Sequence[int],
        options: Options,
        *,
        whole_function: bool,
    ) -> None:
        """edges: for each position those that come first, as bit sets. segment[p]: the number of
        the run or delegated equation. whole_function: False for the body of a loop or a branch,
        whose results may lie at any element of a buffer outside."""
        self.uses, self.buffers, self.edges, self.options = uses, buffers, edges, options
        self.lives = _lives(uses, buffers)
        self.transients: dict[int, list[Life]] = {}  # by segment
        self.hosts: dict[int, list[Life]] = {}
        for name, life in self.lives.items():
            touching = list(bits(life.users))
            kind, first = buffers[name].kind, segment[touching[0]]
            if not uses[touching[0]].native or (not life.nbytes and kind == "result"):
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
                self.pairs += _pairs(uses, transients, self.hosts.get(number, []))

    def slots(self) -> Slots:
        """Positions are put in order, where barriers leave it open, if that saves memory worth
        it."""
        placed, waits = self._solve(()), self._waits()
        if waits:
            ordered = self._solve(waits)
            needed = [wait for wait in waits if wait.buffer in ordered.over.values()]
            if len(needed) < len(waits):
                ordered = self._solve(needed)
            if placed.arena_nbytes - ordered.arena_nbytes >= placed.arena_nbytes * _WORTH_WAITING:
                placed = ordered
        made = {name: _placed(buffer, placed) for name, buffer in self.buffers.items()}
        taken = dict(_taken(self.uses, placed.over))
        run_of = {life.name: at for at, lives in self.transients.items() for life in lives}
        more = tuple(w for w in placed.waits if w.buffer not in placed.over.values())
        return Slots(made, taken, run_of, more, tuple(_decisions(self.uses, made, taken)))

    def _solve(self, waits: Sequence[Wait]) -> _Placed:
        """The slots if positions come in the order of `waits`, too."""
        before = self._before(waits)
        over = memory.overwrites(self.lives, self.pairs, before)
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

    def _waits(self) -> list[Wait]:
        """What would have to wait so that more can be written in place: for those that read the
        buffer, too, and come earlier in the plan, but for no barrier."""
        before = self._before(())
        waits = [
            Wait(first, at, old)
            for at, old, _ in self.pairs
            for first in bits(self.lives[old].users & ~before[at] & ~(1 << at))
            if first < at and self.lives[old].users >> at == 1
        ]
        return list(dict.fromkeys(waits))  # several results could take the same place

    def _before(self, waits: Sequence[Wait]) -> list[int]:
        edges = dict(self.edges)
        for wait in waits:
            edges[wait.second] = edges.get(wait.second, 0) | 1 << wait.first
        return ancestors(len(self.uses), edges)


def _placed(buffer: Buffer, placed: _Placed) -> Buffer:
    """The buffer where it has been placed."""
    slot, over = placed.slots.get(buffer.name), placed.over.get(buffer.name, "")
    if slot is None:
        return replace(buffer, over=over) if over else buffer
    return replace(buffer, slot=slot.offset, host=slot.host, over=over)


def _lives(uses: Sequence[Use], buffers: Mapping[str, Buffer]) -> dict[str, Life]:
    users: dict[str, int] = {}
    for at, use in enumerate(uses):
        for name in use.buffers():
            users[name] = users.get(name, 0) | 1 << at
    return {
        name: Life(name, buffer.nbytes, users[name])
        for name, buffer in buffers.items()
        if name in users
    }


def _pairs(
    uses: Sequence[Use], transients: Sequence[Life], hosts: Sequence[Life]
) -> list[tuple[int, str, str]]:
    """Who may write which buffer over which other, if nobody else needed that."""
    old = {life.name: life for life in transients}
    new = old | {life.name: life for life in hosts}
    return [
        (at, source, target)
        for at, use in enumerate(uses)
        for source, own in _read_once(use)
        if source in old
        for target, store in zip(use.writes, use.region.stores, strict=False)
        if target in new
        and target not in use.reads
        and new[target].nbytes == old[source].nbytes == own.type.nbytes
        and not refuse_in_place(use.region, own, store)
    ]


def _read_once(use: Use) -> Iterator[tuple[str, Value]]:
    """Buffers that are read as one input, largest first."""
    if not use.native:
        return
    inputs = [value for part in use.region.parts for value in part.inputs]
    values = zip(use.reads, inputs, strict=True)
    for name, value in sorted(values, key=lambda item: -bounds(item[1].type.nbytes)[1]):
        if use.reads.count(name) == 1:
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
    slots = memory.pack(
        wanted, before, share=options.enabled("pack-slots"), hosts=room if borrow else ()
    )
    slots |= {name: Slot(0, host) for name, host in taken.items()}
    return {life.name: slots[first[life.name]] for life in transients}


def _first(name: str, over: Mapping[str, str]) -> str:
    while name in over:
        name = over[name]
    return name


def _taken(uses: Sequence[Use], over: Mapping[str, str]) -> Iterator[tuple[int, frozenset[Value]]]:
    for at, use in enumerate(uses):
        gone = {over[name] for name in use.writes if name in over}
        values = {
            value for name, value in zip(use.reads, use.region.reads, strict=False) if name in gone
        }
        if values:
            yield at, frozenset(values)


def _decisions(
    uses: Sequence[Use], buffers: Mapping[str, Buffer], taken: Mapping[int, frozenset[Value]]
) -> Iterator[Decision]:
    for at in taken:
        use = uses[at]
        region = use.region
        for name in dict.fromkeys(use.writes):
            if buffers[name].over:
                reason = f"{name} is written over {buffers[name].over}, which nobody reads again"
                op = f"@{region.name} {region.kind}"
                yield Decision("write-in-place", op, True, reason, region.loc)
