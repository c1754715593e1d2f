"""What a dispatch touches, and what it waits for: the parts of a plan that hazards are about.

Input: boxes of buffers. Output: plain data with its byte ranges. Invariant: `hull` has every byte
of the access, whatever the symbols in its offsets are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from stagejit.base.formulas import evaluate, names_in
from stagejit.base.symbolic import Int, Symbol, substitute, symbols_in
from stagejit.index.box import Box
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.index.progressions import Dim
from stagejit.types import DType

BufferKind = Literal["argument", "weight", "result", "transient", "constant"]
Hazard = Literal["RAW", "WAR", "WAW", "FULL", "ORDER"]


@dataclass(frozen=True)
class Buffer:
    """Contiguous memory. Arguments, results and constants are row-major.

    shape: numbers, or sums of products of symbolic sizes, which count as numbers; a transient of
    such a shape has no slot before its size is a number.
    name: in texts. shape: in elements; dtype: of each. kind: "argument", "result", "transient",
    "constant", "weight" or the like. layout: where in memory its elements lie.
    index: number of the argument, weight (what `stagejit.bind` binds, and what is made of it once),
    result or constant. slot: byte offset in the arena of its run,
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
    layout: Layout = ROW_MAJOR

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, those of padding in its layout too."""
        return self.dtype.itemsize * self.layout.room(self.shape)

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        parts = [f"buffer {self.name}: {self.dtype}[{shape}]{self.layout} {self.kind}"]
        if self.index is not None:
            parts.append(str(self.index))
        if self.kind == "transient":
            unplaced = "passed" if isinstance(self.nbytes, int) else "unplaced"
            parts.append(unplaced if self.slot is None else f"slot {self.slot}")
        if self.host:
            parts.append(f"of {self.host}")
        if self.over:
            parts.append(f"over {self.over}")
        if self.result is not None:
            parts.append(f"result {self.result}")
        return " ".join(parts)


@dataclass(frozen=True)
class Access:
    """A box of a buffer, which is named, in elements of the buffer's shape. Offsets of the box are
    numbers, or sums of the plan's `HostScalar`s, as in `s0 + 4`.

    hull: half-open byte range around it. nbytes: bytes of its elements. exact: False where the box
    is a conservative hull of what is touched. may: True where it can be that nothing is touched at
    all: in a branch that is not taken, at an index that is out of bounds.
    """

    buffer: str
    box: Box
    hull: tuple[int, int]
    nbytes: int
    exact: bool = True
    may: bool = False

    @staticmethod
    def of(buffer: Buffer, box: Box, *, exact: bool = True, may: bool = False) -> Access:
        """That of a box of a buffer; exact, may: as the fields."""
        start, stop = buffer.layout.hull(box, buffer.shape)
        size = buffer.dtype.itemsize
        hull = start * size, stop * size
        return Access(buffer.name, box, hull, box.count * size, exact, may)

    @property
    def offsets(self) -> tuple[Int, ...]:
        """First index of the box along each axis, in elements."""
        return self.box.offsets

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the box along each axis."""
        return self.box.sizes

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps between elements of the box along each axis, in elements of the buffer."""
        return self.box.strides

    @property
    def must(self) -> bool:
        """Whether every element of the box is touched, for certain."""
        return self.exact and not self.may

    def overlaps(self, other: Access) -> bool:
        """Whether this box and that of `other` have an element of one buffer in common."""
        return self.buffer == other.buffer and self.box.overlaps(other.box)

    def at(self, buffer: Buffer, values: Mapping[Symbol, int | None]) -> Access:
        """The access with numbers for the symbols that `values` names; None stands for an index
        that is out of bounds, at which nothing is touched. buffer: the one that is accessed."""
        box = self.box
        if any(values.get(symbol, 0) is None for symbol in box.symbols()):
            nothing = (0,) * len(buffer.shape)
            box = Box(nothing, nothing, nothing)
        known = {symbol: value for symbol, value in values.items() if value is not None}
        return Access.of(buffer, box.at(known), exact=self.exact, may=self.may)

    def __str__(self) -> str:
        return f"{'?' if self.may else ''}{'' if self.exact else '~'}{self.buffer}{self.box}"


def boxes_by_buffer(accesses: Iterable[Access]) -> dict[str, dict[Box, None]]:
    """The boxes that have elements, each once, of every buffer that has some."""
    found: dict[str, dict[Box, None]] = {}
    for access in accesses:
        if access.nbytes:
            found.setdefault(access.buffer, {})[access.box] = None
    return found


@dataclass(frozen=True)
class HostScalar:
    """A number that the host computes from scalar arguments when a call (of a loop's body: an
    iteration) starts. It is in `range(symbol.low, symbol.high + 1)`; where the value of the formula
    is not, accesses at it touch nothing: JAX drops updates that are out of bounds.

    counts: the first value and the step where it counts the iterations of the loop whose body it
    belongs to; accesses at it are at `offset + stride * i`."""

    symbol: Symbol
    formula: str
    counts: tuple[int, int] | None = None

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
        text = f"symbol {self.symbol} in {self.symbol.low}:{self.symbol.high + 1} = {self.formula}"
        if self.counts is None:
            return text
        first, step = self.counts
        return f"{text} counts {first} {'-' if step < 0 else '+'} {abs(step)}*i"

    def within(self, trip: int) -> bool:
        """Whether it counts so that each of `trip` values is in bounds."""
        if self.counts is None:
            return False
        first, step = self.counts
        ends = first, first + step * (trip - 1)
        return self.symbol.low <= min(ends) and max(ends) <= self.symbol.high


@dataclass(frozen=True)
class Parts:
    """Parts `first`, `first + 1`, ..., `count` of them, of a sum that a dispatch splits. They wait
    for nobody: none touches what another one writes. Where they are several, they touch boxes at
    `offset + stride * number`."""

    first: int
    count: int
    number: Symbol
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]

    def at(self, number: int, buffers: Mapping[str, Buffer]) -> Parts:
        """One of them, with a number in the offsets."""
        values = {self.number: number}
        reads, writes = (
            tuple(access.at(buffers[access.buffer], values) for access in accesses)
            for accesses in (self.reads, self.writes)
        )
        return Parts(number, 1, self.number, reads, writes)

    def __str__(self) -> str:
        several = f"{self.number} in {self.first}:{self.first + self.count}"
        texts = [f"parts {several if self.count > 1 else self.first}"]
        for word, accesses in (("reads", self.reads), ("writes", self.writes)):
            if accesses:
                texts.append(f"{word} {', '.join(map(str, accesses))}")
        return "  ".join(texts)


def swept(box: Box, scalars: Iterable[HostScalar], trip: int) -> tuple[Box, bool]:
    """What a box of a body touches in `trip` iterations: a box of numbers around it, and whether
    every element of that is touched."""
    counts = {s.symbol: s.counts for s in scalars if s.counts is not None and s.within(trip)}
    dims: list[Dim] = []
    exact, moving = True, 0
    for dim, around in zip(box.dims(), box.widened().dims(), strict=True):
        if isinstance(dim[0], int):
            dims.append(dim)
            continue
        moving += 1
        found = _swept(dim, counts, trip)
        exact = exact and found is not None
        dims.append(found or around)
    return Box.of(dims), exact and moving <= 1


def _swept(dim: Dim, counts: Mapping[Symbol, tuple[int, int]], trip: int) -> Dim | None:
    """The same for one dimension; None where there are holes, or it is not known."""
    offset, size, stride = dim
    if any(symbol not in counts for symbol in symbols_in(offset)):
        return None
    at: list[int] = []
    for number in (0, 1):
        values: dict[Symbol, Int] = {
            symbol: counts[symbol][0] + number * counts[symbol][1] for symbol in symbols_in(offset)
        }
        at.append(cast(int, substitute(offset, values)))
    step = abs(at[1] - at[0])
    first = min(at[0], at[0] + (at[1] - at[0]) * (trip - 1))
    if len(list(symbols_in(offset))) != 1 or trip == 1 or not step:
        return (first, size, stride) if trip == 1 or not step else None
    if size == 1:
        return first, trip, step
    if stride == 1 and step <= size:
        return first, step * (trip - 1) + size, 1
    return None


@dataclass(frozen=True)
class Barrier:
    """`dst` starts after `src` has settled `ranges` of `buffer`: is done with them, reading and
    writing. Nothing else has settled by it; see Note [What has settled] in `reduction.py`.

    src, dst: names of dispatches. ranges: disjoint boxes; nbytes: bytes of their elements. Where
    `dst` does not touch the buffer, it touches memory that the buffer shares with another one, or
    those after it wait for them.
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
