"""Kernels of `contract` and `conv` regions for a GPU.

Input: a region around a product or a convolution. Output: its kernel: of each of its nests, in
turn. Invariant: each stored element is evaluated once, from a finished sum in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.contraction.walk import nests_of
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.contract.fragments import FragmentSums
from stagejit.codegen.cuda.contract.plan import Plan, plan_of
from stagejit.codegen.cuda.contract.registers import RegisterSums
from stagejit.codegen.cuda.contract.sides import Sides, sides_of
from stagejit.codegen.cuda.contract.single import SingleSums, single_seconds
from stagejit.codegen.cuda.contract.tile import Tile, fits, seconds, tiles
from stagejit.codegen.cuda.contract.warp_tile import (
    WarpTile,
    warp_tile_fits,
    warp_tile_seconds,
    warp_tiles,
)
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.nest.tree import Parallel
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine

_THREADS = 256  # of a block, where each has a sum


@dataclass(frozen=True)
class Way:
    """How a nest runs. tile: None where each sum has a thread."""

    plan: Plan
    sides: Sides
    tile: Tile | WarpTile | None
    choice: Choice

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]:
        return self.plan.reads

    @property
    def offsets(self) -> Sequence[Affine]:
        return self.plan.offsets


def product_kernel(region: ClosedRegion, device: Device) -> Kernel:
    """The kernel of a region around a product."""
    plans = [plan_of(region, nest) for nest in nests_of(region)]
    largest = max(plans, key=lambda plan: plan.sums * plan.steps)
    first = _way(largest, device, None)
    threads = first.tile.threads if first.tile else _THREADS
    ways = [first if plan is largest else _way(plan, device, threads) for plan in plans]
    flops = sum(2.0 * plan.sums * plan.steps for plan in plans)
    total = flops / device.peak_flops + region_seconds(region, device)

    def tree(way: Way, emitter: ThreadEmitter, memory: Sequence[Memory]) -> Parallel:
        if way.tile is None:
            return SingleSums(way.plan, emitter, memory).tree()
        if isinstance(way.tile, WarpTile):
            return FragmentSums(way.plan, way.sides, way.tile, emitter, memory).tree()
        return RegisterSums(way.plan, way.sides, way.tile, emitter, memory).tree()

    choices = [way.choice for way in ways]
    return grid_kernel(
        region, device, ways, tree, total, threads=threads, resident=1 if first.tile else 0,
        choices=choices,
    )  # fmt: skip


def _way(plan: Plan, device: Device, threads: int | None) -> Way:
    """The cheapest one. threads: of a block, where that is settled."""
    sides, dtype = sides_of(plan), plan.nest.dtype
    fitting: list[Tile | WarpTile | None] = [None]
    if plan.steps and sides.rows.axes and sides.columns.axes:
        fitting += [tile for tile in tiles(dtype) if fits(sides, tile, device, dtype)]
        fitting += [tile for tile in warp_tiles(plan) if warp_tile_fits(sides, tile, device)]
    fitting = [tile for tile in fitting if not tile or threads in (None, tile.threads)]

    def cost(tile: Tile | WarpTile | None) -> float:
        if tile is None:
            return 1e6 * single_seconds(plan, device)
        if isinstance(tile, WarpTile):
            return 1e6 * warp_tile_seconds(sides, tile, device)
        return 1e6 * seconds(sides, tile, device, dtype)

    ranked = cheapest(
        "tile", fitting, cost, lambda tile: str(tile) if tile else "a thread for each sum", "us"
    )
    return Way(plan, sides, ranked.best, ranked.choice)
