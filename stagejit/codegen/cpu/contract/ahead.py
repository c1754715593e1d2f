"""Fetching of operands that stream from memory, a few blocks of the reduction ahead.

Input: the micro-kernel of a tile, where its loops stand. Output: prefetches. Invariant: hints only.
"""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.codegen.cpu.contract.microkernel import MicroKernel
from stagejit.codegen.cpu.contract.packing import View
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.index.affine import Var


def fetch_ahead(kernel: MicroKernel, sizes: Mapping[Var, int]) -> None:
    """Each tile of `sizes` units fetches its share of both operands for a later block of the
    reduction: whole rows of the vector operand, and what the other holds of this tile's rows."""
    tiling, emitter = kernel.tiling, kernel.emitter
    lane, axis = tiling.lane, tiling.blocked
    assert lane is not None
    assert axis is not None
    line = 64 // kernel.dtype.itemsize
    for view in kernel.operands:
        vector = lane in view.depends
        if not vector and view.strides.get(axis) != 1:
            continue
        share, first = _share(kernel, view, axis)
        ahead = view.constant({axis: tiling.k_block * (tiling.ahead if vector else 1)})
        first = kernel.start(view) + first + ahead
        along = lane if vector else next(iter(v for v in sizes if v in view.depends), lane)
        for step in range(0, share, 1 if vector else line):
            for unit in range(sizes[along]):
                moved = unit * (tiling.lanes if vector else 1)
                offset = view.constant({axis: step, along: moved})
                emitter.b.prefetch(view.buffer, first + offset, locality=2)


def _share(kernel: MicroKernel, view: View, axis: Var) -> tuple[int, Register]:
    """Steps of the reduction that one tile fetches of an operand, and the offset of the first: the
    tiles that read the same rows divide them."""
    tiling, emitter = kernel.tiling, kernel.emitter
    others = [split for split in tiling.splits if split.var not in view.depends]
    longest = max(others, key=lambda split: split.block, default=None)
    if longest is None:
        return tiling.k_block, emitter.b.const(0)
    share = -(-tiling.k_block // longest.block)
    return share, emitter.groups[longest.var] * (share * view.constant({axis: 1}))
