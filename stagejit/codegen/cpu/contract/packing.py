"""Scratch for the block of an operand that an item needs, in the order its register tiles read.

Input: an operand's `Source`, the largest blocks of the axes. Output: the layout of the block, and a
`View` of it; `pack_fill.py` fills it. Invariant: whole vectors past the end of the lane axis stay
inside the scratch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stagejit.codegen.cpu.contract.microkernel import Phased, View
from stagejit.codegen.cpu.contract.tiling import Source, Tiling
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.index.affine import Var
from stagejit.types import DType


@dataclass(frozen=True)
class Dim:
    """One dimension of the packed block.

    source: the variable that walks the operand. length: positions in the block (constant upper
    bound). Axes reach position `sum(coeffs * axis)`, counted from the block's start. before:
    see `Window`; a plain axis has coefficient 1 and no border.
    """

    source: Var
    coeffs: Mapping[Var, int]
    length: int
    stride: int = 0
    modulus: int = 1
    plane: int = 0
    before: int = 0
    window: bool = False


class Packing:
    """Scratch for one operand; `pack_fill.Fill` fills it."""

    def __init__(
        self,
        b: Builder,
        source: Source,
        tiling: Tiling,
        extents: Mapping[Var, int],
        dtype: DType,
        name: str,
    ) -> None:
        self.b, self.source, self.tiling, self.dtype = b, source, tiling, dtype
        self.dims, self.size = _layout(source, tiling, extents, dtype)
        self.buffer: Buffer = b.scratch(name, element_type(dtype), self.size)

    def view(self) -> View:
        """How register tiles read the block: axes count from the start of their block."""
        strides: dict[Var, int] = {}
        phased = []
        for dim in self.dims:
            if dim.modulus > 1:
                phased.append(Phased(dim.coeffs, dim.modulus, dim.plane, dim.stride))
                continue
            for axis, coeff in dim.coeffs.items():
                strides[axis] = strides.get(axis, 0) + coeff * dim.stride
        return View(
            self.buffer,
            self.dtype,
            strides,
            lambda: self.b.const(0),
            self.source.depends,
            padded=True,
            phased=tuple(phased),
        )


def _layout(
    source: Source, tiling: Tiling, extents: Mapping[Var, int], dtype: DType
) -> tuple[list[Dim], int]:
    """Dimensions in storage order, innermost last, and the number of elements."""
    dims = _dims(source, extents)
    lane = tiling.lane
    if source.memory is not None:
        memory = source.memory
        dims.sort(key=lambda dim: -abs(memory.coeff(dim.source)) or -math.inf)
    if lane in source.depends:
        dims.sort(key=lambda dim: lane in dim.coeffs)
    line = max(64 // dtype.itemsize, 1)
    placed: list[Dim] = []
    size = 1
    for position, dim in enumerate(reversed(dims)):
        modulus = 1
        if position == 0 and lane is not None and dim.coeffs.get(lane, 0) > 1:
            modulus = dim.coeffs[lane]
        per_plane = -(-dim.length // modulus)
        if position == 0 and lane in dim.coeffs:
            # An odd number of lines: rows then start on different cache sets.
            per_plane = (-(-per_plane // line) // 2 * 2 + 1) * line
        placed.append(
            Dim(
                dim.source,
                dim.coeffs,
                dim.length,
                size,
                modulus,
                size * per_plane,
                dim.before,
                dim.window,
            )
        )
        size *= per_plane * modulus
    return placed[::-1], -(-size // line) * line + line


def _dims(source: Source, extents: Mapping[Var, int]) -> list[Dim]:
    dims, seen = [], set()
    for part in source.index:
        for var in sorted(part.loop_vars(), key=lambda var: var.id):
            if var in seen:
                continue
            seen.add(var)
            window = source.windows.get(var)
            if window is None:
                dims.append(Dim(var, {var: 1}, extents.get(var, var.extent)))
                continue
            coeffs = dict(window.at.terms)
            length = 1 + sum(c * (extents.get(v, v.extent) - 1) for v, c in coeffs.items())
            dims.append(
                Dim(
                    var,
                    coeffs,
                    length,
                    before=window.before - window.at.const,
                    window=True,
                )
            )
    return dims
