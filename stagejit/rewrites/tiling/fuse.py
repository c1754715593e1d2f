"""tile-and-fuse: what is larger than its makers' operands exists one tile at a time.

Input: products whose results are too large for a core's cache, and that nobody needs whole; values
as large that are put together in one step and read in the next (see `assembled.py`). Output: a loop
over tiles of one axis, with all that reads them: attention without a matrix of scores, transforms
whose lines go through all steps. Invariant: values are as exact as those of the whole; which axis,
and how large a tile is, follows from the machine.

Note [Tiles within tiles]: the body of a loop is a graph like others, so that its large values are
cut along another axis, if they still are too large: attention by heads, then by some rows of one.

Note [Even or not]: tiles that leave nothing over are the loop and no more; a rest is the same ops
once more, and what the loop takes and gives is copied, for it is a part of memory only. So tiles
leave a rest where there are no even ones of about the size that is wanted, or where those cost
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from stagejit.base.machine import HOT_FORK_SECONDS, Machine
from stagejit.base.numbers import counted
from stagejit.base.records import record
from stagejit.graph.ir import Op
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.tiling.along import Along, axes_along
from stagejit.rewrites.tiling.assembled import is_assembled, steps_along
from stagejit.rewrites.tiling.clusters import Cluster, Clusters
from stagejit.rewrites.tiling.cost import Cost, near_nbytes
from stagejit.rewrites.tiling.loop import TileLoop
from stagejit.rewrites.tiling.parts import Parts
from stagejit.rewrites.tiling.surroundings import Surroundings

NAME = "tile-and-fuse"
_LEAST_ROWS = 32  # places that a product is worth being called for, if they are its rows
_WORTH = 0.97  # of the time of the whole: what is less is lost in noise


def tile_and_fuse(log: Log) -> list[Op]:
    """contract (f (contract %x, %y)), %z  -->  loop over tiles: the same for a tile of %x"""
    made: list[Op] = []
    clusters = Clusters(log.graph)
    left = set[Op]()  # of clusters that stay whole: each is asked about once
    for seed in log.graph.ops():
        if seed not in log.graph or seed in left:
            continue
        if _may_seed(seed, log.machine):
            for cluster in clusters.around(seed):
                if isinstance(cluster, str):
                    log.decline(NAME, seed, cluster)
                elif loops := _tiled(log, seed, [_cut(log, cluster, axis) for axis in _axes(seed)]):
                    made += loops
                    break
            else:
                left |= set(() if isinstance(cluster, str) else cluster.ops)
        elif _may_begin(log, seed):
            made += _steps_tiled(log, clusters.surroundings, seed, left)
    return made


def _steps_tiled(log: Log, surroundings: Surroundings, seed: Op, left: set[Op]) -> list[Op]:
    """The same for steps that each put their results together; adds those that stay whole to
    `left`."""
    found = [(steps_along(log.graph, surroundings, seed, axis), axis) for axis in _axes(seed)]
    clusters = [(cluster, axis) for cluster, axis in found if not isinstance(cluster, str)]
    if not clusters:  # the usual end of a concatenation
        return []
    loops = _tiled(log, seed, [_cut(log, cluster, axis) for cluster, axis in clusters])
    if not loops:
        left |= {op for cluster, _ in clusters for op in cluster.ops}
    return loops


def _may_seed(op: Op, machine: Machine) -> bool:
    """A product whose result is larger than both operands, and than what a core keeps near."""
    known = op.definition
    if not known.is_product or known.is_windowed:
        return False
    if not all(value.type.has_numbers for value in (op.result, *op.operands)):
        return False
    nbytes = op.result.type.nbytes
    operands = sum(operand.type.nbytes for operand in op.operands)
    return nbytes > max(machine.l2_nbytes // 2, operands)


def _may_begin(log: Log, op: Op) -> bool:
    """A value that is put together, and takes longer than a fork to hand to another core, or is
    larger than what one keeps near."""
    machine = log.machine
    if not machine.side_by_side or not op.definition.is_insert:
        return False
    near = machine.l2_nbytes / 2
    if machine.cores > 1:
        near = min(near, HOT_FORK_SECONDS * machine.cache_bandwidth)
    type = op.result.type
    return type.has_numbers and type.nbytes > near and is_assembled(log.graph, op)


def _axes(seed: Op) -> list[int]:
    return [axis for axis, extent in enumerate(seed.result.shape) if extent > 1]


def _tiled(log: Log, seed: Op, cuts: Sequence[Cut | str]) -> list[Op]:
    """The loop over tiles in place of a cluster, the best of `cuts`; none where that does not
    pay."""
    possible = [cut for cut in cuts if isinstance(cut, Cut)]
    if not possible:
        log.decline(NAME, seed, "; ".join(dict.fromkeys(map(str, cuts))))
        return []
    best = min(possible, key=lambda cut: cut.seconds)
    if best.seconds > _WORTH * best.whole_seconds:
        log.decline(NAME, seed, str(best))
        return []
    first_new = log.graph.next_id
    values = best.loop.build()
    made = log.located(first_new, seed)
    log.apply(NAME, seed, str(best))
    for output, value in values.items():
        log.put(output.op, [value])
    cluster = best.loop.parts.cluster
    cluster.surroundings.contracted(cluster.ops, made)
    return [op for op in made if op.definition.is_loop]


@record
class Cut:
    """Tiles along one axis of the seed. seconds: modelled, of what tiles change; whole_seconds: the
    same without tiles."""

    axis: int
    loop: TileLoop
    seconds: float
    whole_seconds: float

    def __str__(self) -> str:
        rest = f" and one of {self.loop.rest}" if self.loop.rest else ""
        return (
            f"{self.loop.trip} tiles of {self.loop.places}{rest} along axis {self.axis}: "
            f"{1e6 * self.seconds:.3g} us for what takes {1e6 * self.whole_seconds:.3g} as a whole"
        )


def _cut(log: Log, cluster: Cluster, axis: int) -> Cut | str:
    """The tiles along an axis of the seed that fit into a core's cache, or why there are none."""
    graph, machine = log.graph, log.machine
    if not machine.side_by_side:
        return "tiles would be made one after the other"
    along = axes_along(graph, cluster, axis)
    if isinstance(along, str):
        return along
    parts = Parts(graph, along)
    wanted = machine.l2_nbytes * parts.extent // near_nbytes(along)
    fair = parts.extent // (2 * machine.cores)
    sizes = _sizes(parts.extent, max(min(wanted, fair), 1), _least_places(along))
    if not sizes:
        return f"axis {axis} of {parts.extent} has no tiles"
    loops = [loop for places in sizes if (loop := TileLoop(parts, places)).trip >= machine.cores]
    if not loops:
        trip = parts.extent // sizes[0]
        return f"{trip} tiles along axis {axis} are too few for {counted(machine.cores, 'core')}"
    costs = [Cost(loop, machine) for loop in loops]
    cuts = [Cut(axis, cost.loop, cost.tiled, cost.whole) for cost in costs]
    return min(cuts, key=lambda cut: cut.seconds * (1 if cut.loop.rest else _WORTH))


def _least_places(along: Along) -> int:
    """One along a batch; some rows of a product that reads its other operand whole, or that sums
    over them."""
    products = [op for op in along.cluster.ops if op.definition.is_product]
    rows = any(op in along.sums or None in along.operands(op) for op in products)
    return _LEAST_ROWS if rows else 1


def _sizes(extent: int, wanted: int, least: int) -> list[int]:
    """Numbers of places next to `wanted`: one that leaves nothing over, and some that do, where
    the rest is almost a tile, or almost nothing."""
    even = _even(extent, wanted, least)
    if even == wanted:
        return [even]
    places = max(wanted, least)
    tiles = -(-extent // places)
    uneven = dict.fromkeys((places, -(-extent // tiles), extent // tiles))
    found = [each for each in uneven if least <= each <= extent // 2 and extent % each]
    return found if even is None else [even, *found]


def _even(extent: int, wanted: int, least: int) -> int | None:
    """The number of places next to `wanted` that leaves nothing over: the largest one up to that,
    or else the smallest one that is at most twice what is wanted or needed."""
    most = min(2 * max(wanted, least), extent // 2)
    fewer, more = range(wanted, least - 1, -1), range(max(wanted + 1, least), most + 1)
    return next((each for each in chain(fewer, more) if extent % each == 0), None)
