"""Long rows of a `reduce` region, one by one, in loops.

Input: a `RowNest`, and along which of its reduced variables the elements are that are accumulated
at once. Output: passes over a row. Invariant: as in `nest.py`; sums are runs of runs, see
`runs.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

from stagejit.codegen.nest.tree import At, Chunk, Loop, Node, serial, vectors
from stagejit.codegen.reducers import Accumulator
from stagejit.codegen.rows.nest import Accumulators, RowPolicy, Stage, reducer_of
from stagejit.codegen.rows.runs import Runs, has_rounding, in_words, over_runs, runs_of
from stagejit.index.affine import Var

_Sets = list[Accumulators]  # what is accumulated apart

_ACCUMULATORS = 4  # vectors of a row that are summed apart, to hide latency
_SHORTEST_RUN = 8  # iterations along the vector variable that are a run, inside other loops


class RowLoops(RowPolicy):
    """Long rows, one by one, in loops."""

    @property
    def along(self) -> Var | None:
        """The reduced variable along which elements are accumulated at once."""
        return self.nest.vector

    @property
    def step(self) -> int:
        """How many: those of a vector, or of one for each of some threads."""
        return self.nest.lanes

    @abstractmethod
    def run_along(self, sets: int) -> int:
        """Elements of a run along that variable, see `runs.py`; a multiple of those that so many
        sets of accumulators take."""

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
        if self.along is not None:
            body = vectors(self.along, self.step, body)
        return serial(self._outer, body)

    def _sets(self, reduces: int) -> int:
        """How many vectors are accumulated apart."""
        vector = self.along
        if vector is None:
            return 1
        return max(1, min(_ACCUMULATORS // min(reduces, 2), vector.extent // self.step))

    def _runs(self, stage: Stage, sets: int) -> Runs:
        """Of the row, beside those that `_along` makes along the vector variable."""
        vector = self.along
        if not any(has_rounding(reducer_of(op)) for op in stage):
            return [(var, []) for var in (*self._outer, *([vector] if vector else ()))]
        if vector is None:
            return runs_of(self._outer, 1)
        length, (many, far, whole) = self.run_along(sets), self._reach(sets)
        (along,) = runs_of([vector], 1 / length)
        near = whole or (many - far) // (self.step * sets)
        added = -(-vector.extent // along[1][0]) if along[1] else far // length + near + 1
        return [*runs_of(self._outer, added), along]

    def _reach(self, sets: int) -> tuple[int, int, bool]:
        """How far whole blocks reach along the vector variable, and whole runs; whether the rest of
        the blocks is a run."""
        assert self.along is not None
        block, length = self.step * sets, self.run_along(sets)
        many = self.along.extent // block * block
        far = many // length * length if many > length else 0
        return many, far, many > far and bool(self._outer) and many >= _SHORTEST_RUN * block

    @property
    def _outer(self) -> list[Var]:
        """The reduced variables but the vector variable."""
        return [var for var in self.nest.reduced if var is not self.along]

    def _along(self, stage: Stage, sets: _Sets) -> Node:
        """The elements along the vector variable."""
        vector, lanes = self.along, self.step
        if vector is None:
            return serial(self._outer[-1:], self._step(stage, sets[0]))
        block = lanes * len(sets)
        many, far, whole = self._reach(len(sets))

        def several(sets: _Sets) -> Node:
            return Loop(vector, (Chunk(block, self._several(stage, vector, sets)),))

        run = self._run(stage, sets, several)
        chunks = [Chunk(self.run_along(len(sets)), run)] if far else []
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
        lanes = self.step
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
