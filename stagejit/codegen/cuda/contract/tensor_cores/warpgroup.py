"""Tiles whose sums warpgroups multiply from shared memory.

Input: a plan, its sides, a `GroupTile`. Output: what `tiled.py` leaves open. Invariant: operands
are of one 16-bit type, and their products exact in f32.

Operands lie in shared memory as they lie in memory, steps or others neighbours, swizzled as
`ir/grid/warpgroups.py` says.

Note [Two tiles ahead]: while the tensor cores multiply a tile, threads store the next one, which
they have in registers, into the other half of shared memory, and load the one after that. The half
is free: its product was waited for before the barrier that ended the turn. What is stored goes past
a fence of proxies before the next barrier, behind which the tensor cores see it.

Note [A product across turns]: where copies bring tiles, a turn's product goes on while the next
turn waits at its barrier and begins its own, so that tensor cores always have the next one. A turn
waits for its tile's copies, passes a fence of proxies and the barrier, begins its product, starts
the tile that is `ahead` turns later, and waits for the product of the turn before. That tile goes
to the place of the tile two turns ago, whose product all threads had waited for before they came to
this turn's barrier. So there are two places more than tiles on their way.
"""

from __future__ import annotations

from stagejit.codegen.cuda.contract.numbers import each
from stagejit.codegen.cuda.contract.staging import Copying, Loading, Staging
from stagejit.codegen.cuda.contract.tensor_cores.warpgroup_tile import GroupTile
from stagejit.codegen.cuda.contract.tiled import TiledSums
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.grid.warpgroups import ALIGNMENT, WARPGROUP, SwizzledMatrix
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register


class Swizzled(Staging):
    """One operand of a tile, where tensor cores read it themselves."""

    tile: GroupTile

    @property
    def matrix(self) -> SwizzledMatrix:
        return SwizzledMatrix(self.by_rows, self.extent if self.by_rows else self.tile.depth)

    @property
    def size(self) -> int:
        return self.extent * self.tile.depth

    def room(self) -> Buffer:
        size = self.tile.places * self.size
        return self.emitter.shared(self.name, self.elem, size, alignment=ALIGNMENT)

    def first(self, which: Register, row: Register, step: int) -> Register:
        """Where a matrix begins, of a row (or column) that begins a strip or an atom."""
        place: Register = self.matrix.offset(row, self.b.const(step))
        return which * self.size + place

    def place(self, which: Register, row: Register, step: Register) -> Register:
        place: Register = self.matrix.place(row, step)
        return which * self.size + place


class SwizzledLoading(Swizzled, Loading):
    """Through registers."""


class SwizzledCopying(Swizzled, Copying):
    """By copies."""


class WarpgroupSums(TiledSums):
    """Each warpgroup has a tile of the block's."""

    loading, copying = SwizzledLoading, SwizzledCopying
    rows: Swizzled
    columns: Swizzled
    tile: GroupTile

    def _corner(self) -> tuple[Register, Register]:
        """The first row and column of this thread's warpgroup in the tile."""
        return self.tile.corner(self.b.thread_of_block() // WARPGROUP)

    # ---------------------------------------------------------------- turns

    def _first(self) -> None:
        b, depth = self.b, self.tile.depth
        if self.tile.copies:
            for number in range(self.tile.copies):
                self._copy(b.const(number * depth), b.const(number))
            return
        self._start(b.const(0), b.const(0))
        self._finish(b.const(0))
        b.proxy_fence()
        self._if_there(b.const(depth), lambda: self._start(b.const(depth), b.const(1)))
        b.barrier()

    def _turn(self) -> None:
        """See Note [Two tiles ahead], and Note [A product across turns]."""
        b, depth, copies = self.b, self.tile.depth, self.tile.copies
        at = self.elements.position.env[self.sides.step]
        if copies:
            b.wait_for_copies(copies - 1)
            b.proxy_fence()
            b.barrier()
            self._multiply(at // depth % self.tile.places)
            self._copy(at + copies * depth, (at // depth + copies) % self.tile.places)
            b.wgmma_wait(self.sums, 1)
            return
        which = at // depth % 2
        self._multiply(which)

        def fill() -> None:
            self._finish(which ^ 1)
            b.proxy_fence()

        self._if_there(at + depth, fill)
        self._if_there(at + 2 * depth, lambda: self._start(at + 2 * depth, which))
        b.wgmma_wait(self.sums)
        b.barrier()

    def _copy(self, first: Register, which: Register) -> None:
        """The tile whose steps begin at `first`, if there is one, is on its way; a group."""
        self._if_there(first, lambda: self._start(first, which))
        self.b.commit_copies()

    def _multiply(self, which: Register) -> None:
        """Begins to."""
        b, tile, (row, column) = self.b, self.tile, self._corner()
        b.wgmma_fence(self.sums)
        for step in range(0, tile.depth, tile.product.k):
            right = self.columns.first(which, column, step)
            for i in range(tile.down_products):
                left = self.rows.first(which, row + i * tile.product.m, step)
                b.wgmma(
                    tile.product, self.sums, i * tile.product.sums,
                    (self.rows.matrix, self.rows.shared, left),
                    (self.columns.matrix, self.columns.shared, right),
                )  # fmt: skip
        b.wgmma_commit()

    # ---------------------------------------------------------------- what is stored

    def _store(self) -> None:
        """A thread has two neighbours of each 8 columns, in its row and in the one 8 further
        down."""
        b, tile, (row, column) = self.b, self.tile, self._corner()
        if tile.copies:
            b.wait_for_copies()  # empty groups
            b.wgmma_wait(self.sums)
            b.barrier()
        warp, lane = b.warp() % (WARPGROUP // WARP), b.lane()
        lanes = min(self.sides.lanes, 2)

        def products(i: Register) -> None:
            def pair(number: Register) -> None:
                j, half = number // 2, number % 2
                down = row + i * tile.product.m + warp * 16 + half * 8 + lane // 4
                along = column + j * 8 + lane % 4 * 2
                at = i * tile.product.sums + number * 2
                for k in range(0, 2, lanes):
                    self._store_at(down, along + k, at + k, lanes)

            each(b, tile.width // 4, pair)

        each(b, tile.down_products, products)
