"""Emits a `reduce` region whose rows lie along the lanes: passes over each row, then its stores.

Input: a `RowNest` whose vector variable is reduced, or that has none. Output: the kernel body.
Invariant: as in `row_nest`; an item is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stagejit.codegen.ir import Value as Register
from stagejit.codegen.items import Items, Loop, nested
from stagejit.codegen.reducers import Accumulator, Reducer, merge_all
from stagejit.codegen.row_nest import RowEmitter, reducer_of
from stagejit.graph.ir import Op

_ACCUMULATORS = 4  # vectors of a row that are summed apart, to hide latency
# Elements that are accumulated from nothing and then merged into the row's accumulators, so that
# rounding errors of a long sum grow with the number of runs, not of elements.
_RUN = 1 << 14
_SHORTEST_RUN = 8  # iterations along the vector variable that are a run, inside other loops


class RowWriter(RowEmitter):
    """Emits one nest, row by row."""

    def emit(self) -> int:
        """Writes the kernel's body; returns the number of items."""
        self.bind()
        items = Items.over([Loop(var) for var in self.nest.kept])
        items.emit(self.elements, self._row)
        return items.total

    def _row(self) -> None:
        self.begin()
        for stage in self.nest.stages:
            self._pass(stage, [reducer_of(op) for op in stage])
        if self.nest.row_stores:
            self._over_reduced((), self._store_along)
        self.store(self.nest.kept_stores)

    def _pass(self, stage: tuple[Op, ...], reducers: list[Reducer]) -> None:
        if self.nest.straight:
            sets = self._sets_at_once(stage, reducers)
        else:
            initial = [r.initial(self.b, self.nest.lanes) for r in reducers]
            count = self._accumulators(len(stage))
            carried = [part for _ in range(count) for acc in initial for part in acc]
            final = self._over_reduced(carried, lambda c: self._along(stage, reducers, c, count))
            sets = [_unpack(reducers, part) for part in _chunks(final, count)]
        for number, (op, reducer) in enumerate(zip(stage, reducers, strict=True)):
            whole = merge_all(self.b, reducer, [accs[number] for accs in sets])
            row = reducer.across_lanes(self.b, whole)
            self.results[op.result] = reducer.result(self.b, row)
        self.end_pass()

    def _accumulators(self, reduces: int) -> int:
        vector = self.nest.vector
        if vector is None:
            return 1
        return max(1, min(_ACCUMULATORS // min(reduces, 2), vector.extent // self.nest.lanes))

    def _over_reduced(
        self, carried: Sequence[Register], body: Callable[[Sequence[Register]], Sequence[Register]]
    ) -> Sequence[Register]:
        """Loops over the reduced variables that are not the vector variable, around `body`."""
        loops = [Loop(var) for var in self.nest.reduced if var is not self.nest.vector]
        return nested(self.elements, loops, lambda *values: body(values), carried)

    # ---------------------------------------------------------------- a short row, unrolled

    def _vectors(self) -> Iterator[None]:
        """Each vector of the row in turn, as straight code."""
        vector, lanes = self.nest.vector, self.nest.lanes
        assert vector is not None
        for start in range(0, vector.extent, lanes):
            used = min(vector.extent - start, lanes)
            mask = self.b.active(used, lanes) if used < lanes else None
            with self.elements.at(
                {vector: self.b.const(start)},
                vector=vector,
                lanes=lanes,
                mask=mask,
                known=self.known_at(start),
            ):
                yield

    def _sets_at_once(
        self,
        stage: tuple[Op, ...],
        reducers: list[Reducer],
    ) -> list[list[Accumulator]]:
        return [
            [self.lifted(op, reducer) for op, reducer in zip(stage, reducers, strict=True)]
            for _ in self._vectors()
        ]

    # ---------------------------------------------------------------- a long row, in loops

    def _along(
        self,
        stage: tuple[Op, ...],
        reducers: list[Reducer],
        carried: Sequence[Register],
        count: int,
    ) -> Sequence[Register]:
        """One run along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            return self._step(stage, reducers, carried)
        size = len(carried) // count

        def several(position: Register, *values: Register) -> Sequence[Register]:
            out: list[Register] = []
            for number, part in enumerate(_chunks(values, count)):
                with self.elements.at(
                    {vector: position + number * lanes}, vector=vector, lanes=lanes
                ):
                    out += self._step(stage, reducers, part)
            return out

        def one(position: Register, *values: Register) -> Sequence[Register]:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                return self._step(stage, reducers, values)

        def run(start: Register, stop: Register, values: Sequence[Register]) -> list[Register]:
            initial = [
                part for _ in range(count) for r in reducers for part in r.initial(self.b, lanes)
            ]
            fresh = self.b.loop(start, stop, lanes * count, initial, several, runs=True)
            return [
                part
                for old, new in zip(_chunks(values, count), _chunks(fresh, count), strict=True)
                for part in self._merged(reducers, old, new)
            ]

        many = vector.extent // (lanes * count) * (lanes * count)
        full = vector.extent // lanes * lanes
        far = many // _RUN * _RUN if many > _RUN else 0
        current = list(carried)
        if far:
            current = list(
                self.b.loop(
                    0,
                    far,
                    _RUN,
                    current,
                    lambda position, *values: run(position, position + _RUN, values),
                )
            )
        if many > far and len(self.nest.reduced) > 1 and many >= _SHORTEST_RUN * lanes * count:
            current = run(self.b.const(far), self.b.const(many), current)
        elif many > far:
            current = list(self.b.loop(far, many, lanes * count, current, several))
        if full > many:
            current[:size] = self.b.loop(many, full, lanes, tuple(current[:size]), one)
        if vector.extent > full:
            mask = self.b.active(vector.extent - full, lanes)
            with self.elements.at(
                {vector: self.b.const(full)}, vector=vector, lanes=lanes, mask=mask
            ):
                current[:size] = self._step(stage, reducers, current[:size])
        return current

    def _merged(
        self, reducers: list[Reducer], old: Sequence[Register], new: Sequence[Register]
    ) -> list[Register]:
        return [
            part
            for reducer, x, y in zip(
                reducers, _unpack(reducers, old), _unpack(reducers, new), strict=True
            )
            for part in reducer.merge(self.b, x, y)
        ]

    def _step(
        self, stage: tuple[Op, ...], reducers: list[Reducer], carried: Sequence[Register]
    ) -> list[Register]:
        """Accumulate the elements at the current position."""
        out: list[Register] = []
        for op, reducer, accumulator in zip(
            stage, reducers, _unpack(reducers, carried), strict=True
        ):
            out += reducer.merge(self.b, accumulator, self.lifted(op, reducer))
        return out

    def _store_along(self, _: Sequence[Register]) -> Sequence[Register]:
        """Row stores along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            self.store(self.nest.row_stores)
            return ()
        if self.nest.straight:
            for _vector in self._vectors():
                self.store(self.nest.row_stores)
            return ()
        full = vector.extent // lanes * lanes

        def body(position: Register) -> None:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                self.store(self.nest.row_stores)

        if full:
            self.b.loop(0, full, lanes, (), body)
        if vector.extent > full:
            mask = self.b.active(vector.extent - full, lanes)
            with self.elements.at(
                {vector: self.b.const(full)}, vector=vector, lanes=lanes, mask=mask
            ):
                self.store(self.nest.row_stores)
        return ()

    # ---------------------------------------------------------------- values kept in scratch

    def scratch_size(self) -> int:
        return self.nest.row_scratch

    def scratch_index(self) -> Register:
        return self.elements.scalar_index(self.nest.place_in_scratch)


def _chunks(values: Sequence[Register], count: int) -> list[Sequence[Register]]:
    size = len(values) // count
    return [values[k * size : (k + 1) * size] for k in range(count)]


def _unpack(reducers: Sequence[Reducer], values: Sequence[Register]) -> list[Accumulator]:
    accumulators, at = [], 0
    for reducer in reducers:
        width = 2 if reducer.is_arg else 1
        accumulators.append(tuple(values[at : at + width]))
        at += width
    return accumulators
