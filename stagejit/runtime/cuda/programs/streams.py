"""Which dispatch runs on which stream, and where a stream waits for another one.

Input: dispatches in execution order, who has to come before whom. Output: `Lanes`. Invariants: what
has to come before something does so, by the order of streams and by waits; none of the waits is
implied by the others; everything comes after the start of the first stream, and the first stream
ends after everything.

Note [Chains]: a dispatch goes on where one of those it waits for was the last, the latest of them,
so that a chain stays on one stream; else on a stream where all that is queued comes before it
anyway; else on a new one. Where there are enough streams it goes behind the one that was queued
longest ago, although it would not have to wait for that.

Note [Waits]: sources of a dispatch are looked at latest first. One that is known to be over by what
the stream has waited for, or by waits that have been chosen for the dispatch already, needs none.
The others do: of what is chosen later nothing comes after them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stagejit.index.bit_sets import bits

MOST_STREAMS = 4  # at once, of a level of loops; more of them seldom have room on a GPU
START = 0  # the position of the start; dispatches are counted from 1 on


@dataclass(frozen=True)
class Lanes:
    """By position (the start, dispatches, the end): streams, and positions on other streams that it
    waits for. count: of streams."""

    streams: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    count: int

    @property
    def recorded(self) -> frozenset[int]:
        """The positions that somebody waits for."""
        return frozenset(source for sources in self.waits for source in sources)


def lanes(
    before: Sequence[Collection[int]], alone: Collection[int] = (), most: int = MOST_STREAMS
) -> Lanes:
    """before: for each dispatch the numbers of earlier ones that it has to wait for; alone: numbers
    of dispatches that wait for all that is before, and all that comes later for them."""
    return _Lanes(most).of(before, frozenset(alone))


class _Lanes:
    """tails: the last position of each stream; known: by position, what is over when that is, it
    included, as bit sets."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tails: list[int] = []
        self.known: list[int] = []
        self.streams: list[int] = []
        self.waits: list[tuple[int, ...]] = []

    def of(self, before: Sequence[Collection[int]], alone: frozenset[int]) -> Lanes:
        self._add(0, 0)
        barrier = START
        for number, sources in enumerate(before):
            position = number + 1
            wanted = 1 << barrier
            for source in sources:
                wanted |= 1 << (source + 1)
            if number in alone:
                barrier, wanted = position, (1 << position) - 1
            self._add(0 if number in alone else self._stream(wanted), wanted)
        self._add(0, (1 << len(self.known)) - 1)
        return Lanes(tuple(self.streams), tuple(self.waits), len(self.tails))

    def _stream(self, wanted: int) -> int:
        """See Note [Chains]."""
        direct = [s for s, tail in enumerate(self.tails) if wanted >> tail & 1]
        over = 0
        for source in bits(wanted):
            over |= self.known[source]
        behind = [s for s, tail in enumerate(self.tails) if over >> tail & 1]
        chains = [s for s in direct if self.tails[s] != START]
        if chains:
            return max(chains, key=lambda s: self.tails[s])
        if behind:
            return min(behind)
        if len(self.tails) < self.most:
            return len(self.tails)
        return min(range(len(self.tails)), key=lambda s: self.tails[s])

    def _add(self, stream: int, wanted: int) -> None:
        position = len(self.known)
        known = self.known[self.tails[stream]] if stream < len(self.tails) else 0
        waits = []
        for source in sorted(bits(wanted & ~known), reverse=True):
            if not known >> source & 1:
                waits.append(source)
                known |= self.known[source]
        if stream == len(self.tails):
            self.tails.append(position)
        self.tails[stream] = position
        self.known.append(known | 1 << position)
        self.streams.append(stream)
        self.waits.append(tuple(waits))


def sources(names: Sequence[str], barriers: Mapping[str, Collection[str]]) -> list[list[int]]:
    """The form that `lanes` takes. barriers: by dispatch those that it waits for."""
    at = {name: number for number, name in enumerate(names)}
    return [[at[source] for source in barriers.get(name, ()) if source in at] for name in names]
