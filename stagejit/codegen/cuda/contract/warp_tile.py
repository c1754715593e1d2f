"""`WarpTile`: how many sums a block has where warps multiply by tensor cores; what that costs.

Input: the sides of a product, a device. Output: tiles, and seconds. Invariant, as of `tile.py`.

Note [What a warp tile costs]: a multiprocessor's tensor cores do 1024 multiply-adds of 16-bit
floats a cycle by `mma.sync` (A100 whitepaper; later ones do more by other instructions). A warp
reads fragments of its rows and columns from shared memory, 128 bytes a cycle, and multiplies all of
the one by all of the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.tile import (
    loads_of,
    pitch,
    shared_nbytes,
    shares_loads,
    turns_seconds,
)
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import occupancy
from stagejit.codegen.ir.grid.matrix_tiles import (
    M16N8K16_BF16,
    M16N8K16_F16,
    WARP,
    MatrixTile,
)
from stagejit.types import DType, f32

_MATRICES = {"f16": M16N8K16_F16, "bf16": M16N8K16_BF16}
_PRODUCTS_A_CYCLE = 1024
_SHARED_NBYTES_A_CYCLE = 128
_BESIDE, _MOST_REGISTERS = 56, 255


@dataclass(frozen=True)
class WarpTile:
    """A block has `down` x `across` warps of `height` x `width` sums each, and takes `depth` steps
    at a time. operand: the type of both operands."""

    down: int
    across: int
    height: int
    width: int
    depth: int
    operand: DType

    @property
    def matrix(self) -> MatrixTile:
        return _MATRICES[self.operand.name]

    @property
    def rows(self) -> int:
        return self.down * self.height

    @property
    def columns(self) -> int:
        return self.across * self.width

    @property
    def threads(self) -> int:
        return self.down * self.across * WARP

    @property
    def down_fragments(self) -> int:
        return self.height // self.matrix.m

    @property
    def across_fragments(self) -> int:
        return self.width // self.matrix.n

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.height * self.width // WARP

    def room(self, extent: int, itemsize: int) -> int:
        """By rows or not: that depends on the nest."""
        by_rows = extent * pitch(self.depth, itemsize)
        return max(by_rows, self.depth * pitch(extent, itemsize))

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a warp by "
            f"tensor cores, {self.depth} steps at a time"
        )


def warp_tiles(plan: Plan) -> Iterator[WarpTile]:
    """All that there are, if tensor cores multiply the operands exactly."""
    left, right = (source.value.type.dtype for source in plan.sources)
    if left is not right or left.name not in _MATRICES or plan.nest.dtype is not f32:
        return
    warps = (2, 2), (2, 4), (4, 2), (4, 1), (1, 4), (1, 2), (2, 1), (1, 1)
    sizes = (64, 64), (64, 32), (32, 64), (32, 32), (16, 32), (32, 16), (16, 16)
    for (down, across), (height, width), depth in itertools.product(warps, sizes, (16, 32, 64)):
        yield WarpTile(down, across, height, width, depth, left)


def warp_tile_fits(sides: Sides, tile: WarpTile, device: Device) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything."""
    return (
        shares_loads(sides, tile, tile.operand.itemsize)
        and shared_nbytes(tile, tile.operand.itemsize) <= device.static_shared_nbytes
        and _registers(sides, tile) <= _MOST_REGISTERS
    )


def _registers(sides: Sides, tile: WarpTile) -> int:
    staged = sum(
        lanes * often // 2 + (4 * often if lanes == 1 else 2 * often)
        for lanes, often, _ in loads_of(sides, tile)
    )
    return tile.sums + 4 * tile.down_fragments + 4 + staged + _BESIDE


def warp_tile_seconds(sides: Sides, tile: WarpTile, device: Device) -> float:
    """See Note [What a warp tile costs]."""
    multiply = tile.rows * tile.columns * tile.depth / _PRODUCTS_A_CYCLE
    read = tile.threads // WARP * (tile.height + tile.width) * tile.depth * tile.operand.itemsize
    shared = shared_nbytes(tile, tile.operand.itemsize)
    held = occupancy(device, tile.threads, _registers(sides, tile), shared)
    # Each scheduler has tensor cores of its own, which one warp keeps busy.
    busy = max(multiply, read / _SHARED_NBYTES_A_CYCLE)
    return turns_seconds(sides, tile, device, held, busy, 1.0, tile.operand.itemsize)
