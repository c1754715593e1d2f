"""Tiles of words in registers of whole matrices.

Input: as for `tiles.py`; rows of one operand have words of the summed axis side by side, rows of
the other one the lanes. Output: a statement that adds a block of the reduction to the sums.
Invariant: bytes are read with the signs that they have; no bits are flipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagejit.codegen.contraction.nest import Quads
from stagejit.codegen.cpu.contract.microkernel import Around, MicroKernel, SumTile
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.ir.byte_matrices import ByteMatrices, Rows
from stagejit.codegen.ir.nodes import I1
from stagejit.codegen.nest.tree import Do, Node
from stagejit.index.affine import Var


class MatrixKernel(MicroKernel):
    """Its tiles are products of matrices."""

    @property
    def quads(self) -> Quads:
        assert self.nest.quads is not None
        return self.nest.quads

    @property
    def wide(self) -> int:
        """The number of the operand with the lanes."""
        return int(self.tiling.lane in self.nest.right.depends)

    @property
    def rows(self) -> Var | None:
        """The axis beside the lanes, if a tile has more than one position of any."""
        several = [split.var for split in self.tiling.splits if split.most > 1]
        return next((var for var in several if var is not self.tiling.lane), None)

    def tile(self, sizes: Mapping[Var, int]) -> SumTile:
        return _MatrixTile(self, sizes)


class _MatrixTile(SumTile):
    kernel: MatrixKernel

    def node(self, around: Sequence[Around]) -> Node:
        return Do("multiply matrices", self._multiply)

    def _multiply(self) -> None:
        kernel, tiling, emitter = self.kernel, self.tiling, self.emitter
        lane, axis, depth, wide = tiling.lane, kernel.rows, tiling.depth, kernel.wide
        assert lane is not None
        columns = self.sizes[lane] * tiling.lanes
        if emitter.elements.position.mask is not None:  # of the last vector
            columns -= -lane.extent % tiling.lanes
        views = (kernel.operands[1 - wide], kernel.operands[wide], kernel.panel)
        beside, deep, sums = views[0], views[1].strides[kernel.quads.var], views[2]

        def row(view: View) -> int:
            return 0 if axis is None else view.strides[axis]

        one, other = kernel.quads.signed[1 - wide], kernel.quads.signed[wide]
        shape = ByteMatrices(
            1 if axis is None else self.sizes[axis], columns, depth,
            Rows(row(beside), depth), Rows(deep, deep * depth), Rows(row(sums)), (one, other),
        )  # fmt: skip
        left, right, total = ((view.buffer, kernel.start(view)) for view in views)
        steps, first = emitter.span(kernel.quads.var).length // depth, kernel.first()
        adds = self.b.const(0, I1) if first is None else ~first
        self.b.multiply_bytes(shape, left, right, total, steps, adds)
