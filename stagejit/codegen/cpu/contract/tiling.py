"""How a contraction nest runs: the sources of its operands, the cuts of its axes, the tiling.

Input: built by `tiles/`. Output: read by packing and code generation.
Invariant: plain data; any tiling gives the right values, some give them sooner.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from stagejit.base.records import record
from stagejit.base.threads.locks import remembered
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.spans import Span
from stagejit.index.affine import Affine, Var


class NextTile(NamedTuple):
    """What tiles ask for: what the one after so many `tiles` `along` an axis reads of the operand
    with this number, which lies behind their own."""

    operand: int
    along: Var
    tiles: int = 1


@record
class Tiling:
    """How a nest runs.

    lane: the axis of the vector lanes, a reduction axis for dot products; None: scalars. splits:
    one per result axis, outermost loop first. pack: for (left, right), whether to copy into scratch
    first. reduce: reduction axes, outermost first. blocked: the one that is cut into blocks of
    `k_block` steps; those before it then take one step a block. ahead: each of them fetches what
    the next one reads of the vector operand. near: how many steps before they read a line that
    follows the one before tiles bring it to the first cache, or to the second one where it comes
    from further away (`near_cache`); 0: it comes when it is read. next_tile: what they bring for
    another one, if anything. cut: the reduction axis of which the last part has fewer steps.
    panels: what is packed with lanes lies tile by tile, see Note [Panels of scratch]. depth: steps
    at once of tiles in registers of matrices; 0: they are in vectors. goes_by_rows: tiles read one
    row of an operand of dot products after the other, because several share a page of memory.
    """

    lane: Var | None
    lanes: int
    splits: tuple[Split, ...]
    pack: tuple[bool, bool]
    reduce: tuple[Var, ...]
    cycles: float
    blocked: Var | None = None
    k_block: int = 0
    ahead: bool = False
    near: int = 0
    near_cache: int = 1
    next_tile: NextTile | None = None
    cut: Var | None = None
    panels: bool = True
    depth: int = 0
    goes_by_rows: bool = False
    line_nbytes: int = 64

    def __str__(self) -> str:
        """For example: 6 x 4 vectors along n of 1024, blocks of 256 steps, right packed."""
        sizes = [split.most for split in self.splits if split.most > 1]
        lane = f" vectors along {self.lane.name} of {self.lane.extent}" if self.lane else " scalars"
        blocks = f", blocks of {self.k_block} steps" if self.blocked else ""
        blocks = f", in matrices of {self.depth} steps{blocks}" if self.depth else blocks
        packed = [side for side, packs in zip(("left", "right"), self.pack, strict=True) if packs]
        return (
            f"{' x '.join(map(str, sizes)) or 1}{lane}{blocks}, "
            f"{' and '.join(packed) or 'nothing'} packed"
        )

    @property
    def fetches(self) -> str:
        """What tiles ask for before they read it; nothing where others do."""
        if self.near:
            into = ("first", "second")[self.near_cache - 1]
            return f"each step brings what is read {self.near} steps later to the {into} cache"
        if self.next_tile is not None:
            side, tiles = ("left", "right")[self.next_tile.operand], self.next_tile.tiles
            which = "the next one" if tiles == 1 else f"the one {tiles} tiles later"
            return f"each tile asks for what {which} reads of the {side} operand"
        return ""

    @property
    def across(self) -> bool:
        """Whether lanes run along the reduction."""
        return self.lane in self.reduce

    @property
    def items(self) -> int:
        return math.prod(split.parts for split in self.splits)

    @property
    def row(self) -> int:
        """Elements along the lanes of the largest tile; 0 where lanes are summed over."""
        return sum(split.most * split.unit for split in self.splits if split.var is self.lane)

    @property
    def k_blocks(self) -> int:
        blocks = 1 if self.blocked is None else -(-self.blocked.extent // self.k_block)
        return blocks * math.prod(var.extent for var in self.serial)

    @property
    def serial(self) -> tuple[Var, ...]:
        """Reduction axes of which a block takes one step."""
        return () if self.blocked is None else self.reduce[: self.reduce.index(self.blocked)]

    @property
    def most_terms(self) -> int:
        """Products in a sum of a block; lanes along the reduction have sums of their own."""
        blocks = {var: self.extents.get(var, var.extent) for var in self.reduce}
        if self.lane in blocks:
            blocks[self.lane] = -(-blocks[self.lane] // self.lanes)
        return math.prod(blocks.values())

    def count(self, var: Var) -> int | None:
        """How many elements of a variable each block has; None where that is not one number."""
        parts = next((split.parts for split in self.splits if split.var is var), None)
        if parts is not None:
            return var.extent if parts == 1 else None
        if var is self.cut and var not in self.serial:
            return None
        if var is self.blocked and var.extent > self.k_block:
            return None if var.extent % self.k_block else self.k_block
        return 1 if var in self.serial else var.extent

    @remembered
    def extents(self) -> dict[Var, int]:
        """The largest block along each axis that is cut."""
        extents = {split.var: split.span for split in self.splits}
        extents.update(dict.fromkeys(self.serial, 1))
        if self.blocked is not None:
            extents[self.blocked] = self.k_block
        return extents


class Shared(NamedTuple):
    """A tiling, and the elements that all of its items move."""

    tiling: Tiling
    traffic: float

    @property
    def items(self) -> int:
        return self.tiling.items


@record
class Steps:
    """One loop of the reduction, over `var`, whose steps move the operands by `moves`.

    axis: where `var` does not tell how many steps there are: the axis whose length times `times`
    does; of its steps only each `apart`-th, from `first` on. vector: lanes run along it.
    """

    var: Var
    moves: tuple[int, int]
    axis: Var | None = None
    times: int = 1
    first: int = 0
    apart: int = 1
    vector: bool = False

    def handed(self, emitter: Emitter) -> dict[Var, Span]:
        """What the loop covers, where that is not all of `var`."""
        if self.axis is None:
            return {}
        trips = emitter.span(self.axis).length * self.times
        if self.apart > 1:
            trips = (trips + (self.apart - 1 - self.first)) // self.apart
        return {self.var: Span.between(emitter.b.const(0), trips)}


def is_direct(nest: Nest, lane: Var | None, stored: Affine) -> bool:
    """Whether tiles can write memory whose offset is `stored`: vectors need neighbours."""
    return lane is None or lane in nest.reduce or stored.coeff(lane) == 1
