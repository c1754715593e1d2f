"""Tiles whose sums warps multiply by tensor cores.

Input: a plan, its sides, a `WarpTile`. Output: what `tiled.py` leaves open. Invariant: products are
as exact as was promised, see `warp_tile.py`.

Operands lie in shared memory as they lie in memory, but for bytes, in rows or columns of 16 bytes
that begin at whole accesses, so that a warp loads fragments by `ldmatrix`, which can turn those of
16 bits. Rows of shared memory are one access longer than they need to be: eight of them then meet
different banks.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.cuda.contract.numbers import each
from stagejit.codegen.cuda.contract.plan import Plan
from stagejit.codegen.cuda.contract.sides import Sides
from stagejit.codegen.cuda.contract.staging import Staging
from stagejit.codegen.cuda.contract.tensor_cores.warp_tile import WarpTile
from stagejit.codegen.cuda.contract.tiled import TiledSums
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.grid.matrix_tiles import Role
from stagejit.codegen.ir.nodes import Value as Register


class FragmentSums(TiledSums):
    """Each warp has a tile of the block's."""

    tile: WarpTile

    def __init__(
        self, plan: Plan, sides: Sides, tile: WarpTile, emitter: ThreadEmitter,
        memory: Sequence[Memory],
    ) -> None:  # fmt: skip
        super().__init__(plan, sides, tile, emitter, memory)
        # Its a is the left operand; which one has the rows depends on the nest.
        turned = sides.rows.read is plan.sources[1]
        self.matrix = tile.matrix.turned if turned else tile.matrix

    # ---------------------------------------------------------------- one tile

    def _multiply(self, which: Register) -> None:
        each(self.b, self.tile.depth // self.matrix.k, lambda step: self._step(which, step))

    def _step(self, which: Register, number: Register) -> None:
        """As many steps as a fragment has."""
        b, matrix = self.b, self.matrix
        step, (row, column) = number * matrix.k, self.tile.corner(self.b.warp())
        left = [
            self._fragment("a", self.rows, self.rows.place(which, row + i * matrix.m, step))
            for i in range(self.tile.down_fragments)
        ]

        def of_column(j: Register) -> None:
            place = self.columns.place(which, column + j * matrix.n, step)
            right = self._fragment("b", self.columns, place)
            for i, own in enumerate(left):
                at, lanes = self._at(i, j), matrix.fragment("c").lanes
                aligned = lanes * self.dtype.itemsize
                total = b.load(self.sums, at, lanes, alignment=aligned)
                total = b.tile_product(matrix, own, right, total)
                b.store(total, self.sums, at, alignment=aligned)

        each(b, self.tile.across_fragments, of_column)

    def _fragment(self, role: Role, staging: Staging, place: Register) -> Register:
        """Of an operand: steps are columns of the left one, rows of the right one."""
        steps, others = (1, staging.pitch) if staging.by_rows else (staging.pitch, 1)
        strides = (others, steps) if role == "a" else (steps, others)
        return self.b.tile_load(self.matrix, role, staging.shared, place, strides, whole=True)

    def _at(self, i: int | Register, j: Register) -> Register:
        """The first of a thread's sums of a fragment."""
        return (i * self.tile.across_fragments + j) * self.matrix.fragment("c").lanes

    # ---------------------------------------------------------------- what is stored

    def _store(self) -> None:
        """A thread has two neighbours in a row of a fragment, and two in the row 8 further down, if
        there is one."""
        b, matrix, (row, column) = self.b, self.matrix, self.tile.corner(self.b.warp())
        group, member = b.lane() // 4, b.lane() % 4
        lanes, halves = min(self.sides.lanes, 2), matrix.m // 8

        def fragments(i: Register) -> None:
            def pair(number: Register) -> None:
                j, half = number // halves, number % halves
                down = row + i * matrix.m + half * 8 + group
                along = column + j * matrix.n + member * 2
                at = self._at(i, j) + half * 2
                for k in range(0, 2, lanes):
                    self._store_at(down, along + k, at + k, lanes)

            each(b, halves * self.tile.across_fragments, pair)

        each(b, self.tile.down_fragments, fragments)
