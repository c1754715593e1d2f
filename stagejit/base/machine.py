"""`Machine`: what the steps above kernels know of the machine that a program is compiled for.

Input: numbers. Output: a frozen value that `codegen/target.py` fills in. Invariant: it says how
much work is worth sharing, and with how many workers; of what is computed only the order of sums
depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """cores: workers of a parallel loop. vector_nbytes: bytes of a vector register. l2_nbytes: the
    cache of one core; l3_nbytes: that of cores / l3s. bandwidth: bytes a second from memory of all
    cores, core_bandwidth: of one. cache_bandwidth: what one core streams through from caches that
    others share; l2_bandwidth: from its own. peak_flops: f32 operations a second of one core.
    side_by_side: whether workers may run several kernels, and so iterations of a loop, at once each
    with its own; of a GPU they run one kernel after the other together. turn_nbytes, turn_seconds:
    what a worker that goes along a line asks of memory at a time, and how long it waits for that;
    0: it asks ahead. lines_ahead: lines along what it reads and writes that a core has to ask for
    before it is there; 0: its prefetchers do. line_nbytes: of the caches; page_nbytes: the
    smallest page of memory that its system has.

    The defaults are those of a small server, for graphs that are rewritten for no machine.
    """

    cores: int = 2
    vector_nbytes: int = 64
    l2_nbytes: int = 1 << 20
    l3_nbytes: int = 32 << 20
    l3s: int = 1
    bandwidth: float = 40e9
    core_bandwidth: float = 20e9
    cache_bandwidth: float = 40e9
    l2_bandwidth: float = 75e9
    peak_flops: float = 112e9
    side_by_side: bool = True
    turn_nbytes: int = 0
    turn_seconds: float = 0.0
    lines_ahead: int = 0
    line_nbytes: int = 64
    page_nbytes: int = 4096

    @property
    def rows_at_once(self) -> int:
        """Long rows that keep a worker busy, and let it be a little late."""
        return 4

    @property
    def item_seconds(self) -> float:
        """Of reading from caches, that are worth an item of its own: about half a fork."""
        return 6.5e-6

    @property
    def owners_at_once(self) -> int:
        """Groups of threads at work at once that may own places of sums; 0: workers have none."""
        return 0

    @property
    def start_seconds(self) -> float:
        """Until all workers have started on a kernel, and are done with it."""
        return FORK_SECONDS

    @property
    def tile_nbytes(self) -> int:
        """Of results of a product that a worker keeps in registers: 8 rows of 2 vectors."""
        return 16 * self.vector_nbytes

    @property
    def dots_at_once(self) -> int:
        """Results of a product with few columns that keep a worker busy, whose threads share each
        of its sums; 0: it has no threads."""
        return 0

    @property
    def masks_lanes(self) -> bool:
        """Whether vectors of all elements are loaded in part by one instruction."""
        return False

    def table_nbytes(self, itemsize: int) -> int:
        """Of the largest table of such elements in which vectors look up in registers; 0: none."""
        return 0

    def rate_of_core(self, nbytes: int) -> float:
        """Bytes a second at which one core moves so many: of the last cache if they fit, or of
        memory."""
        return self.cache_bandwidth if nbytes <= self.l3_nbytes else self.core_bandwidth

    def shuffle_cost(self, itemsize: int) -> float:
        """Operations that pick the lanes of a vector of such elements from two vectors, by numbers;
        infinite where lanes are threads."""
        return math.inf

    def lane_seconds(self, itemsize: int) -> float:
        """Of each lane of a vector whose lanes lie here and there in memory, on one core."""
        return 0.0

    def floor_seconds(self, flops: int, nbytes: int) -> float:
        """The least time for so many operations and bytes; see the function of this name."""
        return floor_seconds(flops, nbytes, self.peak_flops * self.cores, self.bandwidth)

    @property
    def l3s_nbytes(self) -> int:
        """What fits the last caches of all cores, where each core has its own part of it. What all
        of them read has to fit each."""
        return self.l3s * self.l3_nbytes


SMALL_SERVER = Machine()


def floor_seconds(flops: float, nbytes: float, peak_flops: float, bandwidth: float) -> float:
    """The least time for so many operations and bytes that cross memory, by the peak rate of all
    cores and the bandwidth of memory: a floor, unlike a modelled time. What lies in a cache may be
    faster."""
    return max(flops / peak_flops, nbytes / bandwidth)


# Results so large come on pages that nobody has touched: allocators recycle smaller ones. They are
# huge pages if the system has any.
FRESH_FROM_NBYTES = 32 << 20
# What stays where it is, as bound weights do, and what calls update in place, again and again, is
# put on huge pages from here on: fewer bytes are read from a cache, or soon.
HELD_FROM_NBYTES = 16 << 20

# Contiguous runs that are shorter than a line of a cache waste most of what each of them loads, and
# are read, and written, element by element.
SHORTEST_RUN_NBYTES = 64

# A fork and its join cost 6 to 16 us where the workers have slept, and 0.5 to 1 us where another
# fork ended just before, as one kernel after the other does.
FORK_SECONDS, HOT_FORK_SECONDS = 15e-6, 1e-6
CALL_SECONDS = 30e-9  # of a kernel: its arguments, and the jump there and back
