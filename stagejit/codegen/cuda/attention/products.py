"""What a thread does with tiles in shared memory: one interface, for multiply-adds and for tensor
cores.

Input: tiles of queries, keys and values. Output: fragments of scores, sums of values. Invariant:
each score and each sum is in one thread; the threads that have scores of a row are those of a warp
whose numbers differ in the bits of `apart`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from stagejit.base.records import record
from stagejit.codegen.cuda.attention.nest import Attention
from stagejit.codegen.cuda.attention.shapes import Shape
from stagejit.codegen.cuda.attention.staging import Side
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.ir.nodes import Buffer, element_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.tree import Cell
from stagejit.types import DType


@record(eq=False)
class Fragment:
    """Neighbours of a row. row: of the thread's rows; first: how far into the tile they start."""

    row: int
    first: Register
    lanes: int


class Products(ABC):
    """rows: of the thread, how far into the tile they are. scores, sums: the cells of both."""

    apart: tuple[int, ...]

    def __init__(
        self, attention: Attention, shape: Shape, dtype: DType, emitter: ThreadEmitter
    ) -> None:
        self.attention, self.shape, self.dtype = attention, shape, dtype
        self.emitter, self.b = emitter, emitter.b
        self.scores, self.sums = Cell("scores"), Cell("sums")
        self.elem = element_type(dtype)

    def _shared(self, name: str, size: int) -> Buffer:
        return self.b.shared(name, element_type(self.shape.dtype), size)

    def _zeros(self, count: int, lanes: int) -> tuple[Register, ...]:
        return (self.b.const(0, self.elem.with_lanes(lanes)),) * count

    @property
    @abstractmethod
    def rows(self) -> Sequence[Register]: ...

    @property
    @abstractmethod
    def fragments(self) -> Sequence[Fragment]:
        """Of scores."""

    @abstractmethod
    def tiles(self) -> Mapping[str, tuple[Buffer, tuple[Side, Side]]]:
        """Of queries "q", keys "k" and values "v": where they are staged."""

    @abstractmethod
    def no_scores(self) -> tuple[Register, ...]: ...

    @abstractmethod
    def no_sums(self) -> tuple[Register, ...]: ...

    @abstractmethod
    def multiply(self, scores: Sequence[Register]) -> tuple[Register, ...]:
        """Scores, with the products of staged queries and keys added."""

    @abstractmethod
    def score(self, scores: Sequence[Register], fragment: Fragment) -> Register: ...

    @abstractmethod
    def weigh(self, weights: Mapping[Fragment, Register]) -> None:
        """Keeps the weights of a tile, until `add`; nobody reads earlier ones any more."""

    @abstractmethod
    def add(self, sums: Sequence[Register], first: Register) -> tuple[Register, ...]:
        """Sums, with those of staged values. first: the key of the tile that they start at."""

    @abstractmethod
    def scaled(self, sums: Sequence[Register], factors: Sequence[Register]) -> tuple[Register, ...]:
        """Sums times a factor of each row."""

    @abstractmethod
    def results(self, sums: Sequence[Register]) -> Sequence[tuple[Fragment, Register]]:
        """Neighbouring features of a row, and their sums."""
