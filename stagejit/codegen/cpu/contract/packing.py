"""How register tiles read operands: in memory, or from scratch in the order that they need.

Input: an operand's `Source`, the `Tiling`. Output: a `View` of memory or scratch; the layout of an
item's block in scratch, which `pack_fill.py` fills. Invariant: whole vectors past the end of the
lane axis stay inside the scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stagejit.codegen.contraction.nest import Window
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.index.affine import Affine, Var
from stagejit.types import DType


@dataclass(frozen=True)
class Dim:
    """One dimension of the packed block: position p, counted from the block's start, is stored at
    `p % modulus * plane + p // modulus * stride`. A modulus makes strided windows contiguous along
    lanes.

    source: the variable that walks the operand. window: which of its positions axes reach; a plain
    axis reaches its own. length: positions in the block (constant upper bound). times: elements at
    each of the window's positions.
    """

    source: Var
    window: Window
    length: int
    stride: int = 0
    modulus: int = 1
    plane: int = 0
    times: int = 1

    @property
    def axis(self) -> Var | None:
        """The axis whose own positions these are."""
        var = next(iter(self.window.at.vars()), None)
        plain = var is not None and self.window == Window(Affine.of(var), var.extent)
        return var if plain else None


@dataclass(frozen=True)
class View:
    """How the nest reads or writes one array: an element offset per axis.

    base: offset where all axes stand at the start of what the loops handed down. depends: axes that
    choose the element. padded: reading whole vectors past the end of the lane axis stays inside the
    array. phased: dimensions with a modulus.
    """

    buffer: Buffer
    dtype: DType
    strides: Mapping[Var, int]
    base: Callable[[], Register]
    depends: frozenset[Var]
    padded: bool = False
    phased: Sequence[Dim] = ()

    def moved(self, axis: Var, position: Register) -> Register:
        """The change of offset when `axis` moves from its block's start to `position`."""
        offset = position * self.strides.get(axis, 0)
        for dim in self.phased:
            offset = offset + position * (dim.window.at.coeff(axis) // dim.modulus * dim.stride)
        return offset

    def constant(self, steps: Mapping[Var, int]) -> int:
        """The change of offset for constant steps along several axes at once."""
        offset = sum(self.strides.get(axis, 0) * step for axis, step in steps.items())
        for dim in self.phased:
            at = sum(coeff * steps.get(axis, 0) for axis, coeff in dim.window.at.terms)
            offset += at % dim.modulus * dim.plane + at // dim.modulus * dim.stride
        return offset

    def residues(self, axis: Var) -> int:
        """Steps of `axis` after which the offset is linear again (1: it always is)."""
        moduli = ((dim.modulus, dim.window.at.coeff(axis)) for dim in self.phased)
        return math.lcm(*(modulus // math.gcd(coeff, modulus) for modulus, coeff in moduli))


def layout(source: Source, tiling: Tiling, dtype: DType) -> tuple[list[Dim], int]:
    """Dimensions in storage order, innermost last, and the number of elements."""
    lane, memory = tiling.lane, source.memory
    variables = dict.fromkeys(
        var for part in source.index for var in sorted(part.loop_vars(), key=lambda var: var.id)
    )
    windows = {
        var: source.windows.get(var) or Window(Affine.of(var), var.extent) for var in variables
    }
    order = list(windows)
    if memory is not None:
        order.sort(key=lambda var: -abs(memory.coeff(var)) or -math.inf)
    if lane in source.depends:
        order.sort(key=lambda var: lane in windows[var].at.vars())
    line = max(64 // dtype.itemsize, 1)
    placed: list[Dim] = []
    size = 1
    for var in reversed(order):
        window, modulus = windows[var], 1
        dim = Dim(var, window, window.length(tiling.extents), stride=size)
        per_plane = dim.length
        if not placed and lane is not None and lane in window.at.vars():
            modulus = max(window.at.coeff(lane), 1)
            # An odd number of lines: rows then start on different cache sets.
            per_plane = (-(-dim.length // modulus // line) // 2 * 2 + 1) * line
        placed.append(replace(dim, modulus=modulus, plane=size * per_plane))
        size *= per_plane * modulus
    return placed[::-1], -(-size // line) * line + line
