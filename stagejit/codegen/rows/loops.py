"""Emits a `reduce` region whose rows lie along the lanes: passes over each row, then its stores.

Input: a `RowNest` whose vector variable is reduced, or that has none. Output: the kernel body.
Invariant: as in `nest.py`; an item is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stagejit.codegen.elements.items import Items, Loop, in_vectors, nested
from stagejit.codegen.ir.builder import Operand
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.rows.nest import Accumulators, RowEmitter, Stage, reducer_of

_Sets = list[Accumulators]  # what is accumulated apart

_ACCUMULATORS = 4  # vectors of a row that are summed apart, to hide latency
# Elements that are accumulated from nothing and then merged into the row's accumulators, so that
# rounding errors of a long sum grow with the number of runs, not of elements.
_RUN = 1 << 14
_SHORTEST_RUN = 8  # iterations along the vector variable that are a run, inside other loops


class RowWriter(RowEmitter):
    """Emits one nest, row by row."""

    def emit(self, before: int | None = None, *, last: bool = True) -> int:
        """Writes the kernel's body; returns the number of items. before, last: see `Items.emit`."""
        self.bind()
        items = Items.over([Loop(var) for var in self.nest.kept])
        row = self.straight_row if self.nest.straight else self._row
        items.emit(self.elements, row, before, last=last)
        return items.total

    def _row(self) -> None:
        self.begin()
        for stage in self.nest.stages:
            self._pass(stage)
        if self.nest.row_stores:
            nested(self.elements, self._outer, self._store_along)
        self.store(self.nest.kept_stores)

    def _pass(self, stage: Stage) -> None:
        initial = [reducer_of(op).initial(self.b, self.nest.lanes) for op in stage]
        sets = [initial] * self._sets(len(stage))

        def run(*values: Register) -> Sequence[Register]:
            return _flat(self._along(stage, initial, _like(sets, values)))

        self.finish_pass(stage, _like(sets, nested(self.elements, self._outer, run, _flat(sets))))

    def _sets(self, reduces: int) -> int:
        """How many vectors are accumulated apart."""
        vector = self.nest.vector
        if vector is None:
            return 1
        return max(1, min(_ACCUMULATORS // min(reduces, 2), vector.extent // self.nest.lanes))

    @property
    def _outer(self) -> list[Loop]:
        """Over the reduced variables but the vector variable."""
        return [Loop(var) for var in self.nest.reduced if var is not self.nest.vector]

    # ---------------------------------------------------------------- a short row, unrolled

    def positions(self) -> Iterator[None]:
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

    # ---------------------------------------------------------------- a long row, in loops

    def _along(self, stage: Stage, initial: Accumulators, sets: _Sets) -> _Sets:
        """One run along the vector variable, from accumulators to accumulators."""
        vector, lanes, count = self.nest.vector, self.nest.lanes, len(sets)
        if vector is None:
            return [self._step(stage, accumulators) for accumulators in sets]

        def at(position: Register, accumulators: Accumulators) -> Accumulators:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                return self._step(stage, accumulators)

        def several(position: Register, sets: _Sets) -> _Sets:
            return [at(position + number * lanes, part) for number, part in enumerate(sets)]

        def run(start: Register, stop: Register, sets: _Sets) -> _Sets:
            fresh = self._loop(start, stop, lanes * count, [initial] * count, several, runs=True)
            return [self._merged(stage, old, new) for old, new in zip(sets, fresh, strict=True)]

        many = vector.extent // (lanes * count) * (lanes * count)
        full = vector.extent // lanes * lanes
        far = many // _RUN * _RUN if many > _RUN else 0
        if far:
            sets = self._loop(0, far, _RUN, sets, lambda start, old: run(start, start + _RUN, old))
        if many > far and len(self.nest.reduced) > 1 and many >= _SHORTEST_RUN * lanes * count:
            sets = run(self.b.const(far), self.b.const(many), sets)
        elif many > far:
            sets = self._loop(far, many, lanes * count, sets, several)
        if full > many:
            sets[:1] = self._loop(many, full, lanes, sets[:1], several)
        if vector.extent > full:
            mask = self.b.active(vector.extent - full, lanes)
            with self.elements.at(mask=mask):
                sets[:1] = [at(self.b.const(full), sets[0])]
        return sets

    def _loop(
        self,
        start: Operand,
        stop: Operand,
        step: int,
        sets: _Sets,
        body: Callable[[Register, _Sets], _Sets],
        *,
        runs: bool | None = None,
    ) -> _Sets:
        """A loop that carries accumulators."""

        def iteration(position: Register, *values: Register) -> Sequence[Register]:
            return _flat(body(position, _like(sets, values)))

        return _like(sets, self.b.loop(start, stop, step, _flat(sets), iteration, runs=runs))

    def _step(self, stage: Stage, accumulators: Accumulators) -> Accumulators:
        """With the elements at the current position."""
        return [
            reducer_of(op).merge(self.b, accumulator, self.lifted(op))
            for op, accumulator in zip(stage, accumulators, strict=True)
        ]

    def _merged(self, stage: Stage, first: Accumulators, second: Accumulators) -> Accumulators:
        return [
            reducer_of(op).merge(self.b, x, y)
            for op, x, y in zip(stage, first, second, strict=True)
        ]

    def _store_along(self) -> None:
        """Row stores along the vector variable."""
        vector = self.nest.vector
        if vector is None:
            self.store(self.nest.row_stores)
            return
        in_vectors(
            self.elements,
            Loop(vector, vector.extent),
            self.nest.lanes,
            lambda: self.store(self.nest.row_stores),
        )

    # ---------------------------------------------------------------- values kept in scratch

    def scratch_size(self) -> int:
        return self.nest.row_scratch

    def scratch_index(self) -> Register:
        return self.elements.scalar_index(self.nest.place_in_scratch)


def _flat(sets: _Sets) -> list[Register]:
    return [part for accumulators in sets for accumulator in accumulators for part in accumulator]


def _like(sets: _Sets, values: Sequence[Register]) -> _Sets:
    """`values` in the shape of `sets`."""
    rest = iter(values)
    return [
        [tuple(next(rest) for _ in accumulator) for accumulator in accumulators]
        for accumulators in sets
    ]
