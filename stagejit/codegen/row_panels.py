"""Emits a `reduce` region in which each lane is a row: panels of rows advance together.

Input: a `RowNest` whose vector variable is kept. Output: the kernel body. Long rows stream past in
blocks while a panel of accumulators stays in the nearest cache; short ones are unrolled and stay in
registers. Invariant: as in `row_nest`; an item is a panel, and results do not depend on its width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from stagejit.codegen.ir import I8, Buffer, Type
from stagejit.codegen.ir import Value as Register
from stagejit.codegen.items import Items, Loop
from stagejit.codegen.reducers import Accumulator, Reducer, merge_all
from stagejit.codegen.row_nest import RowEmitter, reducer_of
from stagejit.dispatch.affine import Affine, Var
from stagejit.graph.ir import Op, Value

_ROWS_AT_ONCE = 8  # elements of a row that are merged before they meet the accumulator


class PanelWriter(RowEmitter):
    """Emits one nest, panel by panel. `width` is the number of rows in a panel."""

    width: int
    _column: Register  # of the panel, at the current position
    _used: int  # lanes that exist there
    _accumulators: dict[Value, tuple[Reducer, tuple[Buffer, ...]]]

    def emit(self, width: int) -> int:
        """Writes the kernel's body; returns the number of items."""
        self.width, self._accumulators = width, {}
        self.bind()
        outer = [Loop(var) for var in self.nest.kept if var is not self._vector]
        items = Items.over([*outer, Loop(self._vector, width)])
        if not self.nest.straight:
            self._declare()
        items.emit(self.elements, self._columns_of_short_rows if self.nest.straight
                   else self._panel)
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
                self._straight()
                return
            with self.elements.interleaving(length, self._used):
                self._straight()

        self._over_columns(column)

    def _straight(self) -> None:
        """All passes of the rows at the current vector, without loops."""
        self.begin()
        for stage in self.nest.stages:
            reducers = [reducer_of(op) for op in stage]
            sets = [[self.lifted(op, reducer) for op, reducer in zip(stage, reducers, strict=True)]
                    for _ in self._positions()]
            for number, (op, reducer) in enumerate(zip(stage, reducers, strict=True)):
                whole = merge_all(self.b, reducer, [accs[number] for accs in sets])
                self.results[op.result] = reducer.result(self.b, whole)
        if self.nest.row_stores:
            for _ in self._positions():
                self.store(self.nest.row_stores)
        self.store(self.nest.kept_stores)

    def _positions(self) -> Iterator[None]:
        """Each element of a row in turn."""
        reduced = self.nest.reduced
        for numbers in itertools.product(*(range(var.extent) for var in reduced)):
            env = {var: self.b.const(n) for var, n in zip(reduced, numbers, strict=True)}
            with self.elements.at(env):
                yield

    # ---------------------------------------------------------------- long rows

    def _declare(self) -> None:
        """Scratch for the accumulators of every reduce."""
        for stage in self.nest.stages:
            for op in stage:
                reducer = reducer_of(op)
                parts = reducer.initial(self.b, 0)
                self._accumulators[op.result] = reducer, tuple(
                    self.b.scratch("sum", _stored(part.type), self.width) for part in parts)

    def _panel(self) -> None:
        self.begin()
        for stage in self.nest.stages:
            self._pass(stage)
        if self.nest.row_stores:
            self._over_blocks(0, lambda rows: self._over_columns(lambda: self._store_rows(rows)))
        if self.nest.kept_stores:
            self._over_columns(lambda: self.store(self.nest.kept_stores))

    def _pass(self, stage: tuple[Op, ...]) -> None:
        self._over_columns(lambda: self._clear(stage))
        self._over_blocks(0, lambda rows: self._over_columns(
            lambda: self._accumulate(stage, rows)))
        self.end_pass(stage)

    def _clear(self, stage: tuple[Op, ...]) -> None:
        for op in stage:
            reducer, buffers = self._accumulators[op.result]
            self._save(buffers, reducer.initial(self.b, self.nest.lanes))

    def _accumulate(self, stage: tuple[Op, ...], rows: int) -> None:
        """Some elements of each row; merged as a tree first, for accuracy."""
        sets: list[list[Accumulator]] = []
        for _ in self._block_rows(rows):
            sets.append([self.lifted(op, self._accumulators[op.result][0]) for op in stage])
        for number, op in enumerate(stage):
            reducer, buffers = self._accumulators[op.result]
            merged = merge_all(self.b, reducer, [accs[number] for accs in sets])
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

    def _over_columns(self, body: Callable[[], None]) -> None:
        """`body` for each vector of the panel: full ones, then one masked."""
        b, vector, lanes, width = self.b, self._vector, self.nest.lanes, self.width
        start, extent = self.elements.position.env[vector], vector.extent
        stop = b.binary("smin", start + width, extent) if extent % width else start + width
        full = stop - b.urem(stop, lanes) if extent % lanes else stop

        def column(position: Register, used: int) -> None:
            self.results, self._column, self._used = {}, position - start, used
            mask = b.active(used, lanes) if used < lanes else None
            with self.elements.at({vector: position}, vector=vector, lanes=lanes, mask=mask):
                body()

        def rest() -> None:
            column(full, extent % lanes)

        if extent >= lanes:
            b.loop(start, full, lanes, (), lambda position: column(position, lanes))
        if extent % lanes and width >= extent:
            rest()
        elif extent % lanes:
            b.if_(b.compare("lt", full, stop), rest)

    def _over_blocks(self, depth: int, body: Callable[[int], None]) -> None:
        """Loops over the reduced variables; `body(rows)` handles the next `rows` elements."""
        var, last = self.nest.reduced[depth], depth == len(self.nest.reduced) - 1
        step = _ROWS_AT_ONCE if last else 1
        blocks = var.extent // step * step

        def iteration(rows: int) -> Callable[[Register], None]:
            def at(position: Register) -> None:
                with self.elements.at({var: position}):
                    if last:
                        body(rows)
                    else:
                        self._over_blocks(depth + 1, body)

            return at

        if blocks:
            self.b.loop(0, blocks, step, (), iteration(step))
        if blocks < var.extent:
            self.b.loop(blocks, var.extent, 1, (), iteration(1))

    # ---------------------------------------------------------------- accumulators in scratch

    def result_of(self, result: Value) -> Register:
        if result not in self.results:
            reducer, buffers = self._accumulators[result]
            self.results[result] = reducer.result(self.b, self._saved(buffers, reducer))
        return self.results[result]

    def _saved(self, buffers: tuple[Buffer, ...], reducer: Reducer) -> Accumulator:
        raw = [self.b.load(buffer, self._column, self.nest.lanes) for buffer in buffers]
        wanted = [part.type for part in reducer.initial(self.b, 0)]
        return tuple(self.b.compare("ne", value, 0) if type.elem == "i1" else value
                     for value, type in zip(raw, wanted, strict=True))

    def _save(self, buffers: tuple[Buffer, ...], accumulator: Accumulator) -> None:
        for buffer, part in zip(buffers, accumulator, strict=True):
            stored = self.b.cast("zext", part, "i8") if part.type.elem == "i1" else part
            self.b.store(stored, buffer, self._column)

    # ---------------------------------------------------------------- values kept in scratch

    def scratch_size(self) -> int:
        return self.width * math.prod(var.extent for var in self.nest.reduced)

    def scratch_index(self) -> Register:
        at = Affine()
        for var in self.nest.reduced:
            at = at * var.extent + Affine.of(var)
        return self.elements.scalar_index(at) * self.width + self._column


def _stored(type: Type) -> Type:
    return I8 if type.elem == "i1" else type
