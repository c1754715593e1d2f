"""Kernels of `contract` and `conv` regions for a GPU.

Input: a region around a product or a convolution. Output: its kernel: of each of its nests, in
turn. Invariant: each stored element is evaluated once, from a finished sum in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.base.records import record
from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.walk import nests_of
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.contract.dots import Dot, DotSums, dot_seconds, dots
from stagejit.codegen.cuda.contract.plan import Plan, plan_of
from stagejit.codegen.cuda.contract.registers import RegisterSums
from stagejit.codegen.cuda.contract.sides import Sides, sides_of
from stagejit.codegen.cuda.contract.single import SingleSums, single_seconds
from stagejit.codegen.cuda.contract.tensor_cores.fragments import FragmentSums
from stagejit.codegen.cuda.contract.tensor_cores.warp_tile import (
    WarpTile,
    warp_tile_fits,
    warp_tile_seconds,
    warp_tiles,
)
from stagejit.codegen.cuda.contract.tensor_cores.warpgroup import WarpgroupSums
from stagejit.codegen.cuda.contract.tensor_cores.warpgroup_tile import (
    GroupTile,
    group_tile_fits,
    group_tile_seconds,
    group_tiles,
)
from stagejit.codegen.cuda.contract.tile import Tile, fits, tile_seconds, tiles
from stagejit.codegen.cuda.contract.tiled import TiledSums
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.tree import Parallel
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine

_THREADS = 256  # of a block, where each has a sum


# Of each kind of tile: whether one fits, how long a nest takes in it, and its trees.
_TILES: dict[type, tuple[Callable[..., bool], Callable[..., float], type[TiledSums]]] = {
    Tile: (fits, tile_seconds, RegisterSums),
    WarpTile: (warp_tile_fits, warp_tile_seconds, FragmentSums),
    GroupTile: (group_tile_fits, group_tile_seconds, WarpgroupSums),
}

# None: each sum has a thread.
Tiles = Tile | WarpTile | GroupTile
Shares = Tiles | Dot | None


@record
class Way:
    """How a nest runs: which threads share its sums."""

    plan: Plan
    sides: Sides
    shares: Shares
    choice: Choice

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]:
        return self.plan.reads

    @property
    def offsets(self) -> Sequence[Affine]:
        return self.plan.offsets

    @property
    def is_tiled(self) -> bool:
        return isinstance(self.shares, Tiles)


def product_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region around a product. If its nests run in tiles, all of them have the
    same, and so one place in shared memory; the largest nest chooses."""
    plans = [plan_of(region, nest) for nest in nests_of(region)]
    largest = max(plans, key=lambda plan: plan.sums * plan.steps)
    first = _way(largest, device, _tiles_of(largest, device))
    tiled = [first.shares] if first.is_tiled else []
    ways = [first if plan is largest else _way(plan, device, tiled) for plan in plans]
    threads = _THREADS
    if isinstance(first.shares, Tiles):
        threads = first.shares.threads
    flops = sum(2.0 * plan.sums * plan.steps for plan in plans)
    total = flops / device.peak_flops + region_seconds(region, device)
    choices = [way.choice for way in ways]
    return grid_kernel(
        region, device, ways, _tree, total, threads=threads, resident=1 if first.is_tiled else 0,
        choices=choices,
    )  # fmt: skip


def _tree(way: Way, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
    plan, sides = way.plan, way.sides
    match way.shares:
        case None:
            return SingleSums(plan, emitter, memory).tree()
        case Dot() as dot:
            return DotSums(plan, dot, emitter, memory).tree()
        case tile:
            _, _, sums = _TILES[type(tile)]
            return sums(plan, sides, tile, emitter, memory).tree()


def _tiles_of(plan: Plan, device: Device) -> list[Shares]:
    """All tiles that there are."""
    return [*tiles(plan.nest.dtype), *warp_tiles(plan), *group_tiles(plan, device)]


def _way(plan: Plan, device: Device, tiled: Sequence[Shares]) -> Way:
    """The cheapest one. tiled: the tiles to choose from."""
    sides, fitting = sides_of(plan), list[Shares]([None, *dots(plan)])
    if plan.steps and sides.rows.axes and sides.columns.axes:
        fitting += [tile for tile in tiled if _TILES[type(tile)][0](sides, tile, device)]

    def cost(shares: Shares) -> float:
        match shares:
            case None:
                seconds = single_seconds(plan, device)
            case Dot() as dot:
                seconds = dot_seconds(plan, dot, device)
            case tile:
                seconds = _TILES[type(tile)][1](sides, tile, device)
        return 1e6 * seconds

    def text(shares: Shares) -> str:
        return str(shares) if shares else "a thread for each sum"

    ranked = cheapest("who sums up", fitting, cost, text, "us")
    return Way(plan, sides, ranked.best, ranked.choice)
