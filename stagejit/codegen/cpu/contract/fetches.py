"""What a step of a register tile asks for of what is read later.

Input: the tile, where its step stands. Output: prefetches. Invariant: they change no value, and may
ask for what lies behind an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from stagejit.base.records import record
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.cpu.contract.tiling import NextTile, Steps, Tiling
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.groups import Split
from stagejit.index.affine import Var
from stagejit.types import DType


@record(eq=False)
class Fetches:
    """Of one step of a tile of `sizes`, whose operands begin at `starts` and are read at `offsets`.
    dtype: of its sums, at `points`."""

    emitter: Emitter
    tiling: Tiling
    operands: tuple[View, View]
    dtype: DType
    sizes: Mapping[Var, int]
    points: Sequence[Mapping[Var, int]]
    starts: Sequence[Register]
    loops: Sequence[Steps]
    offsets: Sequence[Register]

    def of_step(self) -> None:
        """What is asked for as a step begins."""
        tiling = self.tiling
        if tiling.ahead:
            self._next_block()
        if tiling.near and self.loops:
            self._near(self.loops[-1])
        if tiling.next_tile is not None and not tiling.across:
            self._next_rows(tiling.next_tile)

    def beside(self, operand: int, at: Register) -> None:
        """What is asked for as a vector of an operand is read."""
        asked = self.tiling.next_tile
        if asked is not None and asked.operand == operand and self.tiling.across:
            view, rows = self.operands[operand], self.sizes[asked.along] * asked.tiles
            self.emitter.b.prefetch(view.buffer, at + view.constant({asked.along: rows}))

    def _next_rows(self, asked: NextTile) -> None:
        """Of the rows of another tile, a piece each step, in the order of memory."""
        view, rows = self.operands[asked.operand], self.sizes[asked.along]
        step = self.emitter.elements.position.env[self.loops[-1].var]
        first = view.constant({asked.along: rows * asked.tiles})
        self._lines(view, self.starts[asked.operand] + first + step * rows, rows)

    def _next_block(self) -> None:
        """What the next block reads of the vector operand, so that lines come from memory one by
        one. Tiles that read the same vectors share it: where these run on from step to step, a
        piece of memory each; otherwise the first ones fetch what their step of it reads."""
        tiling, b, groups = self.tiling, self.emitter.b, self.emitter.groups
        lane, axis = tiling.lane, tiling.blocked
        assert lane is not None
        assert axis is not None
        for number, view in enumerate(self.operands):
            if lane not in view.depends:
                continue
            others = [split for split in tiling.splits if split.var not in view.depends]
            rows = max(others, key=lambda split: split.block, default=None)
            vectors, group, share = self.sizes[lane], b.const(0), self.sizes[lane]
            if [loop.moves[number] for loop in self.loops] == [tiling.row]:
                self._piece(view, self.starts[number], self.loops[0].var, rows)
                continue
            if rows is not None:
                group, share = groups[rows.var], -(-vectors // rows.block)
            for turn in range(share):
                vector = group * share + turn
                at = vector * tiling.lanes + view.constant({axis: tiling.k_block})
                at = b.select(b.compare("lt", vector, vectors), at, b.const(0))
                b.prefetch(view.buffer, self.offsets[number] + at, locality=2)

    def _piece(self, view: View, start: Register, steps: Var, rows: Split | None) -> None:
        """Of the block that lies behind this one, the part of a step of a group of rows."""
        tiling, step = self.tiling, self.emitter.elements.position.env[steps]
        share = -(-tiling.row // (1 if rows is None else rows.block))
        if rows is not None:
            step = step + self.emitter.groups[rows.var] * tiling.k_block
        self._lines(view, start + tiling.k_block * tiling.row + step * share, share)

    def _lines(self, view: View, first: Register, elements: int) -> None:
        """A piece of memory, to the second cache."""
        for at in range(0, elements, self._line(view)):
            self.emitter.b.prefetch(view.buffer, first + at, locality=2)

    def _line(self, view: View) -> int:
        """Elements of one."""
        return max(self.tiling.line_nbytes // view.dtype.itemsize, 1)

    def _near(self, loop: Steps) -> None:
        """What a later step reads of vectors that follow each other, a line at a time: of each
        panel, where these are widened. Others come as fast if the first one is asked for."""
        tiling, lane = self.tiling, self.tiling.lane
        locality = 3 if tiling.near_cache == 1 else 2
        for view, offset, move in zip(self.operands, self.offsets, loop.moves, strict=True):
            if lane in view.depends and move == tiling.row:
                panels = sorted({view.constant({**point, lane: 0}) for point in self.points})
                panels = panels if view.dtype is not self.dtype else panels[:1]
                within = range(0, self.sizes[lane] * tiling.lanes, self._line(view))
                for panel, at in itertools.product(panels, within):
                    ahead = move * tiling.near + panel + at
                    self.emitter.b.prefetch(view.buffer, offset + ahead, locality=locality)
