"""Which dispatch runs on which stream, and where a stream waits for another one.

Input: dispatches in execution order, who has to come before whom, how long each takes. Output:
`Lanes`. Invariants: what has to come before something does so, by the order of streams and by
waits; none of the waits is implied by the others; everything comes after the start of the first
stream, and the first stream ends after everything.

Note [Chains]: of those that wait for a dispatch its heir, from which it takes longest to the end,
goes on on its stream. So the longest chain of all stays on the first stream, from the start to the
end. A dispatch that inherits several streams takes that of the longest chain behind it; one that
inherits none goes where all that is queued comes before it anyway and has no other heir, else on a
new stream. Where there are enough of them it goes behind what was queued longest ago, although it
would not have to wait for that.

Note [Waits]: sources of a dispatch are looked at latest first. One that is known to be over by what
the stream has waited for, or by waits that have been chosen for the dispatch already, needs none.
The others do: of what is chosen later nothing comes after them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stagejit.base.records import record
from stagejit.index.bit_sets import bits

MOST_STREAMS = 4  # at once, of a level of loops; more of them seldom have room on a GPU
START = 0  # the position of the start; dispatches are counted from 1 on


@record
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
    before: Sequence[Collection[int]],
    seconds: Sequence[float],
    alone: Collection[int] = (),
    most: int = MOST_STREAMS,
    *,
    settled: bool = False,
) -> Lanes:
    """before: for each dispatch the numbers of earlier ones that it has to wait for; alone: numbers
    of dispatches that wait for all that is before, and all that comes later for them; settled:
    whether the host has waited for all that comes before the start."""
    pinned = {number + 1 for number in alone}
    over = 1 << START if settled else 0
    return _Lanes(_wanted(before, pinned), [0.0, *seconds, 0.0], pinned, most, over).made()


def sources(names: Sequence[str], barriers: Mapping[str, Collection[str]]) -> list[list[int]]:
    """The form that `lanes` takes. barriers: by dispatch those that it waits for."""
    at = {name: number for number, name in enumerate(names)}
    return [[at[source] for source in barriers.get(name, ()) if source in at] for name in names]


def _wanted(before: Sequence[Collection[int]], pinned: Collection[int]) -> list[int]:
    """By position what has to come before it, as bit sets."""
    wanted, last = [0], START
    for number, earlier in enumerate(before):
        position, mine = number + 1, 1 << last
        for source in earlier:
            mine |= 1 << (source + 1)
        if position in pinned:
            last, mine = position, (1 << position) - 1
        wanted.append(mine)
    return [*wanted, (1 << len(wanted)) - 1]


class _Lanes:
    """tails: the last position of each stream; known: by position, what is over when that is, it
    included, as bit sets; heirs: see Note [Chains]; behind: seconds of the longest chain that ends
    with a position."""

    def __init__(
        self,
        wanted: Sequence[int],
        seconds: Sequence[float],
        pinned: Collection[int],
        most: int,
        over: int,
    ) -> None:
        self.wanted, self.pinned, self.most, self.over = wanted, pinned, most, over
        self.heirs = _heirs(wanted, seconds)
        self.behind = list(seconds)
        for position, mine in enumerate(wanted):
            self.behind[position] += max((self.behind[source] for source in bits(mine)), default=0)
        self.tails: list[int] = []
        self.known: list[int] = []
        self.streams: list[int] = []
        self.waits: list[tuple[int, ...]] = []

    def made(self) -> Lanes:
        end = len(self.wanted) - 1
        for position in range(len(self.wanted)):
            first = position in (START, end) or position in self.pinned
            self._add(0 if first else self._stream(position))
        return Lanes(tuple(self.streams), tuple(self.waits), len(self.tails))

    def _stream(self, position: int) -> int:
        """See Note [Chains]."""
        wanted, over = self.wanted[position], 0
        for source in bits(wanted):
            over |= self.known[source]
        heirs = [self.heirs.get(tail) for tail in self.tails]
        inherited = [s for s, heir in enumerate(heirs) if heir == position]
        if inherited:
            return max(inherited, key=lambda s: self.behind[self.tails[s]])
        free = [s for s, heir in enumerate(heirs) if heir is None or heir < position]
        idle = [s for s in free if over >> self.tails[s] & 1]
        if idle:
            return max(idle, key=lambda s: self.tails[s])
        if len(self.tails) < self.most:
            return len(self.tails)
        return min(free or range(len(self.tails)), key=lambda s: self.tails[s])

    def _add(self, stream: int) -> None:
        position = len(self.known)
        known = self.known[self.tails[stream]] if stream < len(self.tails) else self.over
        waits = []
        for source in sorted(bits(self.wanted[position] & ~known), reverse=True):
            if not known >> source & 1:
                waits.append(source)
                known |= self.known[source]
        if stream == len(self.tails):
            self.tails.append(position)
        self.tails[stream] = position
        self.known.append(known | 1 << position)
        self.streams.append(stream)
        self.waits.append(tuple(waits))


def _heirs(wanted: Sequence[int], seconds: Sequence[float]) -> dict[int, int]:
    """By position, which of those that wait for it takes longest to the end."""
    ahead = list(seconds)  # of the longest chain that begins with a position
    heirs: dict[int, int] = {}
    for position in reversed(range(1, len(wanted) - 1)):
        if position in heirs:
            ahead[position] += ahead[heirs[position]]
        for source in bits(wanted[position]):  # of equals the first that comes
            if source not in heirs or ahead[position] >= ahead[heirs[source]]:
                heirs[source] = position
    return heirs
