"""The loops of a `reduce` region in which each lane is a row: panels of rows advance together.

Input: a `VectorNest` whose vector variable is kept. Output: the tree of the kernel. Long rows
stream past in blocks while a panel of accumulators stays in the nearest cache; short ones are
unrolled and stay in registers. Invariant: as in `codegen/rows/nest.py`; an item is a panel, and
results do not depend on its width, but on whether rows go one by one.

Note [Rows of a panel]: elements of several rows are merged before they meet the accumulator, which
is then stored less often. From memory that is slower where some rows lie on a page, of which lines
are read in turn then (see Note [Row by row] of `contract/tiles`): panels are whole rows there, of
which they take one after the other. On two cores of a Zen 4 `x.sum(0)` of 64 MB takes, by 8 rows
and by one: rows of 64 floats 3.7 and 1.8 ms, of 256 3.1 and 1.8, of 500 3.1 and 1.8, but 5.2 by one
in two panels. In caches 8 rows take 0.5 to 0.9 of the time of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.codegen.choices import BY_ROWS
from stagejit.codegen.cpu.rows.loops import VectorNest, VectorPolicy
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import At, Chunk, Do, Loop, Node, serial, vectors
from stagejit.codegen.reducers import Accumulator, Panel, merge_all
from stagejit.codegen.rows.nest import Stage, reducer_of
from stagejit.codegen.rows.runs import Runs, has_rounding, in_words, over_runs, runs_of
from stagejit.graph.ir import Value

_ROWS_AT_ONCE = 8  # that are merged before they meet the accumulator

_Sums = dict[Value, Panel]  # accumulators in scratch, by result


class PanelLoops(VectorPolicy):
    """Long rows, panel by panel."""

    def __init__(self, nest: VectorNest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        super().__init__(nest, emitter, memory)
        self._at_once = _ROWS_AT_ONCE
        if nest.goes_by_rows:
            self._at_once = 1
            emitter.chose("order", BY_ROWS)
        if nest.ahead:
            self.elements.ahead = nest.ahead.along(nest.reduced[-1], self._at_once)
        reduces = [op for stage in nest.stages for op in stage]
        self._runs: Runs = [(var, []) for var in nest.reduced]
        if any(has_rounding(reducer_of(op)) for op in reduces):
            self._runs = runs_of(nest.reduced, 1 / self._at_once)
        if how := in_words(self._runs):
            emitter.chose("runs", how)
        # Of all the row, of a run of runs, ..., of a run.
        levels = 1 + sum(len(sizes) for _, sizes in self._runs)
        self._levels: list[_Sums] = [
            {op.result: Panel.of(self.b, reducer_of(op), "sum", nest.width) for op in reduces}
            for _ in range(levels)
        ]

    def one_pass(self, stage: Stage) -> Node:
        def run(into: int, inside: Callable[[int], Node]) -> Node:
            merge = Do("merge the run", lambda: self._add_up(stage, into))
            return (inside(into + 1), self.for_rows(merge))

        def accumulate(level: int) -> Node:
            return self._blocks(lambda rows: self._accumulate(stage, level, rows))

        return (
            self.for_rows(Do("clear", lambda: self._clear(stage, self._levels))),
            over_runs(self._runs, 0, run, accumulate),
            Do("finish", self.end_pass),
        )

    def along_row(self, body: Node) -> Node:
        return serial(self.nest.reduced[:-1], self._blocks(lambda rows: self._each([body] * rows)))

    def _clear(self, stage: Stage, levels: Sequence[_Sums]) -> None:
        for op in stage:
            nothing = reducer_of(op).initial(self.b, self.nest.lanes)
            for sums in levels:
                sums[op.result].store(nothing, self.column)

    def _add_up(self, stage: Stage, into: int) -> None:
        """What the next level came to, into one; it begins anew."""
        for op in stage:
            total, run = (self._levels[level][op.result] for level in (into, into + 1))
            merged = reducer_of(op).merge(self.b, self._saved(total), self._saved(run))
            total.store(merged, self.column)
        self._clear(stage, self._levels[into + 1 : into + 2])

    def _accumulate(self, stage: Stage, level: int, rows: int) -> Node:
        """Some elements of each row; merged as a tree first, for accuracy."""
        sets = [self.accumulators(stage) for _ in range(rows)]

        def merge() -> None:
            for op, *cells in zip(stage, *sets, strict=True):
                reducer, panel = reducer_of(op), self._levels[level][op.result]
                merged = merge_all(self.b, reducer, [self.cells[cell] for cell in cells])
                panel.store(reducer.merge(self.b, self._saved(panel), merged), self.column)

        lifts = self._each([self.lift(stage, part) for part in sets])
        return (lifts, Do("accumulate", merge))

    def _saved(self, panel: Panel) -> Accumulator:
        return panel.load(self.column, self.nest.lanes)

    def _each(self, bodies: Sequence[Node]) -> Node:
        """A body for each of the next elements along the innermost reduced variable."""
        inner = self.nest.reduced[-1]
        return tuple(At(((inner, step),), body) for step, body in enumerate(bodies))

    # ---------------------------------------------------------------- loops

    def for_rows(self, body: Node) -> Node:
        """`body` for each vector of rows of the panel."""
        vector = self.nest.vector
        assert vector is not None

        def move() -> None:
            self.results, self.column = {}, self.emitter.offset(vector)

        return vectors(vector, self.nest.lanes, (Do("a new column", move), body))

    def _blocks(self, body: Callable[[int], Node]) -> Node:
        """`body(rows)` for the next `rows` elements of each row of the panel, until the end."""
        sizes = sorted({self._at_once, 1}, reverse=True)
        chunks = [Chunk(rows, self.for_rows(body(rows))) for rows in sizes]
        return Loop(self.nest.reduced[-1], tuple(chunks))

    def result_of(self, result: Value) -> Register:
        if result not in self.results:
            panel = self._levels[0][result]
            self.results[result] = panel.reducer.result(self.b, self._saved(panel))
        return self.results[result]
