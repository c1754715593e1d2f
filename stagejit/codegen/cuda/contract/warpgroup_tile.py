"""`GroupTile`: how many sums a block has where warpgroups multiply; what that costs.

Input: the sides of a product, a device. Output: tiles, and seconds. Invariant, as of `tile.py`.

Note [What a tile of warpgroups costs]: the tensor cores do as many multiply-adds a cycle as the
device is said to reach by `wgmma` (twice those of `mma.sync`, and of an A100), and read operands
from shared memory themselves, 128 bytes a cycle: rows and columns once for each 64 rows. So columns
should be many, and sums fill the registers: 64 x 256 are 128 of each thread. The same shared memory
takes what threads store for the next turn. Nothing else is issued for a product, so one warpgroup
keeps tensor cores busy, and two of them hide its beginnings and ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.tile import loads_of, turns_seconds
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import occupancy
from stagejit.codegen.ir.grid.warpgroups import ALIGNMENT, LINE, WARPGROUP, WarpgroupTile
from stagejit.codegen.ir.nodes import element_type
from stagejit.types import DType, f32

_OPERANDS = frozenset(("f16", "bf16"))
_SHARED_NBYTES_A_CYCLE = 128
_BESIDE, _MOST_REGISTERS = 48, 255
_OF_PLACE = 2  # registers of an access that is on its way; twice as many if it is one element's


@dataclass(frozen=True)
class GroupTile:
    """A block has `down` x `across` warpgroups of `height` x `width` sums each, `height` 64 or a
    few times that, and takes `depth` steps at a time. operand: the type of both operands."""

    down: int
    across: int
    height: int
    width: int
    operand: DType
    depth: int = LINE

    @property
    def product(self) -> WarpgroupTile:
        return WarpgroupTile(self.width, element_type(self.operand))

    @property
    def rows(self) -> int:
        return self.down * self.height

    @property
    def columns(self) -> int:
        return self.across * self.width

    @property
    def threads(self) -> int:
        return self.down * self.across * WARPGROUP

    @property
    def down_products(self) -> int:
        """Of a warpgroup."""
        return self.height // self.product.m

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.height * self.width // WARPGROUP

    @property
    def copies(self) -> int:
        """Threads load them."""
        return 0

    def by_rows(self, sides: Sides) -> tuple[bool, bool]:
        """As in memory."""
        return sides.rows.along_steps, sides.columns.along_steps

    def room(self, extent: int, itemsize: int) -> int:
        return extent * self.depth

    @property
    def shared_nbytes(self) -> int:
        """Of two tiles of each operand, each of whole atoms."""
        nbytes = 2 * (self.rows + self.columns) * self.depth * self.operand.itemsize
        return -(-nbytes // ALIGNMENT) * ALIGNMENT

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a warpgroup "
            f"from shared memory, {self.depth} steps at a time"
        )


def group_tiles(plan: Plan, device: Device) -> Iterator[GroupTile]:
    """All that there are, if a device's tensor cores multiply the operands exactly."""
    left, right = (source.value.type.dtype for source in plan.sources)
    known = left is right and left.name in _OPERANDS and plan.nest.dtype is f32
    if not (known and device.has_warpgroups):
        return
    groups = (2, 1), (1, 2), (1, 1), (4, 1)
    for (down, across), height, width in itertools.product(groups, (64, 128), (64, 128, 192, 256)):
        if height * width <= 64 * 256:
            yield GroupTile(down, across, height, width, left)


def group_tile_fits(sides: Sides, tile: GroupTile, device: Device) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything."""
    shared = all(
        load.lanes * load.often * tile.threads == tile.depth * load.extent
        for load in loads_of(sides, tile, tile.operand)
    )
    registers = min(_MOST_REGISTERS, device.registers // tile.threads)
    return (
        shared
        and tile.shared_nbytes <= device.block_shared_nbytes
        and _registers(sides, tile) <= registers
    )


def _registers(sides: Sides, tile: GroupTile) -> int:
    staged = sum(
        -(-load.lanes * load.often * tile.operand.itemsize // 4)
        + _OF_PLACE * load.often * (2 if load.lanes == 1 else 1)
        for load in loads_of(sides, tile, tile.operand)
    )
    return tile.sums + staged + _BESIDE


def group_tile_seconds(sides: Sides, tile: GroupTile, device: Device) -> float:
    """See Note [What a tile of warpgroups costs]."""
    clock, itemsize = device.peak_flops / 256, tile.operand.itemsize
    rate = device.tensor_flops / (2 * device.cores * clock)
    multiply = tile.rows * tile.columns * tile.depth / rate
    products = tile.down * tile.across * tile.down_products
    read = products * (tile.product.m + tile.width) * tile.depth * itemsize
    stored = (tile.rows + tile.columns) * tile.depth * itemsize
    busy = max(multiply, (read + stored) / _SHARED_NBYTES_A_CYCLE)
    held = occupancy(device, tile.threads, _registers(sides, tile), tile.shared_nbytes)
    return turns_seconds(sides, tile, device, held, busy, 1.0, tile.operand)
