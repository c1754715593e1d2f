"""Register tiles of words of four bytes.

Input: as for `microkernel.py`, of a nest in quads. Output: loops that add the products of bytes to
the sums, and loops that find out first what flipped bits add to them. Invariant: see Note [Signs]
in `contraction/quads.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stagejit.base.records import record, replace
from stagejit.codegen.contraction.nest import Nest
from stagejit.codegen.contraction.quads import FLIPPED
from stagejit.codegen.cpu.contract.microkernel import MicroKernel, SumTile
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import I32
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Node
from stagejit.index.affine import Var
from stagejit.types import i32


@record(eq=False)
class ByteKernel(MicroKernel):
    """flips: what flipped bits add to the sums of each block, if some are. anew: the panel holds
    the sums of one block, not of all."""

    flips: View | None = None
    anew: bool = False

    @property
    def signed(self) -> tuple[bool, bool]:
        """With which signs words are multiplied."""
        assert self.nest.quads is not None
        return self.nest.quads.read(self.nest.flipped(self.tiling.lane))

    def first(self) -> Register | None:
        return None if self.anew else super().first()

    def tile(self, sizes: Mapping[Var, int]) -> SumTile:
        return _ByteTile(self, sizes)


class _ByteTile(SumTile):
    kernel: ByteKernel

    def _totals(self) -> tuple[Register, ...]:
        sums, flips = super()._totals(), self.kernel.flips
        if flips is None:
            return sums
        found, start = list[Register](), self.kernel.start(flips)
        for total, point in zip(sums, self.points, strict=True):
            at, lanes_on = start + flips.constant(point), self.exist(point)
            added = self.b.load(flips.buffer, at, self._lanes(flips), mask=lanes_on)
            if self.tiling.across:  # whose lanes are not summed yet
                added = self.b.insert(self.b.const(0, total.type), added, 0)
            found.append(total - added)
        return tuple(found)

    def _operand(self, view: View, raw: Register) -> Register:
        return raw ^ view.flips if view.flips else raw

    def _multiply_add(
        self, a: Register, b: Register, total: Register, tail: Register | None
    ) -> Register:
        """What lies past the end is zero."""
        return self.b.dot_bytes(a, b, total, self.kernel.signed)


class Flips:
    """What flipped bits add to the sums of each block of the reduction: the products of the operand
    that is read as it is with words of 0x80. `sums` is where they lie."""

    def __init__(
        self, emitter: Emitter, tiling: Tiling, operand: View, nest: Nest, flipped: int
    ) -> None:
        b = emitter.b
        self.splits = tuple(split for split in tiling.splits if split.var in operand.depends)
        own = replace(tiling, splits=self.splits, near=0, ahead=False, next_tile=None)
        strides, size = dict[Var, int](), 1
        for split in reversed(self.splits):
            strides[split.var] = size
            size *= split.span
        start = partial(b.const, 0)  # a view that held all of this would be a cycle
        buffer, axes = b.scratch("flips", I32, size), frozenset(strides)
        self.sums = View(buffer, i32, strides, start, axes, padded=True)
        signs = View(b.table("signs", I32, [FLIPPED]), i32, {}, start, frozenset())
        sides = (signs, operand) if flipped == 0 else (operand, signs)
        self._kernel = ByteKernel(emitter, own, sides, self.sums, nest, 1, anew=True)

    def tile(self, sizes: Mapping[Var, int]) -> Node:
        return self._kernel.tile(sizes).node(())
