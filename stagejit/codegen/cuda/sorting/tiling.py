"""`Tiling`: how many records a thread of a block sorts, and how many rows a block has.

Input: rows, what a record takes, a device. Output: the tiling that costs least. Invariant: a tile
fits into the shared memory that a block has without asking; it has whole rows, or one row has
several whole tiles but for its last one.
"""

from __future__ import annotations

import math

from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.sorting.merges import warp_steps
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.sorting.networks import exchanges

_MOST_THREADS, _USUAL_THREADS = 512, 256  # of a block
_MOST_EACH = 11  # records of a thread
_MOST_REGISTERS = 48  # for records: each is there twice where it is exchanged
# Instructions of a warp:
_MOVE, _EXCHANGE, _TAKE, _BISECT, _BARRIER = 12, 6, 10, 12, 20
_SECTOR_NBYTES, _BANKS = 32, 32
_BUSY = 8  # warps of a multiprocessor that keep it busy
# Cycles until the next instruction of a warp that depends on the one before, until a record of the
# workspace is there, and between two launches:
_LATENCY, _FAR, _LAUNCH = 6.0, 400.0, 4000.0


@record
class Tiling:
    """each: records of a thread. members: threads of a row, or of a tile of one; rows: of a block.
    tiles: of a row. merges: how often all of them meet in pairs until one is left."""

    each: int
    members: int
    rows: int
    tiles: int

    @property
    def threads(self) -> int:
        return self.members * self.rows

    @property
    def row_size(self) -> int:
        """Records of a row, or a tile of it, in the block."""
        return self.each * self.members

    @property
    def size(self) -> int:
        return self.each * self.threads

    @property
    def merges(self) -> int:
        return (self.tiles - 1).bit_length()

    def __str__(self) -> str:
        if self.tiles > 1:
            return f"{self.tiles} tiles of {self.size}, {self.each} a thread, {self.merges} merges"
        return f"{self.rows} rows a block, {self.members} threads a row, {self.each} a thread"


@record
class Task:
    """extent: of a row; count: how many are kept. number: of rows. nbytes, words: of a record.
    across: whether neighbours in memory are of neighbouring rows."""

    extent: int
    count: int
    number: int
    nbytes: int
    words: int
    across: bool


def best_tiling(task: Task, device: Device) -> Ranked[Tiling]:
    ways = list(_tilings(task, device))
    return cheapest("sort", ways, lambda way: _cycles(task, way, device), str, "cycles")


def _tilings(task: Task, device: Device) -> list[Tiling]:
    most = min(_MOST_THREADS, device.threads_a_block)
    usual = min(_USUAL_THREADS, device.threads_a_block)
    room = device.static_shared_nbytes // 2 // task.nbytes  # so that two blocks fit anywhere
    registers = task.nbytes // 4
    sizes = [each for each in range(1, _MOST_EACH + 1) if 2 * each * registers <= _MOST_REGISTERS]
    found = []
    for each in sizes or [1]:
        members = 1 << max(-(-task.extent // each) - 1, 0).bit_length()
        rows = max(min(usual // members, room // (each * members)), 1)
        rows = 1 << (min(rows, task.number).bit_length() - 1)
        threads = members * rows
        if threads < WARP:  # a block is whole warps, if some of it has nothing to do
            rows = WARP // members
        if members * rows <= most and each * members * rows <= max(room, WARP):
            found.append(Tiling(each, members, rows, 1))
        threads = usual
        while threads > WARP and each * threads > room:
            threads //= 2
        if each * threads < task.extent:
            found.append(Tiling(each, threads, 1, -(-task.extent // (each * threads))))
    return found


def _cycles(task: Task, tiling: Tiling, device: Device) -> float:
    """Of the whole device. All of it is busy, or what one block does one after the other counts."""
    words, each = task.words, tiling.each
    # Threads read each a record of their own, so many apart in the banks.
    conflicts = math.gcd(each * task.nbytes // task.words // 4, _BANKS)
    moved: float = each * (_MOVE + words * (1 + conflicts))
    if task.across:
        moved *= max(_SECTOR_NBYTES / (4 * tiling.rows), 1)
    take = each * (_TAKE * words + 2 * words * conflicts) + 2 * _BARRIER

    def merging(length: int) -> float:
        return take + math.log2(length) * _BISECT * words

    rounds = tiling.members.bit_length() - 1
    total: float = 2 * moved + len(exchanges(each)) * _EXCHANGE * words
    total += sum(merging(each << level) for level in range(1, rounds + 1))
    kept = min(task.count / min(task.extent, tiling.row_size), 1)
    searched = warp_steps(task.count) * _FAR / _LATENCY
    later = kept * (2 * moved + merging(tiling.row_size)) + searched
    total += tiling.merges * later
    blocks = -(-task.number // tiling.rows) * tiling.tiles
    warps = blocks * tiling.threads / WARP
    busy = min(warps / device.cores / _BUSY, 1)
    issued = total * (_LATENCY if busy < 1 else 1) * max(warps / device.cores / 4, 1)
    return issued + tiling.merges * _LAUNCH
