"""The loops of a `reduce` region whose rows lie along the lanes: passes over each row, then its
stores.

Input: a `RowNest` whose vector variable is reduced, or that has none. Output: the tree of the
kernel. Invariant: as in `nest.py`; an item is a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.cpu.rows.nest import Accumulators, RowPolicy, Stage, reducer_of
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.tree import At, Chunk, Do, Loop, Node, Parallel, serial, vectors
from stagejit.index.affine import Var

_Sets = list[Accumulators]  # what is accumulated apart

_ACCUMULATORS = 4  # vectors of a row that are summed apart, to hide latency
# Elements that are accumulated from nothing and then merged into the row's accumulators, so that
# rounding errors of a long sum grow with the number of runs, not of elements.
_RUN = 1 << 14
_SHORTEST_RUN = 8  # iterations along the vector variable that are a run, inside other loops


class RowLoops(RowPolicy):
    """One nest, row by row."""

    def tree(self, cores: int) -> Parallel:
        self.bind()
        row = self.straight_row() if self.nest.straight else self._row()
        return in_items([(var, 1) for var in self.nest.kept], row, cores)

    def _row(self) -> Node:
        along = []
        if self.nest.row_stores:
            store: Node = Do("store", lambda: self.store(self.nest.row_stores))
            if self.nest.vector is not None:
                store = vectors(self.nest.vector, self.nest.lanes, store)
            along.append(serial(self._outer, store))
        return (
            Do("a new row", self.begin),
            *(self._pass(stage) for stage in self.nest.stages),
            *along,
            Do("store results", lambda: self.store(self.nest.kept_stores)),
        )

    def _pass(self, stage: Stage) -> Node:
        sets = [self.accumulators(stage) for _ in range(self._sets(len(stage)))]
        return (
            self.cleared(stage, sets),
            serial(self._outer, self._along(stage, sets)),
            self.finish_pass(stage, sets),
        )

    def _sets(self, reduces: int) -> int:
        """How many vectors are accumulated apart."""
        vector = self.nest.vector
        if vector is None:
            return 1
        return max(1, min(_ACCUMULATORS // min(reduces, 2), vector.extent // self.nest.lanes))

    @property
    def _outer(self) -> list[Var]:
        """The reduced variables but the vector variable."""
        return [var for var in self.nest.reduced if var is not self.nest.vector]

    # ---------------------------------------------------------------- a short row, unrolled

    def places(self) -> Sequence[At]:
        vector, lanes = self.nest.vector, self.nest.lanes
        assert vector is not None
        return [
            At(((vector, start),), (), vector, lanes, min(vector.extent - start, lanes), again=True)
            for start in range(0, vector.extent, lanes)
        ]

    # ---------------------------------------------------------------- a long row, in loops

    def _along(self, stage: Stage, sets: _Sets) -> Node:
        """One run along the vector variable."""
        vector, lanes, count = self.nest.vector, self.nest.lanes, len(sets)
        if vector is None:
            return self._step(stage, sets[0])
        block = lanes * count
        many = vector.extent // block * block
        far = many // _RUN * _RUN if many > _RUN else 0
        run = self._run(stage, vector, sets)
        chunks = [Chunk(_RUN, run)] if far else []
        if many > far and len(self.nest.reduced) > 1 and many >= _SHORTEST_RUN * block:
            chunks.append(Chunk(many - far, run, straight=True))
        elif many > far:
            chunks.append(Chunk(block, self._several(stage, vector, sets)))
        chunks.append(Chunk(lanes, self._step(stage, sets[0]), vector=True, tail="masked"))
        return Loop(vector, tuple(chunks))

    def _run(self, stage: Stage, vector: Var, sets: _Sets) -> Node:
        """Accumulates from nothing, then merges."""
        fresh = [self.accumulators(stage) for _ in sets]
        several = self._several(stage, vector, fresh)

        def merge() -> None:
            for old, new in zip(sets, fresh, strict=True):
                for op, into, cell in zip(stage, old, new, strict=True):
                    merged = reducer_of(op).merge(self.b, self.cells[into], self.cells[cell])
                    self.cells[into] = merged

        return (
            self.cleared(stage, fresh),
            Loop(vector, (Chunk(self.nest.lanes * len(sets), several),)),
            Do("merge the run", merge, tuple(cell for old in sets for cell in old)),
        )

    def _several(self, stage: Stage, vector: Var, sets: _Sets) -> Node:
        """A vector for each set of accumulators."""
        lanes = self.nest.lanes
        return tuple(
            At(((vector, number * lanes),), self._step(stage, part), vector, lanes, lanes)
            for number, part in enumerate(sets)
        )

    def _step(self, stage: Stage, accumulators: Accumulators) -> Node:
        """With the elements where the loops stand."""

        def accumulate() -> None:
            for op, cell in zip(stage, accumulators, strict=True):
                merged = reducer_of(op).merge(self.b, self.cells[cell], self.lifted(op))
                self.cells[cell] = merged

        return Do("accumulate", accumulate, accumulators)

    # ---------------------------------------------------------------- values kept in scratch

    def scratch_size(self) -> int:
        return self.nest.row_scratch

    def scratch_index(self) -> Register:
        return self.elements.scalar_index(self.nest.place_in_scratch)
