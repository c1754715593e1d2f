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

Note [What is turned]: an operand whose neighbours in memory are none in shared memory is stored one
element after the other, and threads of a warp may meet in one of its 32 banks of 4 bytes, which
serve one after the other. Bytes suffer most: 16 stores for each access.

Note [Tiles on their way]: threads load the next tile into registers, and store that; or they start
copies (`cp.async`, sm_80), which need no registers, one instruction instead of two, and may be of
several tiles: a turn then takes only a share of the time that a tile takes from memory. A copy
moves 16 bytes as they are, so that is for operands that nothing is made of before they are
multiplied, and that lie in memory as in shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import ClassVar, Protocol

from stagejit.base.records import record
from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import Occupancy, occupancy
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.types import DType, f32

_ACCESS_NBYTES = 16
_SCHEDULERS, _LATENCY = 4, 4  # of a multiprocessor; cycles until a multiply-add is there
_SHARED_NBYTES_A_CYCLE, _BANKS = 128, 32
_READ_CYCLES = 2.0  # of shared memory, for 16 bytes in each thread of a warp
_ALONE = 0.25  # of a warp's time, in which it waits for shared memory and barriers
_MEMORY = 600.0  # cycles until what threads load ahead is there
_SATURATES = 0.5  # multiprocessors that have all that the last cache gives
_AROUND = 60  # instructions of a thread around the steps of a tile; cycles until all are there
_BESIDE = 40  # registers for places, numbers of steps, what is loaded ahead
_OF_PLACE = 3  # registers of an element that is loaded alone: where it lies, whether it is one
_MOST_REGISTERS = 224
COPIES = 0, 1, 2, 3
_MOST_STAGED_NBYTES, _MOST_TURNS = 64, 8  # of an operand that a thread loads ahead; accesses


@record
class Units:
    """A block has `down` x `across` units of `height` x `width` sums each. members: threads of a
    unit."""

    down: int
    across: int
    height: int
    width: int
    members: ClassVar[int]

    @property
    def rows(self) -> int:
        return self.down * self.height

    @property
    def columns(self) -> int:
        return self.across * self.width

    @property
    def threads(self) -> int:
        return self.down * self.across * self.members

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.height * self.width // self.members

    def corner(self, unit: Register) -> tuple[Register, Register]:
        """The first row and column of a unit in the block."""
        return unit // self.across * self.height, unit % self.across * self.width


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

    @property
    def sums(self) -> int:
        """Of a thread."""
        ...

    @property
    def operand(self) -> DType:
        """The type of both operands in shared memory."""
        ...

    @property
    def copies(self) -> int:
        """Tiles on their way by copies; 0: threads load one."""
        ...

    def by_rows(self, sides: Sides) -> tuple[bool, bool]:
        """Whether the steps of a row, of a column lie together in shared memory."""
        ...

    def room(self, extent: int, itemsize: int) -> int:
        """Elements of shared memory that one tile of an operand takes."""
        ...


@record
class Load:
    """How a tile of an operand, with `extent` rows or columns, comes to shared memory: each thread
    moves `lanes` neighbours at once, `often`. kept: why no copy brings it; nothing if one does."""

    extent: int
    lanes: int
    often: int
    kept: str


@record
class Tile:
    """A block has `rows` x `columns` sums and takes `depth` steps at a time; a thread has `height`
    x `width` of them, in groups of `lanes` neighbours. copies, operand: see `Shape`."""

    rows: int
    columns: int
    depth: int
    height: int
    width: int
    lanes: int
    copies: int = 0
    operand: DType = f32

    @property
    def sums(self) -> int:
        return self.height * self.width

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

    def by_rows(self, sides: Sides) -> tuple[bool, bool]:
        return False, False

    def room(self, extent: int, itemsize: int) -> int:
        return self.depth * pitch(extent, itemsize)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} sums a block, {self.height} x {self.width} a thread, "
            f"{self.depth} steps at a time{on_their_way(self)}"
        )


def tiles(dtype: DType) -> Iterator[Tile]:
    """All that there are for sums of a type."""
    lanes = _ACCESS_NBYTES // dtype.itemsize
    sizes = {(8, 8), (8, 4), (4, 8), (4, 4)} if lanes > 1 else {(4, 4), (4, 2), (2, 4)}
    threads = (8, 16), (16, 8), (16, 16), (8, 8), (4, 16), (16, 4), (32, 8), (8, 32), (4, 8), (8, 4)
    for (height, width), (down, across), depth, copies in itertools.product(
        sorted(sizes, reverse=True), threads, (8, 16, 32), COPIES
    ):
        group = min(lanes, height, width)
        yield Tile(down * height, across * width, depth, height, width, group, copies, dtype)


def on_their_way(tile: Shape) -> str:
    return f", {tile.copies + 1} tiles in shared memory" if tile.copies else ""


def pitch(extent: int, itemsize: int) -> int:
    """Elements from step to step in shared memory: rows of a step move by one access, so that
    stores along the steps meet fewer banks twice."""
    return extent + _ACCESS_NBYTES // itemsize


def shared_nbytes(tile: Shape) -> int:
    """Of the tiles of each operand: those on their way, and one that is multiplied."""
    count, itemsize = max(tile.copies, 1) + 1, tile.operand.itemsize
    rooms = (tile.room(extent, itemsize) for extent in (tile.rows, tile.columns))
    return sum(count * room * itemsize for room in rooms)


def accesses(side: Side, extent: int, tile: Shape) -> tuple[int, int]:
    """(neighbours that a thread loads at once, how often it does) of a tile of an operand."""
    lanes = side.lanes
    while lanes > 1 and extent * tile.depth % (lanes * tile.threads):
        lanes //= 2
    return lanes, -(-extent * tile.depth // (lanes * tile.threads))


def fits(sides: Sides, tile: Tile, device: Device) -> bool:
    """Whether threads share the loads evenly, and there is enough of everything."""
    return (
        shares_loads(sides, tile)
        and tile.down % tile.warp[0] == 0
        and shared_nbytes(tile) <= device.block_shared_nbytes
        and registers(sides, tile) <= _MOST_REGISTERS
    )


def shares_loads(sides: Sides, tile: Shape) -> bool:
    """Whether all threads have equally many loads of each operand, and few; where tiles are on
    their way by copies, whether there are any, and more tiles than that."""
    loads, itemsize = loads_of(sides, tile), tile.operand.itemsize
    if tile.copies and (all(load.kept for load in loads) or tile.copies >= turns_of(sides, tile)):
        return False
    return all(
        load.lanes * load.often * tile.threads == tile.depth * load.extent
        and load.often <= _MOST_TURNS
        and not (load.kept and load.often * load.lanes * itemsize > _MOST_STAGED_NBYTES)
        for load in loads
    )


def turns_of(sides: Sides, tile: Shape) -> int:
    return -(-sides.step.extent // tile.depth)


def loads_of(sides: Sides, tile: Shape) -> tuple[Load, Load]:
    """Of each operand."""

    def load(side: Side, extent: int, by_rows: bool) -> Load:
        lanes, often = accesses(side, extent, tile)
        return Load(extent, lanes, often, _kept(tile, side, lanes, by_rows))

    left, right = tile.by_rows(sides)
    return load(sides.rows, tile.rows, left), load(sides.columns, tile.columns, right)


def _kept(tile: Shape, side: Side, lanes: int, by_rows: bool) -> str:
    """Why threads load an operand, and do not copy it. See Note [Tiles on their way]."""
    shared = tile.operand
    if not tile.copies:
        return "the next tile is loaded ahead"
    if not side.read.is_bare:
        return "it is computed as it is loaded"
    if element_type(side.read.value.type.dtype) != element_type(shared):
        return f"it is converted to {shared}"
    if side.along_steps != by_rows:
        return "it is turned on its way"
    if lanes * shared.itemsize != _ACCESS_NBYTES:
        return f"{lanes} neighbours of {shared} are no {_ACCESS_NBYTES} bytes"
    return ""


def stored_cycles(sides: Sides, tile: Shape) -> float:
    """That shared memory takes to get the tiles of a turn. See Note [What is turned]."""
    loads, by_rows = loads_of(sides, tile), tile.by_rows(sides)
    both = zip((sides.rows, sides.columns), loads, by_rows, strict=True)
    return sum(_stored(side, load, tile, along) for side, load, along in both)


def _stored(side: Side, load: Load, tile: Shape, by_rows: bool) -> float:
    itemsize = tile.operand.itemsize
    if side.along_steps == by_rows:
        return load.extent * tile.depth * itemsize / _SHARED_NBYTES_A_CYCLE
    along, across = (tile.depth, load.extent) if side.along_steps else (load.extent, tile.depth)
    meeting = _meeting(max(along // load.lanes, 1), load.lanes, pitch(across, itemsize), itemsize)
    return tile.threads / WARP * load.often * load.lanes * meeting


@cache
def _meeting(along: int, lanes: int, line: int, itemsize: int) -> int:
    """How many words of a bank a warp stores at once, of what is turned. along: threads that follow
    each other in memory, each with `lanes` lines of shared memory of `line` elements."""
    places = (t % along * lanes * line + t // along for t in range(WARP))
    nbytes = (place * itemsize + at for place in places for at in range(itemsize))
    banks = Counter(word % _BANKS for word in {byte // 4 for byte in nbytes})
    return max(banks.values())


def registers(sides: Sides, tile: Tile) -> int:
    """Of a thread, about."""
    staged = sum(
        load.lanes * load.often + (_OF_PLACE * load.often if load.lanes == 1 else 0)
        for load in loads_of(sides, tile)
        if load.kept
    )
    held = tile.sums + 2 * (tile.height + tile.width) + staged
    return tile.operand.itemsize // 4 * held + _BESIDE


def tile_seconds(sides: Sides, tile: Tile, device: Device) -> float:
    """See Note [What a tile costs]."""
    warps, dtype = tile.threads // WARP, tile.operand
    rate = 1.0 if dtype.is_float else 0.5  # of f32; half as many f64, or products of integers
    multiply = tile.sums * tile.depth * (dtype.itemsize // 4) / rate
    reads = -(-tile.height // tile.lanes) + -(-tile.width // tile.lanes)
    issue = warps * (multiply + reads * tile.depth + _AROUND) / _SCHEDULERS
    shared = warps * reads * tile.depth * _READ_CYCLES * _per_access(tile)
    shared += stored_cycles(sides, tile)
    held = occupancy(device, tile.threads, registers(sides, tile), shared_nbytes(tile))
    independent = tile.sums / _LATENCY
    return turns_seconds(sides, tile, device, held, max(issue, shared), independent)


def turns_seconds(
    sides: Sides, tile: Shape, device: Device, held: Occupancy, busy: float, independent: float
) -> float:
    """Of all turns of all blocks. busy: cycles that a turn of one block keeps a multiprocessor;
    independent: multiply-adds of a warp whose results others do not wait for."""
    if not held.blocks:
        return math.inf
    batch = math.prod(var.extent for var in sides.batch)
    rows, columns = sides.rows.number.extent, sides.columns.number.extent
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
    turns, loads = turns_of(sides, tile), loads_of(sides, tile)
    ahead = tile.copies if tile.copies and not any(load.kept for load in loads) else 1
    around = _AROUND + sum(load.often * (2 if load.kept else 1) for load in loads)
    busiest = -(-blocks // device.cores)
    rounds = -(-busiest // held.blocks)
    warps = min(held.blocks, busiest) * tile.threads / WARP / _SCHEDULERS
    speed = min(warps * independent, 1.0) * warps / (warps + _ALONE)
    cycles = max(busiest * turns * busy / speed, rounds * turns * _MEMORY / ahead)
    cycles += rounds * (turns * around + 2 * _MEMORY)  # the first tile, and what is stored
    moved = blocks * turns * tile.depth * (tile.rows + tile.columns) * tile.operand.itemsize
    clock = device.peak_flops / 256
    return max(cycles / clock, moved / (_SATURATES * device.cores * device.cache_bandwidth))


def _per_access(tile: Tile) -> float:
    return tile.lanes * tile.operand.itemsize / _ACCESS_NBYTES
