"""`Tile`: how many sums a block of threads has, and each thread of these; what that costs.

Input: the sides of a product, a device. Output: the cheapest tile. Invariant: any tile gives the
right values; a model: nothing here was measured on a GPU.

Note [What a tile costs]: in each step a thread multiplies its rows by its columns, which it reads
from shared memory, 16 bytes at a time. A multiprocessor multiplies 128 f32 a cycle, issues four
instructions of a warp, and moves 128 bytes of shared memory; a read of 16 bytes a thread keeps it
busy for two cycles where threads of a warp share what they read. So a thread should have many sums:
8 x 8 need 4 reads for 64 multiply-adds. A scheduler with one warp has nothing to do while that
waits, and a turn takes at least as long as the next tile takes from memory. The busiest
multiprocessor tells how long a kernel takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import Occupancy, occupancy
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.types import DType

_ACCESS_NBYTES = 16
_SCHEDULERS, _LATENCY = 4, 4  # of a multiprocessor; cycles until a multiply-add is there
_READ_CYCLES = 2.0  # of shared memory, for 16 bytes in each thread of a warp
_ALONE = 0.25  # of a warp's time, in which it waits for shared memory and barriers
_MEMORY = 600.0  # cycles until what threads load ahead is there
_SATURATES = 0.5  # multiprocessors that have all that the last cache gives
_AROUND = 60  # instructions of a thread around the steps of a tile; cycles until all are there
_BESIDE = 40  # registers for places, numbers of steps, what is loaded ahead
_OF_PLACE = 3  # registers of an element that is loaded alone: where it lies, whether it is one
_MOST_REGISTERS = 224
_MOST_STAGED_NBYTES, _MOST_TURNS = 64, 8  # of an operand that a thread loads ahead; accesses


class Shape(Protocol):
    """Of what a block has in one turn."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def depth(self) -> int: ...

    @property
    def threads(self) -> int: ...

    def room(self, extent: int, itemsize: int) -> int:
        """Elements of shared memory that one tile of an operand takes."""
        ...


@dataclass(frozen=True)
class Tile:
    """A block has `rows` x `columns` sums and takes `depth` steps at a time; a thread has `height`
    x `width` of them, in groups of `lanes` neighbours."""

    rows: int
    columns: int
    depth: int
    height: int
    width: int
    lanes: int

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.height

    @property
    def across(self) -> int:
        return self.columns // self.width

    @property
    def threads(self) -> int:
        return self.down * self.across

    @property
    def warp(self) -> tuple[int, int]:
        """Threads of a warp along rows and columns: as square as can be, so that they share what
        they read."""
        across = min(self.across, 8)
        return WARP // across, across

    def room(self, extent: int, itemsize: int) -> int:
        return self.depth * pitch(extent, itemsize)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a thread, "
            f"{self.depth} steps at a time"
        )


def tiles(dtype: DType) -> Iterator[Tile]:
    """All that there are for sums of a type."""
    lanes = _ACCESS_NBYTES // dtype.itemsize
    sizes = {(8, 8), (8, 4), (4, 8), (4, 4)} if lanes > 1 else {(4, 4), (4, 2), (2, 4)}
    threads = (8, 16), (16, 8), (16, 16), (8, 8), (4, 16), (16, 4), (32, 8), (8, 32), (4, 8), (8, 4)
    for (height, width), (down, across), depth in itertools.product(
        sorted(sizes, reverse=True), threads, (8, 16, 32)
    ):
        group = min(lanes, height, width)
        yield Tile(down * height, across * width, depth, height, width, group)


def pitch(extent: int, itemsize: int) -> int:
    """Elements from step to step in shared memory: rows of a step move by one access, so that
    stores along the steps meet fewer banks twice."""
    return extent + _ACCESS_NBYTES // itemsize


def shared_nbytes(tile: Shape, itemsize: int) -> int:
    """Of two tiles of each operand."""
    return sum(2 * tile.room(extent, itemsize) * itemsize for extent in (tile.rows, tile.columns))


def accesses(side: Side, extent: int, tile: Shape) -> tuple[int, int]:
    """(neighbours that a thread loads at once, how often it does) of a tile of an operand."""
    lanes = side.lanes
    while lanes > 1 and extent * tile.depth % (lanes * tile.threads):
        lanes //= 2
    return lanes, -(-extent * tile.depth // (lanes * tile.threads))


def fits(sides: Sides, tile: Tile, device: Device, dtype: DType) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything."""
    return (
        shares_loads(sides, tile, dtype.itemsize)
        and tile.down % tile.warp[0] == 0
        and shared_nbytes(tile, dtype.itemsize) <= device.static_shared_nbytes
        and registers(sides, tile, dtype) <= _MOST_REGISTERS
    )


def shares_loads(sides: Sides, tile: Shape, itemsize: int) -> bool:
    """Whether all threads have equally many loads of each operand, and few."""
    loads = loads_of(sides, tile)
    return all(
        lanes * often * tile.threads == tile.depth * extent
        and often <= _MOST_TURNS
        and often * lanes * itemsize <= _MOST_STAGED_NBYTES
        for lanes, often, extent in loads
    )


def loads_of(sides: Sides, tile: Shape) -> list[tuple[int, int, int]]:
    """Of each operand: `accesses`, and how much of it a tile has."""
    both = (sides.rows, tile.rows), (sides.columns, tile.columns)
    return [(*accesses(side, extent, tile), extent) for side, extent in both]


def registers(sides: Sides, tile: Tile, dtype: DType) -> int:
    """Of a thread, about."""
    staged = sum(
        lanes * often + (_OF_PLACE * often if lanes == 1 else 0)
        for lanes, often, _ in loads_of(sides, tile)
    )
    held = tile.height * tile.width + 2 * (tile.height + tile.width) + staged
    return dtype.itemsize // 4 * held + _BESIDE


def tile_seconds(sides: Sides, tile: Tile, device: Device, dtype: DType) -> float:
    """See Note [What a tile costs]."""
    warps, words = tile.threads // WARP, dtype.itemsize // 4
    rate = 1.0 if dtype.is_float else 0.5  # of f32; half as many f64, or products of integers
    multiply = tile.height * tile.width * tile.depth * words / rate
    reads = -(-tile.height // tile.lanes) + -(-tile.width // tile.lanes)
    issue = warps * (multiply + reads * tile.depth + _AROUND) / _SCHEDULERS
    shared = warps * reads * tile.depth * _READ_CYCLES * _per_access(tile, dtype)
    held = occupancy(
        device, tile.threads, registers(sides, tile, dtype), shared_nbytes(tile, dtype.itemsize)
    )
    independent = tile.height * tile.width / _LATENCY
    return turns_seconds(sides, tile, device, held, max(issue, shared), independent, dtype.itemsize)


def turns_seconds(
    sides: Sides, tile: Shape, device: Device, held: Occupancy, busy: float, independent: float,
    itemsize: int,
) -> float:  # fmt: skip
    """Of all turns of all blocks. busy: cycles that a turn of one block keeps a multiprocessor;
    independent: multiply-adds of a warp whose results others do not wait for."""
    if not held.blocks:
        return math.inf
    batch = math.prod(var.extent for var in sides.batch)
    rows, columns = sides.rows.number.extent, sides.columns.number.extent
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
    turns = -(-sides.step.extent // tile.depth)
    busiest = -(-blocks // device.cores)
    rounds = -(-busiest // held.blocks)
    warps = min(held.blocks, busiest) * tile.threads / WARP / _SCHEDULERS
    speed = min(warps * independent, 1.0) * warps / (warps + _ALONE)
    cycles = max(busiest * turns * busy / speed, rounds * turns * _MEMORY)
    cycles += rounds * (turns * _AROUND + 2 * _MEMORY)  # the first tile, and what is stored
    moved = blocks * turns * tile.depth * (tile.rows + tile.columns) * itemsize
    clock = device.peak_flops / 256
    return max(cycles / clock, moved / (_SATURATES * device.cores * device.cache_bandwidth))


def _per_access(tile: Tile, dtype: DType) -> float:
    return tile.lanes * dtype.itemsize / _ACCESS_NBYTES
