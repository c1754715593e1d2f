"""What tiles cost, and what they save: seconds beside the arithmetic.

Input: a loop over tiles, a machine. Output: modelled seconds with tiles and without. Invariant:
nothing is decided here.

Note [When tiles pay]: in pieces, what one op makes the next one finds in its core's cache, not in
the shared one or in memory. In turn the ops are called once for each tile, and read again what they
need whole, which the arithmetic hides as long as it comes from a cache; what is summed over tiles
is read and written for each; and workers wait for the last tile.
"""

from __future__ import annotations

import math

from stagejit.machine import FORK_SECONDS, Machine
from stagejit.rewrites.tiling.along import Along
from stagejit.rewrites.tiling.body import TURNED, TileLoop, is_sliced

_CALL_SECONDS = 0.5e-6  # of a kernel, and what a thread does for it
_HIDDEN = 0.5  # of the arithmetic's time, in which caches may be read


def stored_nbytes(along: Along) -> int:
    """Bytes that lie in memory between the ops of a cluster: results of products, and what products
    read, where that is large."""
    cluster = along.cluster
    products = [op for op in cluster.ops if op.definition.is_product]
    stored = {op.result for op in products if op.result not in cluster.outputs}
    stored |= {x for op in products for x in op.operands if x.type.size >= cluster.large}
    return sum(value.type.nbytes for value in stored)


class Cost:
    """whole, tiled: seconds without tiles and with them, beside the arithmetic of both."""

    def __init__(self, loop: TileLoop, machine: Machine) -> None:
        self.machine, self.loop, self.tiles = machine, loop, loop.trip
        self.stored = stored_nbytes(loop.along)
        self.kernels = 2 * sum(op.definition.is_product for op in loop.cluster.ops)
        flops = sum(op.definition.flops(op) for op in loop.cluster.ops)
        self.arithmetic = flops / machine.peak_flops / machine.cores

    @property
    def whole(self) -> float:
        return self._moved(self.stored)

    @property
    def tiled(self) -> float:
        # One place that is too large for a cache is cut again, along another axis.
        each = self.stored // self.tiles
        fitting = min(each, self.machine.l2_nbytes) if self.loop.places == 1 else each
        inside = self.stored / fitting * self._moved(fitting, self.machine.cores)
        return inside + self._calls() + self._read_again() + self._placed() + self._late()

    def _moved(self, nbytes: int, workers: int = 1) -> float:
        """To write and read so many bytes, of which each of several workers has as many."""
        machine = self.machine
        if nbytes * workers > machine.l3s_nbytes:
            return 2 * nbytes / machine.bandwidth
        near = nbytes <= 2 * machine.l2_nbytes  # half of it is needed at any one time
        each = machine.l2_bandwidth if near else machine.cache_bandwidth
        return 2 * nbytes / machine.cores / each

    def _calls(self) -> float:
        """Sums over tiles come one after the other: what workers share is each kernel."""
        cores = self.machine.cores
        forks = FORK_SECONDS if self.loop.sums and cores > 1 else 0.0
        return self.tiles * self.kernels * (_CALL_SECONDS / cores + forks)

    def _read_again(self) -> float:
        machine = self.machine
        nbytes = sum(value.type.nbytes for value, axis in self.loop.taken if not is_sliced(axis))
        nbytes += 2 * sum(value.type.nbytes for value in self.loop.sums)
        if nbytes > machine.l3_nbytes // 2:
            return self.tiles * nbytes / machine.bandwidth
        reading = self.tiles * nbytes / machine.cores / machine.cache_bandwidth
        return max(reading - _HIDDEN * self.arithmetic, 0.0)

    def _placed(self) -> float:
        """To move tiles that do not lie one after the other, and to store what readers of the whole
        would evaluate themselves."""
        loop = self.loop
        parts = [*loop.taken, *((y, loop.along.axes[y]) for y in loop.stacked)]
        moved = [x for x, axis in parts if is_sliced(axis) and math.prod(x.shape[:axis]) > 1]
        moved += [x for x, axis in parts if axis == TURNED]
        moved += [
            x
            for x, _ in loop.taken
            if x.op.definition.is_pointwise and x.type.size >= loop.cluster.large
        ]
        return 2 * sum(value.type.nbytes for value in moved) / self.machine.bandwidth

    def _late(self) -> float:
        """Until the last worker is ready."""
        cores = self.machine.cores
        return self.arithmetic * (-(-self.tiles // cores) * cores / self.tiles - 1)
