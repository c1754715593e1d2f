"""What tiles cost, and what they save: seconds beside the arithmetic.

Input: a loop over tiles, a machine. Output: modelled seconds with tiles and without. Invariant:
nothing is decided here.

Note [When tiles pay]: in pieces, what one op makes the next one finds in its core's cache, not in
the shared one or in memory. Nor in that of another core: workers take what comes next, so that of a
whole in their caches each finds its share near, and forks for each step. In turn the ops are called
once for each tile, and read again what they need whole, which the arithmetic hides as long as it
comes from a cache; what is summed over tiles is read and written for each; and workers wait for the
last tile.
"""

from __future__ import annotations

import math

from stagejit.base.machine import FORK_SECONDS, HOT_FORK_SECONDS, Machine
from stagejit.graph.ir import Value
from stagejit.rewrites.tiling.along import Along
from stagejit.rewrites.tiling.loop import TileLoop
from stagejit.rewrites.tiling.parts import TURNED, is_sliced

_TURN_SECONDS = 0.5e-6  # for each kernel of a tile: its call, its tails, what a thread does for it
_HIDDEN = 0.5  # of the arithmetic's time, in which caches may be read
_HANDED = 2  # times that a line of the shared cache takes where another core has changed it


def stored_nbytes(along: Along) -> int:
    """Bytes that lie in memory between the ops of a cluster: results of products, and what products
    read, where that is large; what is put together."""
    cluster = along.cluster
    products = [op for op in cluster.ops if op.definition.is_product]
    stored = {op.result for op in products if op.result not in cluster.outputs}
    stored |= {x for op in products for x in op.operands if x.type.size >= cluster.large}
    return sum(value.type.nbytes for value in (*stored, *cluster.assembled))


def near_nbytes(along: Along) -> int:
    """Bytes that would have to lie in a core's cache if all places were one tile: of products, all
    that is stored; a step reads one value and makes another one, and as much again is what comes in
    and goes out, and what others leave behind."""
    assembled = along.cluster.assembled
    if not assembled:
        return stored_nbytes(along)
    return 4 * max(value.type.nbytes for value in assembled)


class Cost:
    """whole, tiled: seconds without tiles and with them, beside the arithmetic of both."""

    def __init__(self, loop: TileLoop, machine: Machine) -> None:
        self.machine, self.loop, self.parts, self.tiles = machine, loop, loop.parts, loop.tiles
        self.stored = stored_nbytes(self.parts.along)
        ops = self.parts.cluster.ops
        self.near = near_nbytes(self.parts.along)
        self.kernels = 2 * sum(op.definition.is_product for op in ops)
        self.kernels += len(self.parts.cluster.assembled)
        self.arithmetic = self.parts.flops / machine.peak_flops / machine.cores

    @property
    def whole(self) -> float:
        steps = len(self.parts.cluster.assembled)
        forks = HOT_FORK_SECONDS * steps if self.machine.cores > 1 else 0.0
        return self.stored / self.near * self._moved(self.near) + forks

    @property
    def tiled(self) -> float:
        # One place that is too large for a cache is cut again, along another axis.
        each = max(self.near * self.loop.places // self.parts.extent, 1)
        fitting = min(each, self.machine.l2_nbytes) if self.loop.places == 1 else each
        inside = self.stored / fitting * self._moved(fitting, self.machine.cores)
        return inside + self._calls() + self._read_again() + self._placed() + self._late()

    def _moved(self, nbytes: int, workers: int = 1) -> float:
        """To write and read so many bytes, of which each of several workers has as many; of one,
        all cores share them."""
        machine = self.machine
        if nbytes * workers > machine.l3s_nbytes:
            return 2 * nbytes / machine.bandwidth
        near = nbytes <= 2 * machine.l2_nbytes  # half of it is needed at any one time
        if not near:
            return 2 * nbytes / machine.cores / machine.cache_bandwidth
        own = workers / machine.cores
        seconds = own / machine.l2_bandwidth + (1 - own) * _HANDED / machine.cache_bandwidth
        return 2 * nbytes / machine.cores * seconds

    def _calls(self) -> float:
        """Sums over tiles come one after the other, and so does the rest: what workers share is
        each kernel."""
        cores = self.machine.cores
        forks = FORK_SECONDS if cores > 1 else 0.0
        alone = self.tiles if self.parts.sums else bool(self.loop.rest)
        return self.kernels * (self.tiles * _TURN_SECONDS / cores + alone * forks)

    def _read_again(self) -> float:
        machine = self.machine
        nbytes = sum(value.type.nbytes for value, axis in self.parts.taken if not is_sliced(axis))
        nbytes += 2 * sum(value.type.nbytes for value in self.parts.sums)
        if nbytes > machine.l3_nbytes // 2:
            return self.tiles * nbytes / machine.bandwidth
        reading = self.tiles * nbytes / machine.cores / machine.cache_bandwidth
        return max(reading - _HIDDEN * self.arithmetic, 0.0)

    def _placed(self) -> float:
        """To move tiles that do not lie one after the other, or after which there is a rest, and to
        store what readers of the whole would evaluate themselves; if that is turned, it is read in
        short pieces, at half the rate."""
        along, taken = self.parts.along, self.parts.taken
        stacked = [(y, along.axes[y]) for y in self.parts.stacked]
        rest = self.loop.rest > 0
        moved = [
            x
            for x, axis in (*taken, *stacked)
            if axis == TURNED or (is_sliced(axis) and (rest or math.prod(x.shape[:axis]) > 1))
        ]
        large = along.cluster.large
        made = [x for x, _ in taken if x.op.definition.is_pointwise and x.type.size >= large]
        moved += [*made, *filter(_is_turned, made)]
        return 2 * sum(value.type.nbytes for value in moved) / self.machine.bandwidth

    def _late(self) -> float:
        """Until the last worker is ready."""
        cores, trip = self.machine.cores, self.loop.trip
        shared = self.arithmetic * trip * self.loop.places / self.parts.extent
        return shared * (-(-trip // cores) * cores / trip - 1)


def _is_turned(x: Value) -> bool:
    """Whether it is a view in another order."""
    while x.op.definition.keeps_order:
        x = x.op.operands[0]
    return x.op.definition.is_view
