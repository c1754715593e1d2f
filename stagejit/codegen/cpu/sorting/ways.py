"""`Way`: one way to sort rows, of which `kernel.py` chooses the cheapest.

Input: rows. Output: loops over them, and what they cost. Invariant: an item has whole rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.tree import Cell, Do, Node, Parallel
from stagejit.codegen.sorting.rows import Rows


class Way(ABC):
    """How rows are sorted."""

    name: str
    # Of a row, about, until it is sorted; infinite where this is no way for these rows.
    operations = math.inf
    passes = 1
    workspaces: Sequence[int] = ()  # see `Kernel`

    def __init__(self, rows: Rows) -> None:
        self.rows, self.extent, self.count = rows, rows.extent, rows.count

    @property
    def work(self) -> float:
        """Operations of a row on one core."""
        return self.operations

    @property
    def b(self) -> Builder:
        return self.rows.b

    @abstractmethod
    def items(self, cores: int) -> Parallel:
        """The loops over rows; declares the memory that they need."""

    def cell(self, cell: Cell) -> Sequence[Register]:
        """The registers of a cell where the loops stand."""
        return self.rows.emitter.cells[cell]

    def set(self, what: str, cell: Cell, made: Callable[[], Sequence[Register]]) -> Do:
        """A statement that gives a cell its registers."""
        return self.rows.emitter.set_cell(what, cell, made)

    def row_by_row(self, sort: Node, cores: int) -> Parallel:
        """Loops over all rows, of which an item has whole ones."""
        return in_items([(var, 1) for var in self.rows.shape.kept], sort, cores)
