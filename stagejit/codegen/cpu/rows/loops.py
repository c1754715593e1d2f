"""Rows of a `reduce` region that lie along the lanes, and short rows of all kinds: passes over each
row, then its stores.

Input: a `RowNest` that is straight, or whose vector variable is reduced, or that has none. Output:
the tree of the kernel. Invariant: as in `nest.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from stagejit.codegen.cpu.rows.nest import Accumulators, RowPolicy, Stage, reducer_of
from stagejit.codegen.cpu.rows.runs import Runs, has_rounding, in_words, over_runs, runs_of
from stagejit.codegen.nest.tree import At, Chunk, Loop, Node, Within, everywhere, serial, vectors
from stagejit.codegen.reducers import Accumulator
from stagejit.index.affine import Var

_Sets = list[Accumulators]  # what is accumulated apart

_ACCUMULATORS = 4  # vectors of a row that are summed apart, to hide latency
_RUN = 1 << 14  # elements of a run along the vector variable, see `runs.py`
_SHORTEST_RUN = 8  # iterations along the vector variable that are a run, inside other loops


class StraightRows(RowPolicy):
    """Short rows, in registers: a row of a few vectors, or few elements of the row in each lane."""

    def rows(self) -> Node:
        """Where lanes are rows, those of all vectors; what lies between the lanes is all wanted."""
        nest, rows = self.nest, super().rows()
        if nest.vector not in nest.kept:
            return rows
        if (length := math.prod(var.extent for var in nest.reduced)) > 1:
            rows = Within("interleaved", partial(self.elements.interleaving, length), rows)
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


class RowLoops(RowPolicy):
    """Long rows, one by one, in loops."""

    def one_pass(self, stage: Stage) -> Node:
        sets = [self.accumulators(stage) for _ in range(self._sets(len(stage)))]
        along, run = partial(self._along, stage), partial(self._run, stage)
        runs = self._runs(stage, len(sets))
        if how := in_words(runs):
            self.emitter.chose("runs", how)
        return (
            self.cleared(stage, sets),
            over_runs(runs, sets, run, along),
            self.finish_pass(stage, sets),
        )

    def along_row(self, body: Node) -> Node:
        if self.nest.vector is not None:
            body = vectors(self.nest.vector, self.nest.lanes, body)
        return serial(self._outer, body)

    def _sets(self, reduces: int) -> int:
        """How many vectors are accumulated apart."""
        vector = self.nest.vector
        if vector is None:
            return 1
        return max(1, min(_ACCUMULATORS // min(reduces, 2), vector.extent // self.nest.lanes))

    def _runs(self, stage: Stage, sets: int) -> Runs:
        """Of the row, beside those that `_along` makes along the vector variable."""
        vector = self.nest.vector
        if not any(has_rounding(reducer_of(op)) for op in stage):
            return [(var, []) for var in (*self._outer, *([vector] if vector else ()))]
        if vector is None:
            return runs_of(self._outer, 1)
        many, far, whole = self._reach(sets)
        (along,) = runs_of([vector], 1 / _RUN)
        near = whole or (many - far) // (self.nest.lanes * sets)
        added = -(-vector.extent // along[1][0]) if along[1] else far // _RUN + near + 1
        return [*runs_of(self._outer, added), along]

    def _reach(self, sets: int) -> tuple[int, int, bool]:
        """How far whole blocks reach along the vector variable, and whole runs; whether the rest of
        the blocks is a run."""
        assert self.nest.vector is not None
        block = self.nest.lanes * sets
        many = self.nest.vector.extent // block * block
        far = many // _RUN * _RUN if many > _RUN else 0
        return many, far, many > far and bool(self._outer) and many >= _SHORTEST_RUN * block

    @property
    def _outer(self) -> list[Var]:
        """The reduced variables but the vector variable."""
        return [var for var in self.nest.reduced if var is not self.nest.vector]

    def _along(self, stage: Stage, sets: _Sets) -> Node:
        """The elements along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            return serial(self._outer[-1:], self._step(stage, sets[0]))
        block = lanes * len(sets)
        many, far, whole = self._reach(len(sets))

        def several(sets: _Sets) -> Node:
            return Loop(vector, (Chunk(block, self._several(stage, vector, sets)),))

        run = self._run(stage, sets, several)
        chunks = [Chunk(_RUN, run)] if far else []
        if whole:
            chunks.append(Chunk(many - far, run, straight=True))
        elif many > far:
            chunks.append(Chunk(block, self._several(stage, vector, sets)))
        chunks.append(Chunk(lanes, self._step(stage, sets[0]), vector=True, tail="masked"))
        return Loop(vector, tuple(chunks))

    def _run(self, stage: Stage, sets: _Sets, inside: Callable[[_Sets], Node]) -> Node:
        """Accumulates from nothing, then merges."""
        fresh = [self.accumulators(stage) for _ in sets]

        def merged() -> Iterator[Accumulator]:
            for old, new in zip(sets, fresh, strict=True):
                for op, total, run in zip(stage, old, new, strict=True):
                    yield reducer_of(op).merge(self.b, self.cells[total], self.cells[run])

        return (
            self.cleared(stage, fresh),
            inside(fresh),
            self.emitter.set("merge the run", [cell for old in sets for cell in old], merged),
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
        parts = list(zip(stage, accumulators, strict=True))

        def merged() -> Iterator[Accumulator]:
            return (reducer_of(op).merge(self.b, self.cells[x], self.lifted(op)) for op, x in parts)

        return self.emitter.set("accumulate", accumulators, merged)
