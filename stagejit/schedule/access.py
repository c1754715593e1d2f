"""What a dispatch touches, and what it waits for: the parts of a plan that hazards are about.

Input: boxes of buffers. Output: plain data with its byte ranges. Invariant: `hull` has every byte
of the access, whatever the symbols in its offsets are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stagejit.formulas import evaluate, names_in
from stagejit.index.box import Box
from stagejit.symbolic import Int, Symbol
from stagejit.types import DType

BufferKind = Literal["argument", "result", "transient", "constant"]
Hazard = Literal["RAW", "WAR", "WAW", "FULL", "ORDER"]


@dataclass(frozen=True)
class Buffer:
    """Contiguous row-major memory.

    shape: numbers, or sums of products of symbolic sizes, which count as numbers; a transient of
    such a shape has no slot before its size is a number.
    index: number of the argument, result or constant. slot: byte offset in the arena of its run,
    for transients; None for those that pass between runs as XLA values. result: number of the
    result that lies in this argument's memory, if any. host: the result in whose memory `slot` is,
    until it is written. over: the buffer that this one is written over, element for element, by the
    dispatch that reads that one last.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: BufferKind
    index: int | None = None
    slot: int | None = None
    result: int | None = None
    host: str = ""
    over: str = ""

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True)
class Access:
    """A box of a buffer, in elements of the buffer's shape.

    offsets: numbers, or sums of the plan's `HostScalar`s, as in `s0 + 4`.
    hull: half-open byte range around it. nbytes: bytes of its elements. exact: False where the box
    is a conservative hull of what is touched.
    """

    buffer: str
    offsets: tuple[Int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    hull: tuple[int, int]
    nbytes: int
    exact: bool = True

    @staticmethod
    def of(buffer: Buffer, box: Box, *, exact: bool = True) -> Access:
        start, stop = box.hull_elements(buffer.shape)
        size = buffer.dtype.itemsize
        made = Access(
            buffer.name,
            box.offsets,
            box.sizes,
            box.strides,
            (start * size, stop * size),
            box.count * size,
            exact,
        )
        made.__dict__["_box"] = box
        return made

    @property
    def box(self) -> Box:
        known: Box | None = self.__dict__.get("_box")
        if known is None:
            known = self.__dict__["_box"] = Box(self.offsets, self.sizes, self.strides)
        return known

    def overlaps(self, other: Access) -> bool:
        """Whether the two boxes have an element in common."""
        return self.buffer == other.buffer and self.box.overlaps(other.box)

    def at(self, buffer: Buffer, values: Mapping[Symbol, int | None]) -> Access:
        """The access with numbers for symbols; None stands for an index that is out of bounds, at
        which nothing is touched."""
        box = self.box
        if any(values[symbol] is None for symbol in box.symbols()):
            nothing = (0,) * len(buffer.shape)
            return Access.of(buffer, Box(nothing, nothing, nothing), exact=self.exact)
        known = {symbol: value for symbol, value in values.items() if value is not None}
        return Access.of(buffer, box.at(known), exact=self.exact)

    def __str__(self) -> str:
        return f"{'' if self.exact else '~'}{self.buffer}{self.box}"


@dataclass(frozen=True)
class HostScalar:
    """A number that the host computes from scalar arguments when a call (of a loop's body: an
    iteration) starts. It is in `range(symbol.low, symbol.high + 1)`; where the value of the formula
    is not, accesses at it touch nothing: JAX drops updates that are out of bounds."""

    symbol: Symbol
    formula: str

    @property
    def names(self) -> frozenset[str]:
        """The buffers of the arguments that it is computed from."""
        return names_in(self.formula)

    def value(self, scalars: Mapping[str, int]) -> int | None:
        """Its value where arguments have those of `scalars`; None where it is out of bounds.
        Raises KeyError for an argument that `scalars` does not name."""
        value = int(evaluate(self.formula, scalars))
        return value if self.symbol.low <= value <= self.symbol.high else None

    def __str__(self) -> str:
        return f"symbol {self.symbol} in {self.symbol.low}:{self.symbol.high + 1} = {self.formula}"


@dataclass(frozen=True)
class Barrier:
    """`dst` starts after `src` has settled `ranges` of `buffer`: is done with them, reading and
    writing. Nothing else has settled by it; see Note [What has settled] in `reduction.py`.

    ranges: disjoint. Where `dst` does not touch the buffer, it touches memory that the buffer
    shares with another one, or those after it wait for them.
    hazard: "FULL" where only `Options(full_barriers=True)` asks for it; then there are no ranges.
    "ORDER" where `jax.lax.optimization_barrier` does: `dst` does not touch the ranges, but comes
    after them.
    """

    src: str
    dst: str
    hazard: Hazard
    buffer: str = ""
    ranges: tuple[Box, ...] = ()
    nbytes: int = 0

    def __str__(self) -> str:
        where = ", ".join(f"{self.buffer}{box}" for box in self.ranges)
        return f"barrier {where or '*'}  // {self.hazard} @{self.src} -> @{self.dst}"
