"""The loops of a `reduce` region in which each lane is a row: panels of rows advance together.

Input: a `RowNest` whose vector variable is kept. Output: the tree of the kernel. Long rows stream
past in blocks while a panel of accumulators stays in the nearest cache; short ones are unrolled and
stay in registers. Invariant: as in `nest.py`; an item is a panel, and results do not depend on its
width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stagejit.codegen.cpu.rows.nest import RowNest, RowPolicy, Stage, reducer_of
from stagejit.codegen.cpu.rows.reducers import Accumulator, Panel, merge_all
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import At, Chunk, Do, Loop, Node, serial, vectors
from stagejit.graph.ir import Value

_ROWS_AT_ONCE = 8  # elements of a row that are merged before they meet the accumulator
# Elements that are accumulated from nothing before they meet the total, so that rounding errors of
# a long sum grow with the number of runs, not of elements.
_RUN = 1024
_SHORTEST_RUN = 64  # along the innermost variable, where there are others


_Sums = dict[Value, Panel]  # accumulators in scratch, by result


class PanelLoops(RowPolicy):
    """Long rows, panel by panel."""

    def __init__(self, nest: RowNest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        super().__init__(nest, emitter, memory)
        self._accumulators = self._declared()  # of the run, if sums are long
        self._totals = self._declared() if self._long_sums() else self._accumulators

    def _declared(self) -> _Sums:
        """Scratch for the accumulators of every reduce."""
        reduces = (op for stage in self.nest.stages for op in stage)
        width = self.nest.width
        return {op.result: Panel.of(self.b, reducer_of(op), "sum", width) for op in reduces}

    def _long_sums(self) -> bool:
        """Whether a sum is so long that its accuracy needs totals of runs."""
        inner, length = self.nest.reduced[-1].extent, math.prod(v.extent for v in self.nest.reduced)
        return (inner > _RUN or (length > _RUN and inner >= _SHORTEST_RUN)) and any(
            op.attrs["fn"] == "add" and op.result.type.dtype.is_float
            for stage in self.nest.stages
            for op in stage
        )

    def one_pass(self, stage: Stage) -> Node:
        accumulate = self._blocks(lambda rows: self._accumulate(stage, rows))
        if self._totals is not self._accumulators:
            accumulate = self._runs(stage, accumulate)
        return (
            self._clear(stage, self._totals),
            serial(self.nest.reduced[:-1], accumulate),
            Do("finish", self.end_pass),
        )

    def along_row(self, body: Node) -> Node:
        return serial(self.nest.reduced[:-1], self._blocks(lambda rows: self._each([body] * rows)))

    def _runs(self, stage: Stage, accumulate: Node) -> Node:
        """Each run along the innermost reduced variable meets the totals."""
        var = self.nest.reduced[-1]
        run = (
            self._clear(stage, self._accumulators),
            accumulate,
            self.for_rows(Do("merge the run", lambda: self._add_up(stage))),
        )
        chunks = [Chunk(_RUN, run)]
        if short := var.extent % _RUN:
            chunks.append(Chunk(short, run, straight=True))
        return Loop(var, tuple(chunks))

    def _clear(self, stage: Stage, where: _Sums) -> Node:
        def clear() -> None:
            for op in stage:
                nothing = reducer_of(op).initial(self.b, self.nest.lanes)
                where[op.result].store(nothing, self.column)

        return self.for_rows(Do("clear", clear))

    def _add_up(self, stage: Stage) -> None:
        for op in stage:
            total, run = self._totals[op.result], self._accumulators[op.result]
            merged = reducer_of(op).merge(self.b, self._saved(total), self._saved(run))
            total.store(merged, self.column)

    def _accumulate(self, stage: Stage, rows: int) -> Node:
        """Some elements of each row; merged as a tree first, for accuracy."""
        sets = [self.accumulators(stage) for _ in range(rows)]

        def merge() -> None:
            for op, *cells in zip(stage, *sets, strict=True):
                reducer, panel = reducer_of(op), self._accumulators[op.result]
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
        chunks = [Chunk(rows, self.for_rows(body(rows))) for rows in (_ROWS_AT_ONCE, 1)]
        return Loop(self.nest.reduced[-1], tuple(chunks))

    def result_of(self, result: Value) -> Register:
        if result not in self.results:
            panel = self._totals[result]
            self.results[result] = panel.reducer.result(self.b, self._saved(panel))
        return self.results[result]
