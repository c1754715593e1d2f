"""`GroupTile`: how many sums a block has where warpgroups multiply; what that costs.

Input: the sides of a product, a device. Output: tiles, and seconds. Invariant, as of `tile.py`.

Note [What a tile of warpgroups costs]: a multiprocessor's tensor cores do 2048 multiply-adds a
cycle by `wgmma` (H100 whitepaper: 512 each), twice those of an A100, and cycles are then as long as
what the device is said to reach in all tells: its power does not last for its highest clock. They
read operands from shared memory themselves, 128 bytes a cycle: rows and columns once for each 64
rows. So columns should be many, and sums fill the registers: 64 x 256 are 128 of each thread. The
same shared memory takes what threads store for the next turn. Nothing else is issued for a product,
so one warpgroup keeps tensor cores busy, and two of them hide its beginnings and ends. Copies that
bring tiles leave the registers to sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from stagejit.base.records import record
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.tile import Units, loads_of, turns_of, turns_seconds
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import occupancy
from stagejit.codegen.ir.grid.warpgroups import ALIGNMENT, LINE, WARPGROUP, WarpgroupTile
from stagejit.codegen.ir.nodes import element_type
from stagejit.types import DType, f32

_OPERANDS = frozenset(("f16", "bf16"))
_PRODUCTS_A_CYCLE, _SHARED_NBYTES_A_CYCLE = 2048, 128
_BESIDE, _MOST_REGISTERS = 48, 255
_COPIES = 0, 2, 3, 4
_OF_PLACE = 2  # registers of an access that is on its way; twice as many if it is one element's


@record
class GroupTile(Units):
    """A block has `down` x `across` warpgroups of `height` x `width` sums each, `height` 64 or a
    few times that, and takes `depth` steps at a time. operand: the type of both operands; copies:
    see `Shape`."""

    members: ClassVar[int] = WARPGROUP
    operand: DType
    copies: int = 0
    depth: int = LINE

    @property
    def product(self) -> WarpgroupTile:
        return WarpgroupTile(self.width, element_type(self.operand))

    @property
    def down_products(self) -> int:
        """Of a warpgroup."""
        return self.height // self.product.m

    @property
    def places(self) -> int:
        """For tiles in shared memory: those on their way, and two that are multiplied; without
        copies two, see `warpgroup.py`."""
        return self.copies + 2

    def by_rows(self, sides: Sides) -> tuple[bool, bool]:
        """As in memory."""
        return sides.rows.along_steps, sides.columns.along_steps

    def room(self, extent: int, itemsize: int) -> int:
        return extent * self.depth

    @property
    def shared_nbytes(self) -> int:
        """Of all places of each operand, each of whole atoms."""
        nbytes = self.places * (self.rows + self.columns) * self.depth * self.operand.itemsize
        return -(-nbytes // ALIGNMENT) * ALIGNMENT

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a warpgroup "
            f"from shared memory, {self.depth} steps at a time, {self.places} tiles"
            f"{' by copies' if self.copies else ''}"
        )


def group_tiles(plan: Plan, device: Device) -> Iterator[GroupTile]:
    """All that there are, if a device's tensor cores multiply the operands exactly."""
    left, right = (source.value.type.dtype for source in plan.sources)
    known = left is right and left.name in _OPERANDS and plan.nest.dtype is f32
    if not (known and device.has_warpgroups):
        return
    groups = (2, 1), (1, 2), (1, 1), (4, 1)
    widths = (64, 128, 192, 256)
    for (down, across), height, width, copies in itertools.product(
        groups, (64, 128), widths, _COPIES
    ):
        if height * width <= 64 * 256:
            yield GroupTile(down, across, height, width, left, copies)


def group_tile_fits(sides: Sides, tile: GroupTile, device: Device) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything; where copies
    bring tiles, whether they can, and there are more tiles than are on their way."""
    loads = loads_of(sides, tile)
    shared = all(
        load.lanes * load.often * tile.threads == tile.depth * load.extent for load in loads
    )
    if tile.copies and (any(load.kept for load in loads) or tile.copies >= turns_of(sides, tile)):
        return False
    registers = min(_MOST_REGISTERS, device.registers // tile.threads)
    return (
        shared
        and tile.shared_nbytes <= device.block_shared_nbytes
        and _registers(sides, tile) <= registers
    )


def _registers(sides: Sides, tile: GroupTile) -> int:
    staged = sum(
        (-(-load.lanes * load.often * tile.operand.itemsize // 4) if load.kept else 0)
        + _OF_PLACE * load.often * (2 if load.lanes == 1 else 1)
        for load in loads_of(sides, tile)
    )
    return tile.sums + staged + _BESIDE


def group_tile_seconds(sides: Sides, tile: GroupTile, device: Device) -> float:
    """See Note [What a tile of warpgroups costs]."""
    clock, itemsize = device.peak_flops / 256, tile.operand.itemsize
    slower = max(2 * device.cores * _PRODUCTS_A_CYCLE * clock / device.tensor_flops, 1.0)
    multiply = tile.rows * tile.columns * tile.depth / _PRODUCTS_A_CYCLE
    products = tile.down * tile.across * tile.down_products
    read = products * (tile.product.m + tile.width) * tile.depth * itemsize
    stored = (tile.rows + tile.columns) * tile.depth * itemsize
    busy = max(multiply, (read + stored) / _SHARED_NBYTES_A_CYCLE)
    held = occupancy(device, tile.threads, _registers(sides, tile), tile.shared_nbytes)
    return slower * turns_seconds(sides, tile, device, held, busy, 1.0)
