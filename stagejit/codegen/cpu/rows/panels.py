"""The loops of a `reduce` region in which each lane is a row: panels of rows advance together.

Input: a `RowNest` whose vector variable is kept. Output: the tree of the kernel. Long rows stream
past in blocks while a panel of accumulators stays in the nearest cache; short ones are unrolled and
stay in registers. Invariant: as in `nest.py`; an item is a panel, and results do not depend on its
width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from stagejit.codegen.cpu.rows.nest import RowPolicy, Stage, reducer_of
from stagejit.codegen.cpu.rows.reducers import Accumulator, Reducer, merge_all
from stagejit.codegen.ir.nodes import I8, Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.tree import At, Chunk, Do, Loop, Node, Parallel, Within, serial, vectors
from stagejit.graph.ir import Value
from stagejit.index.affine import Var

_ROWS_AT_ONCE = 8  # elements of a row that are merged before they meet the accumulator
# Elements that are accumulated from nothing before they meet the total, so that rounding errors of
# a long sum grow with the number of runs, not of elements.
_RUN = 1024
_SHORTEST_RUN = 64  # along the innermost variable, where there are others


_Sums = dict[Value, tuple[Reducer, tuple[Buffer, ...]]]  # accumulators in scratch, by result


class PanelLoops(RowPolicy):
    """One nest, panel by panel. `width` is the number of rows in a panel."""

    width: int
    _column: Register  # of the panel, where the loops stand
    _accumulators: _Sums  # of the run, if sums are long
    _totals: _Sums

    def tree(self, width: int, cores: int) -> Parallel:
        self.width = width
        self.bind()
        outer = [(var, 1) for var in self.nest.kept if var is not self._vector]
        if self.nest.straight:
            panel = self._short_rows()
        else:
            self._accumulators = self._declared()
            self._totals = self._declared() if self._long_sums() else self._accumulators
            panel = self._panel()
        return in_items([*outer, (self._vector, width)], panel, cores)

    @property
    def _vector(self) -> Var:
        assert self.nest.vector is not None
        return self.nest.vector

    # ---------------------------------------------------------------- short rows

    def _short_rows(self) -> Node:
        """Neighbouring rows in the lanes; what lies between the lanes is all wanted."""
        length, row = math.prod(var.extent for var in self.nest.reduced), self.straight_row()
        if length > 1:
            row = Within("interleaved", partial(self.elements.interleaving, length), row)
        return vectors(self._vector, self.nest.lanes, row)

    def places(self) -> Sequence[At]:
        reduced = self.nest.reduced
        return [
            At(tuple(zip(reduced, numbers, strict=True)), (), again=True)
            for numbers in itertools.product(*(range(var.extent) for var in reduced))
        ]

    # ---------------------------------------------------------------- long rows

    def _declared(self) -> _Sums:
        """Scratch for the accumulators of every reduce."""
        made = {}
        for op in (op for stage in self.nest.stages for op in stage):
            reducer = reducer_of(op)
            made[op.result] = (
                reducer,
                tuple(
                    self.b.scratch("sum", _stored(part.type), self.width)
                    for part in reducer.initial(self.b, 0)
                ),
            )
        return made

    def _long_sums(self) -> bool:
        """Whether a sum is so long that its accuracy needs totals of runs."""
        inner, length = self.nest.reduced[-1].extent, math.prod(v.extent for v in self.nest.reduced)
        return (inner > _RUN or (length > _RUN and inner >= _SHORTEST_RUN)) and any(
            op.attrs["fn"] == "add" and op.result.type.dtype.is_float
            for stage in self.nest.stages
            for op in stage
        )

    def _panel(self) -> Node:
        nest = self.nest
        stored = []
        if nest.row_stores:
            store = Do("store", lambda: self.store(nest.row_stores))
            stored.append(serial(self._outer, self._blocks(lambda rows: self._each(rows, store))))
        if nest.kept_stores:
            stored.append(self._columns("store results", lambda: self.store(nest.kept_stores)))
        return (
            Do("a new panel", self.begin),
            *(self._pass(stage) for stage in nest.stages),
            *stored,
        )

    def _pass(self, stage: Stage) -> Node:
        accumulate = self._blocks(lambda rows: self._accumulate(stage, rows))
        if self._totals is not self._accumulators:
            accumulate = self._runs(stage, accumulate)
        return (
            self._columns("clear", lambda: self._clear(stage, self._totals)),
            serial(self._outer, accumulate),
            Do("finish", self.end_pass),
        )

    def _runs(self, stage: Stage, accumulate: Node) -> Node:
        """Each run along the innermost reduced variable meets the totals."""
        var = self.nest.reduced[-1]
        run = (
            self._columns("clear", lambda: self._clear(stage, self._accumulators)),
            accumulate,
            self._columns("merge the run", lambda: self._add_up(stage)),
        )
        chunks = [Chunk(_RUN, run)]
        if short := var.extent % _RUN:
            chunks.append(Chunk(short, run, straight=True))
        return Loop(var, tuple(chunks))

    def _clear(self, stage: Stage, where: _Sums) -> None:
        for op in stage:
            reducer, buffers = where[op.result]
            self._save(buffers, reducer.initial(self.b, self.nest.lanes))

    def _add_up(self, stage: Stage) -> None:
        for op in stage:
            reducer, run = self._accumulators[op.result]
            total = self._totals[op.result][1]
            merged = reducer.merge(self.b, self._saved(total, reducer), self._saved(run, reducer))
            self._save(total, merged)

    def _accumulate(self, stage: Stage, rows: int) -> Node:
        """Some elements of each row; merged as a tree first, for accuracy."""
        var = self.nest.reduced[-1]
        sets = [self.accumulators(stage) for _ in range(rows)]

        def merge() -> None:
            for op, *cells in zip(stage, *sets, strict=True):
                reducer, buffers = self._accumulators[op.result]
                merged = merge_all(self.b, reducer, [self.cells[cell] for cell in cells])
                before = self._saved(buffers, reducer)
                self._save(buffers, reducer.merge(self.b, before, merged))

        lifts = (At(((var, row),), self.lift(stage, part)) for row, part in enumerate(sets))
        return (*lifts, Do("accumulate", merge))

    def _each(self, rows: int, body: Node) -> Node:
        """`body` for each of the next elements along the innermost reduced variable."""
        return tuple(At(((self.nest.reduced[-1], row),), body) for row in range(rows))

    # ---------------------------------------------------------------- loops

    @property
    def _outer(self) -> Sequence[Var]:
        """The reduced variables but the innermost one."""
        return self.nest.reduced[:-1]

    def _columns(self, what: str, run: Callable[[], None]) -> Node:
        """A statement for each vector of the panel."""
        return self._over_columns(Do(what, run))

    def _over_columns(self, body: Node) -> Node:
        return vectors(self._vector, self.nest.lanes, (Do("a new column", self._move), body))

    def _move(self) -> None:
        self.results, self._column = {}, self.emitter.offset(self._vector)

    def _blocks(self, body: Callable[[int], Node]) -> Node:
        """`body(rows)` for the next `rows` elements of each row of the panel, until the end."""
        chunks = [Chunk(rows, self._over_columns(body(rows))) for rows in (_ROWS_AT_ONCE, 1)]
        return Loop(self.nest.reduced[-1], tuple(chunks))

    # ---------------------------------------------------------------- accumulators in scratch

    def result_of(self, result: Value) -> Register:
        if result not in self.results:
            reducer, buffers = self._totals[result]
            self.results[result] = reducer.result(self.b, self._saved(buffers, reducer))
        return self.results[result]

    def _saved(self, buffers: tuple[Buffer, ...], reducer: Reducer) -> Accumulator:
        raw = [self.b.load(buffer, self._column, self.nest.lanes) for buffer in buffers]
        wanted = [part.type for part in reducer.initial(self.b, 0)]
        return tuple(
            self.b.compare("ne", value, 0) if type.elem == "i1" else value
            for value, type in zip(raw, wanted, strict=True)
        )

    def _save(self, buffers: tuple[Buffer, ...], accumulator: Accumulator) -> None:
        for buffer, part in zip(buffers, accumulator, strict=True):
            stored = self.b.cast("zext", part, "i8") if part.type.elem == "i1" else part
            self.b.store(stored, buffer, self._column)

    # ---------------------------------------------------------------- values kept in scratch

    def scratch_size(self) -> int:
        return self.width * self.nest.row_scratch

    def scratch_index(self) -> Register:
        row = self.elements.scalar_index(self.nest.place_in_scratch)
        return row * self.width + self._column


def _stored(type: Type) -> Type:
    return I8 if type.elem == "i1" else type
