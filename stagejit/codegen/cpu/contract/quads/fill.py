"""Fills the packed block of an operand with words of four bytes.

Input: a source in quads, as for `pack_fill.py`. Output: loops that write its scratch. Invariant:
what the last quad lacks is zero, before its first bits are flipped, where they are: see Note
[Signs] in `contraction/quads.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from stagejit.codegen.contraction.nest import QUAD
from stagejit.codegen.contraction.quads import FLIPPED
from stagejit.codegen.contraction.sources import Source
from stagejit.codegen.cpu.contract.pack_fill import Fill
from stagejit.codegen.cpu.contract.packing import Dim
from stagejit.codegen.cpu.contract.tiling import Tiling
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Node
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Index, Var
from stagejit.types import i32


def in_words(elements: Elements, memory: Memory) -> Memory:
    """The same memory, read in words."""
    return Memory(elements.b.words(memory.buffer), memory.base // QUAD)


class WordFill(Fill):
    """Whose elements are words. flips: whether the first bit of each byte is flipped."""

    def __init__(
        self, emitter: Emitter, source: Source, tiling: Tiling, side: int, *, flips: bool
    ) -> None:
        self.flips, self.bytes = FLIPPED if flips else 0, source.bytes
        super().__init__(emitter, source, tiling, i32, side)

    def tree(self) -> Node:
        """Panels have few bytes of each row of memory, which are read as a whole."""
        beside = self.memory is not None and self.memory.coeff(self.dims[-1].source) == 1
        if self.split is not None and beside and self.source.bytes_apart:
            return self._rows_of(self.split)
        return super().tree()

    def _join(self, at: int) -> None:
        """What a last quad lacks is told by its number."""
        quads = self.source.quads
        assert quads is not None
        both = [dim.source for dim in self.dims[at : at + 2]]
        if not quads.rest or quads.var not in both:
            super()._join(at)

    @property
    def border(self) -> int | float:
        return int(self.source.border) % 256 * 0x01010101 ^ self.flips

    def _substitute(self, mapping: Mapping[Var, Affine]) -> None:
        super()._substitute(mapping)
        self.bytes = tuple(tuple(part.substitute(mapping) for part in i) for i in self.bytes)

    def _place(self, memory: Affine, leaf: Value) -> tuple[Memory, Register]:
        place, at = super()._place(memory, leaf)
        return (in_words(self.elements, place), at) if self.source.words else (place, at)

    def _rows_at_once(self, outer: Dim, step: int) -> range:
        quads = self.source.quads
        if self.source.words or quads is None or outer.source is not quads.var:
            return super()._rows_at_once(outer, step)
        return range(0, step, step // QUAD)  # those of each of the four bytes

    def _made(self) -> Register:
        made = self._word()
        return made ^ self.flips if self.flips else made

    def _word(self) -> Register:
        """As it lies, or made of four bytes."""
        if self.source.words:
            assert self.source.leaf is not None
            assert self.memory is not None
            leaf, place = self.elements.behind(self.source.leaf)
            form = self.elements.started(self.memory + self.source.starts)
            return self.elements.load_at(leaf, in_words(self.elements, place), form)
        parts = (self._byte(number, index) for number, index in enumerate(self.bytes))
        wide = (self.b.cast("zext", part, "i32") for part in parts)
        return reduce(or_, (part << 8 * number for number, part in enumerate(wide)))

    def _byte(self, number: int, index: Index) -> Register:
        """One byte of each word; zero where the last quad lacks it."""
        b, elements, quads = self.b, self.elements, self.source.quads
        assert quads is not None
        position, value = elements.position, self.source.value
        if number < (quads.rest or QUAD):
            return elements.value(value, index)
        at = position.env[quads.var]
        mask = position.mask
        if position.vector is quads.var:
            there, which = b.mask_below(at, quads.whole, position.lanes), b.const(number)
            mask = there if mask is None else there & mask
        else:  # another byte of the quad stands for it
            there = b.compare("lt", at, quads.whole)
            which = b.select(there, b.const(number), b.const(0))
        with elements.at({quads.within[number]: which}, mask=mask):
            return b.select(there, elements.value(value, index), 0)
