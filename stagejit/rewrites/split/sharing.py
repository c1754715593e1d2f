"""What updates at computed places cost, by how workers share them.

Input: the sizes of a `scatter`, a machine whose workers are cores. Output: modelled seconds.
Invariant: depends on shapes, dtypes and the machine only; who splits sums into parts and who
generates kernels ask the same model.

Note [Ways to share]: each core may have the updates of one batch; the same part of all windows; a
range of one axis of the destination, for which it looks at all index vectors and lists its own; or
some of the index vectors, with a destination of its own, and the destinations are combined at the
end. The first three keep the order in which updates of one element are applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.base.machine import HOT_FORK_SECONDS, Machine
from stagejit.base.records import record

_CYCLE = 0.33e-9  # seconds, of cores of the last years; all others are cycles:
_INDEX = 4.0  # to read an index vector, compare and clamp it
_LISTED = 12.0  # to do so, and to note it where it is an own one, without a branch
MOVES = 2.0  # to load and store a vector
_NEAR = 8.0  # for a line that is in no cache of the core, some at a time
_FAR = 30.0  # where it is on one of more pages than the core knows the places of
_KNOWN_PAGES = 1536  # of which a core knows the places
_MORE_LINES = 2  # that prefetchers bring behind what a core reads of a window, for another core
_ELSEWHERE = 50.0  # for a line that another core has just cleared
MERGED = 3  # times that sums of parts go through the caches: cleared, updated, read


@record
class Way:
    """blocks: parts of a window; ranges: of one axis of the destination, see Note [Ways to
    share]."""

    blocks: int = 1
    ranges: int = 1

    def __str__(self) -> str:
        blocks = f"{self.blocks} parts of windows"
        if self.ranges == 1:
            return "one core for each batch" if self.blocks == 1 else blocks
        ranges = f"{self.ranges} ranges"
        return ranges if self.blocks == 1 else f"{blocks}, {ranges}"


@record(kw_only=True)
class Sharing:
    """vectors: of indices, of each of the batches. pieces: of a window, vectors or elements of it
    that are combined at once; code: operations to make one; index_code: to make an index vector,
    which each owner of a range does for all of them. window_nbytes, nbytes: of a window, and of the
    destination of a batch. sorted: index vectors are."""

    machine: Machine
    vectors: int
    batches: int
    pieces: int
    code: float
    index_code: float = 0.0
    window_nbytes: int
    nbytes: int
    sorted: bool

    def ways(self, most_blocks: int, most_ranges: int) -> Sequence[Way]:
        """Those worth looking at, of at most so many blocks and ranges."""
        cores, found = self.machine.cores, [Way()]
        for workers in (cores, 2 * cores):
            wanted = -(-workers // self.batches)
            found += [Way(blocks=min(wanted, most_blocks)), Way(ranges=min(wanted, most_ranges))]
        return list(dict.fromkeys(found))

    def seconds(self, way: Way) -> float:
        """Of the core that has most to do."""
        items = self.batches * way.blocks * way.ranges
        rounds = -(-items // self.machine.cores)
        return rounds * self.vectors * self._window(way)

    @property
    def seconds_alone(self) -> float:
        """Of one core that does all."""
        return self.batches * self.vectors * self._window(Way())

    def best(self, most_blocks: int, most_ranges: int) -> float:
        """Seconds of the best way."""
        return min(map(self.seconds, self.ways(most_blocks, most_ranges)))

    def seconds_in_parts(self, parts: int) -> float:
        """With a destination for each of some parts of the index vectors."""
        batches = self.batches * parts
        rounds = -(-batches // self.machine.cores)
        vectors = -(-self.vectors // parts)
        own = rounds * vectors * self._window(Way())
        lines = -(-self.nbytes // self.machine.line_nbytes)
        own += rounds * min(vectors * self._lines(Way()), lines) * _ELSEWHERE * _CYCLE
        merged = MERGED * batches * self.nbytes
        near = merged <= self.machine.l3s_nbytes
        bandwidth = self.machine.cache_bandwidth if near else self.machine.core_bandwidth
        forks = self.machine.start_seconds + 2 * HOT_FORK_SECONDS
        return own + merged / bandwidth / self.machine.cores + forks

    def _lines(self, way: Way) -> float:
        """Of the destination, that a core's part of a window is on."""
        return max(self.window_nbytes / way.blocks / self.machine.line_nbytes, 1.0)

    def _window(self, way: Way) -> float:
        """Seconds for each index vector, of an item."""
        machine, nbytes = self.machine, self.window_nbytes / way.blocks
        lines = self._lines(way)
        combine = -(-self.pieces // way.blocks) * (MOVES + self.code) + self._wait(way) * lines
        read = self.vectors * self.batches * self.window_nbytes
        near = read <= machine.l3s_nbytes
        if way.ranges > 1:  # no prefetcher knows which windows are next
            combine += (_NEAR if near else _FAR) * min(lines, _MORE_LINES)
        others = _MORE_LINES if way.blocks * way.ranges > 1 else 0
        bandwidth = machine.cache_bandwidth if near else machine.core_bandwidth
        stream = nbytes * (1 + others / lines) / bandwidth
        own = (_INDEX + self.index_code) * _CYCLE + max(combine * _CYCLE, stream)
        if way.ranges == 1:
            return own
        return (_LISTED + self.index_code) * _CYCLE + own / way.ranges

    def _wait(self, way: Way) -> float:
        """Cycles until a line of the destination is there."""
        nbytes = self.nbytes / (way.blocks * way.ranges)
        if self.sorted or nbytes <= self.machine.l2_nbytes:
            return 0.0
        return _NEAR if nbytes <= _KNOWN_PAGES * self.machine.page_nbytes else _FAR
