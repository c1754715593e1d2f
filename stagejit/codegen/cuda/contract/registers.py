"""Tiles whose sums threads multiply and add one by one.

Input: a plan, its sides, a `Tile`. Output: what `tiled.py` leaves open. Invariant: products of a
sum are added in order, each rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stagejit.codegen.cuda.contract.numbers import each
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Side, Sides
from stagejit.codegen.cuda.contract.single import multiply_add
from stagejit.codegen.cuda.contract.staging import Staging
from stagejit.codegen.cuda.contract.tile import Tile
from stagejit.codegen.cuda.contract.tiled import TiledSums
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register


class RegisterSums(TiledSums):
    """Each thread has rows and columns of the tile, in groups of neighbours."""

    tile: Tile

    def __init__(
        self, plan: Plan, sides: Sides, tile: Tile, emitter: ThreadEmitter, memory: Sequence[Memory]
    ) -> None:
        super().__init__(plan, sides, tile, emitter, memory)
        self.left = self.b.stack("left_of_step", self.elem, tile.height)
        self.right = self.b.stack("right_of_step", self.elem, tile.width)

    def _threads(self) -> tuple[Register, Register]:
        """Where this thread is among those of the block, down and across."""
        b, tile = self.b, self.tile
        down, across = tile.warp
        warp, lane, warps = b.warp(), b.lane(), tile.across // across
        return warp // warps * down + lane // across, warp % warps * across + lane % across

    def _group(self, side: Side, number: Register) -> Register:
        """The first of a group of neighbours that a thread has along a side."""
        tile, (down, across) = self.tile, self._threads()
        of_rows = side is self.sides.rows
        threads, own = (tile.down, down) if of_rows else (tile.across, across)
        return (number * threads + own) * tile.lanes

    def _multiply(self, which: Register) -> None:
        """All steps of a tile in shared memory."""
        each(self.b, self.tile.depth, partial(self._step, which))

    def _step(self, which: Register, step: Register) -> None:
        for staging, own in ((self.rows, self.left), (self.columns, self.right)):
            at = staging.place(which, self.b.const(0), step)
            groups = own.size // self.tile.lanes
            each(self.b, groups, partial(self._read, staging, own, at))
        each(self.b, self.tile.height, self._row)

    def _read(self, staging: Staging, own: Buffer, at: Register, number: Register) -> None:
        """A group of neighbours of one step."""
        place = at + self._group(staging.side, number)
        made = self.b.load(staging.shared, place, self._lanes, alignment=self._aligned)
        self.b.store(made, own, number * self.tile.lanes, alignment=self._aligned)

    def _row(self, i: Register) -> None:
        b, width = self.b, self.tile.width
        x = b.load(self.left, i)

        def column(j: Register) -> None:
            y, at = b.load(self.right, j), i * width + j
            b.store(multiply_add(b, x, y, b.load(self.sums, at)), self.sums, at)

        each(b, width, column)

    @property
    def _lanes(self) -> int:
        return self.tile.lanes if self.tile.lanes > 1 else 0

    @property
    def _aligned(self) -> int:
        return self.tile.lanes * self.dtype.itemsize

    def _store(self) -> None:
        each(self.b, self.tile.height, self._store_row)

    def _store_row(self, i: Register) -> None:
        b, tile, sides = self.b, self.tile, self.sides
        row = self._group(sides.rows, i // tile.lanes) + i % tile.lanes
        lanes = min(sides.lanes, tile.lanes)

        def group(j: Register) -> None:
            first = j * lanes
            column = self._group(sides.columns, first // tile.lanes) + first % tile.lanes
            self._store_at(row, column, i * tile.width + first, lanes)

        each(b, tile.width // lanes, group)
