"""Slots for the transients of a plan: in the arena, in results, over operands that are dead.

Input: what each position touches, the order that barriers enforce, the segments. Output: the
buffers with their places. Invariant: a buffer has a slot iff all that touches it is one native run;
see `memory.py` for which of them may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.decisions import Decision
from stagejit.dispatch.group import bits
from stagejit.dispatch.in_place import refuse_in_place
from stagejit.dispatch.region import Region
from stagejit.dispatch.state import describe
from stagejit.graph.ir import Value
from stagejit.options import Options
from stagejit.schedule import memory
from stagejit.schedule.memory import Life, Slot
from stagejit.schedule.plan import Buffer


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
        return self.region.kind != "delegate"

    def buffers(self) -> Iterator[str]:
        yield from self.reads
        yield from self.writes
        if self.workspace:
            yield self.workspace


@dataclass(frozen=True)
class Slots:
    """buffers: by name, with their places. overwritten: by position, the inputs whose memory a
    result takes."""

    buffers: dict[str, Buffer]
    overwritten: dict[int, frozenset[Value]]
    decisions: tuple[Decision, ...]


def place_transients(
    uses: Sequence[Use],
    buffers: Mapping[str, Buffer],
    before: Sequence[int],
    segment: Sequence[int],
    options: Options,
    *,
    whole_function: bool,
) -> Slots:
    """The slots. before[p]: the positions that have finished when position p starts; segment[p]:
    the number of the run or delegated equation. whole_function: False for the body of a loop or a
    branch, whose results may lie at any element of a buffer outside."""
    lives = _lives(uses, buffers)
    of_run: dict[int, list[Life]] = {}
    hosts: dict[int, list[Life]] = {}
    for name, life in lives.items():
        touching = list(bits(life.users))
        kind, first = buffers[name].kind, segment[touching[0]]
        if not uses[touching[0]].native or (not life.nbytes and kind == "result"):
            continue
        if kind == "transient" and all(segment[at] == first for at in touching):
            of_run.setdefault(first, []).append(life)
        elif kind == "result" and whole_function:
            hosts.setdefault(first, []).append(life)
    placed: dict[str, Slot] = {}
    over: dict[str, str] = {}
    for number, transients in of_run.items():
        room = hosts.get(number, [])
        if options.enabled("write-in-place"):
            over |= _overwritten(uses, transients, room, before)
        placed |= _pack(transients, room, over, before, options)
    made = {
        name: replace(
            buffer,
            slot=placed[name].offset if name in placed else None,
            host=placed[name].host if name in placed else "",
            over=over.get(name, ""),
        )
        for name, buffer in buffers.items()
    }
    taken = dict(_taken(uses, over))
    return Slots(made, taken, tuple(_decisions(uses, made, taken)))


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


def _overwritten(
    uses: Sequence[Use], transients: Sequence[Life], hosts: Sequence[Life], before: Sequence[int]
) -> dict[str, str]:
    """Which buffers are written over another one, by name."""
    old = {life.name: life for life in transients}
    new = old | {life.name: life for life in hosts}
    pairs = [
        (at, source, target)
        for at, use in enumerate(uses)
        for source, value in _read_once(use)
        if source in old
        for target, store in zip(use.writes, use.region.stores, strict=False)
        if target in new
        and target not in use.reads
        and new[target].nbytes == old[source].nbytes == value.type.nbytes
        and not refuse_in_place(use.region, value, store)
    ]
    return memory.overwrites(new, pairs, before)


def _read_once(use: Use) -> Iterator[tuple[str, Value]]:
    """Buffers that are read as one value, largest first."""
    if not use.native:
        return
    values = sorted(
        zip(use.reads, use.region.reads, strict=True), key=lambda item: -item[1].type.nbytes
    )
    for name, value in values:
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
        for name, store in zip(use.writes, use.region.stores, strict=False):
            if buffers[name].over:
                reason = f"{name} is written over {buffers[name].over}, which nobody reads again"
                yield Decision(
                    "write-in-place", describe(store.into.op), True, reason, store.into.op.loc
                )
