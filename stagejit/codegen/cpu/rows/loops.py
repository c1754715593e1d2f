"""`VectorNest`: the loops of a `reduce` region in vectors. Rows that lie along the lanes, and short
rows of all kinds: passes over each row, then its stores.

Input: planned by `reduce.py`; of the policies here, a nest that is straight, or whose vector
variable is reduced, or that has none. Output: the tree of the kernel. Invariant: as in
`codegen/rows/nest.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stagejit.base.records import record
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.nest.items import FAR_ITEMS_A_CORE, in_items, panel_in_words, panel_width
from stagejit.codegen.nest.tree import At, Node, Parallel, everywhere, vectors
from stagejit.codegen.rows.loops import RowLoops
from stagejit.codegen.rows.nest import RowNest, RowPolicy, Stage
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine

_RUN = 1 << 14  # elements of a run along the vector variable


@record(kw_only=True)
class VectorNest(RowNest):
    """straight: rows are short enough to be unrolled, so that what passes share stays in
    registers."""

    straight: bool

    @property
    def width(self) -> int:
        if self.vector not in self.kept:
            return 1
        if self.goes_by_rows:
            return -(-self.vector.extent // self.lanes) * self.lanes
        far, seconds = self.ahead is not None, region_seconds(self.region, self.target)
        return panel_width(self.kept, self.vector, self.lanes, self.target, seconds, far=far)

    @property
    def goes_by_rows(self) -> bool:
        """Whether panels are whole rows, of which they take one after the other, and not several at
        once: from memory, a page of which has some. See Note [Rows of a panel]."""
        if self.ahead or not self.reduced:
            return False
        line, page = self.target.line_nbytes, self.target.page_nbytes
        panels = math.prod(var.extent for var in self.kept if var is not self.vector)
        rows = [
            abs(form.coeff(self.reduced[-1])) * value.type.dtype.itemsize
            for value, form in self._from_memory
        ]
        enough = panels >= FAR_ITEMS_A_CORE * self.target.cores
        return enough and bool(rows) and all(line < row <= page // 2 for row in rows)

    @property
    def _from_memory(self) -> list[tuple[Value, Affine]]:
        """What is read of arrays that no cache holds."""
        return [read for read in self.reads if read[0].type.nbytes > self.target.l3_nbytes]


class VectorPolicy(RowPolicy):
    """An item is a row, or as many as advance together."""

    def tree(self) -> Parallel:
        nest = self.nest
        loops = [(var, 1) for var in nest.kept if var is not nest.vector]
        if nest.vector in nest.kept:
            loops.append((nest.vector, nest.width))
            self.emitter.chose("panel", panel_in_words(nest.vector, nest.width, nest.target.cores))
        return in_items(loops, self.rows(), nest.target.cores)


class StraightRows(VectorPolicy):
    """Short rows, in registers: a row of a few vectors, or few elements of the row in each lane."""

    def rows(self) -> Node:
        """Where lanes are rows, those of all vectors; what lies between the lanes is all wanted."""
        nest, rows = self.nest, super().rows()
        if nest.vector not in nest.kept:
            return rows
        if (length := math.prod(var.extent for var in nest.reduced)) > 1:
            rows = self.emitter.interleaved(length, rows)
        return vectors(nest.vector, nest.lanes, rows)

    def one_pass(self, stage: Stage) -> Node:
        places = self._places()
        sets = [self.accumulators(stage) for _ in places]
        lifts = [
            replace(place, body=self.lift(stage, accumulators))
            for place, accumulators in zip(places, sets, strict=True)
        ]
        return (*lifts, self.finish_pass(stage, sets))

    def along_row(self, body: Node) -> Node:
        return tuple(replace(place, body=body) for place in self._places())

    def _places(self) -> Sequence[At]:
        """The places of a row, without what happens there."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector in self.nest.reduced:
            size = vector.extent
            return [
                At(((vector, at),), (), vector, lanes, min(size - at, lanes), again=True)
                for at in range(0, size, lanes)
            ]
        return [replace(place, again=True) for place in everywhere(self.nest.reduced, ())]


class VectorRows(VectorPolicy, RowLoops):
    """Long rows along the lanes."""

    def run_along(self, sets: int) -> int:
        return _RUN
