"""`WarpTile`: how many sums a block has where warps multiply by tensor cores; what that costs.

Input: the sides of a product, a device. Output: tiles, and seconds. Invariant, as of `tile.py`.

Note [What a warp tile costs]: a multiprocessor's tensor cores do 1024 multiply-adds of 16-bit
floats a cycle by `mma.sync`, half as many of tf32, twice as many of 8-bit integers, a sixteenth of
f64 (A100 whitepaper; later ones do more by other instructions). A warp reads fragments of its rows
and columns from shared memory, 128 bytes a cycle, and multiplies all of the one by all of the
other. Where `ldmatrix` cannot turn them, threads load elements one by one, and two of them meet in
a bank.

Note [Which products]: those of tensor cores have to be as exact as what was promised. Products of
16-bit floats are exact in f32, those of 8-bit integers in i32; of f64 each is rounded as any other
multiply-add. An f32 product is one of tf32, with 10 bits of mantissa, only where the program says
that this is enough (the attribute `precision` of `graph/ops/products.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from stagejit.base.records import record
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.tile import (
    COPIES,
    Load,
    Units,
    loads_of,
    on_their_way,
    pitch,
    shared_nbytes,
    shares_loads,
    stored_cycles,
    turns_seconds,
)
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import occupancy
from stagejit.codegen.ir.grid.matrix_tiles import (
    M8N8K4_F64,
    M16N8K8_TF32,
    M16N8K16_BF16,
    M16N8K16_F16,
    WARP,
    MatrixTile,
    Role,
    m16n8k32,
)
from stagejit.types import DType, f32, f64

_FLOATS = {"f16": M16N8K16_F16, "bf16": M16N8K16_BF16}
_PRODUCTS_A_CYCLE = {"f16": 1024, "bf16": 1024, "tf32": 512, "s8": 2048, "u8": 2048, "f64": 64}
_SHARED_NBYTES_A_CYCLE, _MEETING = 128, 2
_BESIDE, _MOST_REGISTERS = 56, 255
_LINES = 32, 64, 128  # bytes of the steps of a row


@record
class WarpTile(Units):
    """A block has `down` x `across` warps of `height` x `width` sums each, and takes `depth` steps
    at a time. operand: the type in shared memory; matrix: what multiplies it; copies: see `Shape`.
    """

    members: ClassVar[int] = WARP
    depth: int
    operand: DType
    matrix: MatrixTile
    copies: int = 0

    @property
    def down_fragments(self) -> int:
        return self.height // self.matrix.m

    @property
    def across_fragments(self) -> int:
        return self.width // self.matrix.n

    def by_rows(self, sides: Sides) -> tuple[bool, bool]:
        """As in memory, but for bytes, of which a register holds four along the steps."""
        if self.operand.itemsize == 1:
            return True, True
        return sides.rows.along_steps, sides.columns.along_steps

    def room(self, extent: int, itemsize: int) -> int:
        """By rows or not: that depends on the nest."""
        by_rows = extent * pitch(self.depth, itemsize)
        return max(by_rows, self.depth * pitch(extent, itemsize))

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a warp by "
            f"tensor cores ({self.matrix}), {self.depth} steps at a time{on_their_way(self)}"
        )


def matrix_of(plan: Plan) -> tuple[DType, MatrixTile] | None:
    """The type of operands in shared memory, and the tile by which tensor cores multiply them as
    exactly as was promised; None if there is none. See Note [Which products]."""
    left, right = (source.value.type.dtype for source in plan.sources)
    sums = plan.nest.dtype
    if left is right and left.name in _FLOATS and sums is f32:
        return left, _FLOATS[left.name]
    if left is right and left.is_float and sums is f64:
        return f64, M8N8K4_F64
    if left is right and left is f32 is sums and plan.region.anchor_op.attrs.get("precision"):
        return f32, M16N8K8_TF32
    are_bytes = all(side.is_integer and side.bits == 8 for side in (left, right))
    if are_bytes and sums.bits == 32:
        return left, m16n8k32(unsigned=(not left.is_signed, not right.is_signed))
    return None


def warp_tiles(plan: Plan) -> Iterator[WarpTile]:
    """All that there are, if tensor cores multiply the operands."""
    found = matrix_of(plan)
    if found is None:
        return
    dtype, matrix = found
    warps = (2, 2), (2, 4), (4, 2), (4, 1), (1, 4), (1, 2), (2, 1), (1, 1)
    sizes = (64, 64), (64, 32), (32, 64), (32, 32), (16, 32), (32, 16), (16, 16)
    for (down, across), (height, width), line, copies in itertools.product(
        warps, sizes, _LINES, COPIES
    ):
        depth = line // dtype.itemsize
        yield WarpTile(down, across, height, width, depth, dtype, matrix, copies)


def warp_tile_fits(sides: Sides, tile: WarpTile, device: Device) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything."""
    return (
        shares_loads(sides, tile)
        and shared_nbytes(tile) <= device.block_shared_nbytes
        and _registers(sides, tile) <= _MOST_REGISTERS
    )


def _registers(sides: Sides, tile: WarpTile) -> int:
    staged = sum(_staged(load, tile.operand) for load in loads_of(sides, tile))
    fragments = _words(tile.matrix, "a") * tile.down_fragments + _words(tile.matrix, "b")
    sums = _words(tile.matrix, "c") * tile.down_fragments * tile.across_fragments
    return sums + fragments + 2 + staged + _BESIDE


def _staged(load: Load, operand: DType) -> int:
    """Registers of what is loaded ahead, and of its places."""
    held = load.lanes * load.often * operand.itemsize // 4 if load.kept else 0
    return held + (4 if load.lanes == 1 else 2) * load.often


def _words(matrix: MatrixTile, role: Role) -> int:
    """Registers of a fragment."""
    fragment = matrix.fragment(role)
    return fragment.lanes * fragment.bits // 32


def warp_tile_seconds(sides: Sides, tile: WarpTile, device: Device) -> float:
    """See Note [What a warp tile costs]."""
    rate = _PRODUCTS_A_CYCLE[tile.matrix.kind("a")]
    multiply = tile.rows * tile.columns * tile.depth / rate
    read: float = sum(
        extent * tile.depth * (1 if is_whole else _MEETING)
        for extent, is_whole in zip((tile.height, tile.width), _whole(sides, tile), strict=True)
    )
    read *= tile.down * tile.across * tile.operand.itemsize / _SHARED_NBYTES_A_CYCLE
    held = occupancy(device, tile.threads, _registers(sides, tile), shared_nbytes(tile))
    # Each scheduler has tensor cores of its own, which one warp keeps busy.
    busy = max(multiply, read + stored_cycles(sides, tile))
    return turns_seconds(sides, tile, device, held, busy, 1.0)


def _whole(sides: Sides, tile: WarpTile) -> list[bool]:
    """Whether `ldmatrix` loads fragments of an operand."""
    itemsize = tile.operand.itemsize
    return [itemsize <= 2 or (itemsize == 4 and along) for along in tile.by_rows(sides)]
