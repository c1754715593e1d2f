"""Emits a `reduce` region in which each lane is a row: panels of rows advance together.

Input: a `RowNest` whose vector variable is kept. Output: the kernel body. Long rows stream past in
blocks while a panel of accumulators stays in the nearest cache; short ones are unrolled and stay in
registers. Invariant: as in `nest.py`; an item is a panel, and results do not depend on its width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from stagejit.codegen.elements.items import Items, Loop, in_vectors, nested
from stagejit.codegen.ir.nodes import I8, Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.rows.nest import RowEmitter, Stage, reducer_of
from stagejit.codegen.rows.reducers import Accumulator, Reducer, merge_all
from stagejit.graph.ir import Value
from stagejit.index.affine import Var

_ROWS_AT_ONCE = 8  # elements of a row that are merged before they meet the accumulator
# Elements that are accumulated from nothing before they meet the total, so that rounding errors of
# a long sum grow with the number of runs, not of elements.
_RUN = 1024
_SHORTEST_RUN = 64  # along the innermost variable, where there are others


_Sums = dict[Value, tuple[Reducer, tuple[Buffer, ...]]]  # accumulators in scratch, by result


class PanelWriter(RowEmitter):
    """Emits one nest, panel by panel. `width` is the number of rows in a panel."""

    width: int
    _column: Register  # of the panel, at the current position
    _accumulators: _Sums  # of the run, if sums are long
    _totals: _Sums

    def emit(self, width: int, before: int | None = None, *, last: bool = True) -> int:
        """Writes the kernel's body; returns the number of items. before, last: see `Items.emit`."""
        self.width = width
        self.bind()
        outer = [Loop(var) for var in self.nest.kept if var is not self._vector]
        items = Items.over([*outer, Loop(self._vector, width)])
        if not self.nest.straight:
            self._accumulators = self._declared()
            self._totals = self._declared() if self._long_sums() else self._accumulators
        panel = self._columns_of_short_rows if self.nest.straight else self._panel
        items.emit(self.elements, panel, before, last=last)
        return items.total

    @property
    def _vector(self) -> Var:
        assert self.nest.vector is not None
        return self.nest.vector

    # ---------------------------------------------------------------- short rows

    def _columns_of_short_rows(self) -> None:
        length = math.prod(var.extent for var in self.nest.reduced)

        def column() -> None:
            if length == 1:
                self.straight_row()
                return
            with self.elements.interleaving(length):
                self.straight_row()

        self._over_columns(column)

    def positions(self) -> Iterator[None]:
        reduced = self.nest.reduced
        for numbers in itertools.product(*(range(var.extent) for var in reduced)):
            env = {var: self.b.const(n) for var, n in zip(reduced, numbers, strict=True)}
            with self.elements.at(env, known=self.known_at(*numbers)):
                yield

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

    def _panel(self) -> None:
        self.begin()
        for stage in self.nest.stages:
            self._pass(stage)
        if self.nest.row_stores:
            self._over_blocks(self._store_rows)
        if self.nest.kept_stores:
            self._over_columns(lambda: self.store(self.nest.kept_stores))

    def _pass(self, stage: Stage) -> None:
        if self._totals is self._accumulators:
            self._over_columns(lambda: self._clear(stage, self._accumulators))
            self._over_blocks(lambda rows: self._accumulate(stage, rows))
        else:
            self._over_columns(lambda: self._clear(stage, self._totals))
            nested(self.elements, self._outer, lambda: self._runs(stage))
        self.end_pass()

    def _runs(self, stage: Stage) -> None:
        """Each run along the innermost reduced variable meets the totals."""
        var = self.nest.reduced[-1]

        def run(start: Register, stop: Register, extent: int) -> None:
            self._over_columns(lambda: self._clear(stage, self._accumulators))
            self._blocks(start, stop, extent, lambda rows: self._accumulate(stage, rows))
            self._over_columns(lambda: self._add_up(stage))

        far = var.extent // _RUN * _RUN
        if far:
            self.b.loop(0, far, _RUN, (), lambda start: run(start, start + _RUN, _RUN))
        if far < var.extent:
            run(self.b.const(far), self.b.const(var.extent), var.extent - far)

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

    def _accumulate(self, stage: Stage, rows: int) -> None:
        """Some elements of each row; merged as a tree first, for accuracy."""
        sets = [[self.lifted(op) for op in stage] for _ in self._block_rows(rows)]
        for op, *parts in zip(stage, *sets, strict=True):
            reducer, buffers = self._accumulators[op.result]
            merged = merge_all(self.b, reducer, parts)
            before = self._saved(buffers, reducer)
            self._save(buffers, reducer.merge(self.b, before, merged))

    def _store_rows(self, rows: int) -> None:
        for _ in self._block_rows(rows):
            self.store(self.nest.row_stores)

    def _block_rows(self, rows: int) -> Iterator[None]:
        """Each of the next elements along the innermost reduced variable."""
        var = self.nest.reduced[-1]
        for row in range(rows):
            with self.elements.at({var: self.elements.position.env[var] + row}):
                yield

    # ---------------------------------------------------------------- loops

    @property
    def _outer(self) -> list[Loop]:
        """The reduced variables but the innermost one."""
        return [Loop(var) for var in self.nest.reduced[:-1]]

    def _over_columns(self, body: Callable[[], None]) -> None:
        """`body` for each vector of the panel: full ones, then one masked."""
        start = self.elements.position.env[self._vector]

        def column() -> None:
            self.results = {}
            self._column = self.elements.position.env[self._vector] - start
            body()

        in_vectors(self.elements, Loop(self._vector, self.width), self.nest.lanes, column)

    def _over_blocks(self, body: Callable[[int], None]) -> None:
        """`body(rows)` for the next `rows` elements of each row of the panel, until the end."""
        extent = self.nest.reduced[-1].extent
        stop = self.b.const(extent)
        nested(
            self.elements,
            self._outer,
            lambda: self._blocks(self.b.const(0), stop, extent, body),
        )

    def _blocks(
        self, start: Register, stop: Register, extent: int, body: Callable[[int], None]
    ) -> None:
        """From `start` to `stop` along the innermost variable, `extent` elements, some at once."""
        var = self.nest.reduced[-1]

        def iteration(rows: int) -> Callable[[Register], None]:
            def at(position: Register) -> None:
                with self.elements.at({var: position}):
                    self._over_columns(lambda: body(rows))

            return at

        rest = extent % _ROWS_AT_ONCE
        if extent > rest:
            self.b.loop(start, stop - rest, _ROWS_AT_ONCE, (), iteration(_ROWS_AT_ONCE), runs=True)
        if rest:
            self.b.loop(stop - rest, stop, 1, (), iteration(1), runs=True)

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
