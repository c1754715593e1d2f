"""Emits the loops of a `reduce` region: passes over each row, then its stores.

Input: a `RowNest`, planned by `rows.py`. Output: the kernel body. Invariant: within a pass the
order of accumulation depends on shapes and lanes only, never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stagejit.codegen.elements import Elements, Memory
from stagejit.codegen.ir import Buffer, storage_type
from stagejit.codegen.ir import Value as Register
from stagejit.codegen.items import Items, Loop
from stagejit.codegen.reducers import Accumulator, Reducer, merge_all
from stagejit.dispatch.affine import Affine, Index, Var, linearize
from stagejit.dispatch.region import Region
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value


@dataclass(frozen=True)
class RowNest:
    """The loops of a reduce region.

    index: of an element of the row space. kept, reduced: merged loop variables. vector: one of
    them. stages[s]: reduces accumulated in pass s. row_stores, kept_stores: (store number, index
    of the stored value). cached: values kept in scratch. offsets, reads: as in maps.
    """

    index: Index
    kept: tuple[Var, ...]
    reduced: tuple[Var, ...]
    vector: Var | None
    lanes: int
    stages: tuple[tuple[Op, ...], ...]
    row_stores: tuple[tuple[int, Index], ...]
    kept_stores: tuple[tuple[int, Index], ...]
    cached: frozenset[Value]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]


def reducer_of(op: Op) -> Reducer:
    """The monoid of a reduce op."""
    fn, dtype = op.attrs["fn"], op.operands[0].type.dtype
    is_arg = fn in ("argmax", "argmin")
    return Reducer(fn, dtype, op.result.type.dtype if is_arg else None)


class RowWriter:
    """Emits one nest."""

    VECTORS_OF_ROWS = 8  # vectors that advance together where each lane is a row ("outer")
    ACCUMULATORS = 4  # vectors along a row that are summed apart ("inner"), to hide latency

    def __init__(self, region: Region, nest: RowNest, elements: Elements,
                 memory: Sequence[Memory]) -> None:
        self.region, self.nest, self.elements, self.memory = region, nest, elements, memory
        self.b = elements.b
        self.block = 1  # vectors of rows in the body being written
        self.results: dict[Value, list[Register]] = {}
        self.vector_number = 0  # which of them is being evaluated
        self._ready: set[Value] = set()  # cached values that the current pass finds in scratch
        self._scratch: dict[Value, Buffer] = {}

    # ---------------------------------------------------------------- entry

    def emit(self) -> int:
        """Writes the kernel's body; returns the number of items."""
        nest = self.nest
        self._bind()
        outer = [Loop(var) for var in nest.kept if var is not nest.vector]
        if nest.vector is None or nest.vector in nest.reduced:
            items = Items.over(outer)
            items.emit(self.elements, self._row)
        else:
            items = Items.over([*outer, Loop(nest.vector, nest.lanes * self._rows_at_once())])
            items.emit(self.elements, self._rows)
        return items.total

    def _rows_at_once(self) -> int:
        """Vectors of rows that one item advances together."""
        assert self.nest.vector is not None
        available = -(-self.nest.vector.extent // self.nest.lanes)
        heavy = max(len(stage) for stage in self.nest.stages)
        return max(1, min(self.VECTORS_OF_ROWS // heavy, available))

    def _bind(self) -> None:
        """Reduce results and cached values come from here, not from evaluation."""
        nest = self.nest
        axes = nest.stages[0][0].attrs["axes"]
        kept = tuple(part for axis, part in enumerate(nest.index) if axis not in axes)
        for stage in nest.stages:
            for op in stage:
                where = linearize(kept, op.result.shape)
                self.elements.bound[op.result] = self._result_reader(op.result, where)
        for value in nest.cached:
            size = self._scratch_elements()
            self._scratch[value] = self.b.scratch("row", storage_type(value.type.dtype), size)
            self.elements.bound[value] = self._cache_reader(value)

    def _result_reader(self, result: Value, where: Affine) -> Callable[[Index], Register]:
        def read(index: Index) -> Register:
            if linearize(index, result.shape) != where:
                raise InternalError(f"{result} is used outside its row", step="codegen",
                                    loc=result.op.loc)
            return self.results[result][self.vector_number]

        return read

    # ---------------------------------------------------------------- rows along the lanes

    def _row(self) -> None:
        """One row: its passes, then its stores; see Note [Two shapes of vectors] in rows.py."""
        self.results, self._ready = {}, set()
        for stage in self.nest.stages:
            self._pass(stage, [reducer_of(op) for op in stage])
        if self.nest.row_stores:
            self._over_reduced(0, (), self._store_along)
        self._store_kept()

    def _pass(self, stage: tuple[Op, ...], reducers: list[Reducer]) -> None:
        initial = [r.initial(self.b, self.nest.lanes) for r in reducers]
        count = self._accumulators(len(stage))
        carried = [part for _ in range(count) for acc in initial for part in acc]
        final = self._over_reduced(0, carried, lambda c: self._along(stage, reducers, c, count))
        sets = [_unpack(reducers, part) for part in _chunks(final, count)]
        for number, (op, reducer) in enumerate(zip(stage, reducers, strict=True)):
            whole = merge_all(self.b, reducer, [accs[number] for accs in sets])
            row = reducer.across_lanes(self.b, whole)
            self.results[op.result] = [reducer.result(self.b, row)]
        self._end_pass(stage)

    def _accumulators(self, reduces: int) -> int:
        vector = self.nest.vector
        if vector is None:
            return 1
        return max(1, min(self.ACCUMULATORS // min(reduces, 2), vector.extent // self.nest.lanes))

    def _over_reduced(self, depth: int, carried: Sequence[Register],
                      body: Callable[[Sequence[Register]], Sequence[Register]],
                      ) -> Sequence[Register]:
        """Loops over the reduced variables that are not the vector variable, around `body`."""
        loops = [var for var in self.nest.reduced if var is not self.nest.vector]
        if depth == len(loops):
            return body(carried)

        def iteration(position: Register, *values: Register) -> Sequence[Register]:
            with self.elements.at({loops[depth]: position}):
                return self._over_reduced(depth + 1, values, body)

        return self.b.loop(0, loops[depth].extent, 1, tuple(carried), iteration)

    def _along(self, stage: tuple[Op, ...], reducers: list[Reducer],
               carried: Sequence[Register], count: int) -> Sequence[Register]:
        """One run along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            return self._step(stage, reducers, carried)
        size = len(carried) // count

        def several(position: Register, *values: Register) -> Sequence[Register]:
            out: list[Register] = []
            for number, part in enumerate(_chunks(values, count)):
                with self.elements.at({vector: position + number * lanes}, vector=vector,
                                      lanes=lanes):
                    out += self._step(stage, reducers, part)
            return out

        def one(position: Register, *values: Register) -> Sequence[Register]:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                return self._step(stage, reducers, values)

        many = vector.extent // (lanes * count) * (lanes * count)
        full = vector.extent // lanes * lanes
        current = list(carried)
        if many:
            current = list(self.b.loop(0, many, lanes * count, tuple(current), several))
        if full > many:
            current[:size] = self.b.loop(many, full, lanes, tuple(current[:size]), one)
        if vector.extent > full:
            mask = self.b.active(vector.extent - full, lanes)
            with self.elements.at({vector: self.b.const(full)}, vector=vector, lanes=lanes,
                                  mask=mask):
                current[:size] = self._step(stage, reducers, current[:size])
        return current

    def _step(self, stage: tuple[Op, ...], reducers: list[Reducer],
              carried: Sequence[Register]) -> list[Register]:
        """Accumulate the elements at the current position."""
        mask = self.elements.position.mask
        out: list[Register] = []
        for op, reducer, accumulator in zip(stage, reducers, _unpack(reducers, carried),
                                            strict=True):
            element = self.elements.value(op.operands[0], self.nest.index)
            position = None
            if reducer.is_arg:
                part = self.nest.index[op.attrs["axes"][0]]
                position = self.elements.lane_index(part, narrow=reducer.narrow_index)
            out += reducer.accumulate(self.b, accumulator, element, position, mask)
        return out

    def _store_along(self, _: Sequence[Register]) -> Sequence[Register]:
        """Row stores along the vector variable."""
        vector, lanes = self.nest.vector, self.nest.lanes
        if vector is None:
            self._store_row()
            return ()
        full = vector.extent // lanes * lanes

        def body(position: Register) -> None:
            with self.elements.at({vector: position}, vector=vector, lanes=lanes):
                self._store_row()

        if full:
            self.b.loop(0, full, lanes, (), body)
        if vector.extent > full:
            mask = self.b.active(vector.extent - full, lanes)
            with self.elements.at({vector: self.b.const(full)}, vector=vector, lanes=lanes,
                                  mask=mask):
                self._store_row()
        return ()

    # ---------------------------------------------------------------- a row in each lane

    def _rows(self) -> None:
        """A block of rows, several vectors of them at once where they all exist."""
        vector, lanes, count = self.nest.vector, self.nest.lanes, self._rows_at_once()
        assert vector is not None
        base = self.elements.position.env[vector]
        if vector.extent % (lanes * count) == 0:
            self._rows_block(base, count, None)
            return

        def single(position: Register) -> None:
            self._rows_block(position, 1, self.b.mask_below(position, vector.extent, lanes))

        def rest() -> None:
            self.b.loop(base, vector.extent, lanes, (), single, runs=True)

        if vector.extent < lanes * count:
            rest()
        else:
            inside = self.b.compare("le", base + lanes * count, vector.extent)
            self.b.if_(inside, lambda: self._rows_block(base, count, None), rest)

    def _rows_block(self, base: Register, count: int, mask: Register | None) -> None:
        self.block, self.results, self._ready = count, {}, set()
        with self.elements.at(vector=self.nest.vector, lanes=self.nest.lanes, mask=mask):
            for stage in self.nest.stages:
                self._pass_of_rows(stage, [reducer_of(op) for op in stage], base)
            if self.nest.row_stores:
                self._over_reduced(0, (), lambda _: self._each(base, self._store_row))
            self._each(base, self._store_kept)

    def _pass_of_rows(self, stage: tuple[Op, ...], reducers: list[Reducer],
                      base: Register) -> None:
        carried = [part for _ in range(self.block) for reducer in reducers
                   for part in reducer.initial(self.b, self.nest.lanes)]

        def body(values: Sequence[Register]) -> Sequence[Register]:
            out: list[Register] = []
            parts = _chunks(values, self.block)
            self._each(base, lambda: out.extend(
                self._step(stage, reducers, parts[self.vector_number])))
            return out

        final = self._over_reduced(0, carried, body)
        sets = [_unpack(reducers, part) for part in _chunks(final, self.block)]
        for number, (op, reducer) in enumerate(zip(stage, reducers, strict=True)):
            self.results[op.result] = [reducer.result(self.b, accs[number]) for accs in sets]
        self._end_pass(stage)

    def _each(self, base: Register, body: Callable[[], None]) -> Sequence[Register]:
        """`body` for every vector of rows in the block."""
        vector = self.nest.vector
        assert vector is not None
        for number in range(self.block):
            self.vector_number = number
            with self.elements.at({vector: base + number * self.nest.lanes}):
                body()
        self.vector_number = 0
        return ()

    # ---------------------------------------------------------------- stores

    def _store_row(self) -> None:
        self._store(self.nest.row_stores)

    def _store_kept(self) -> None:
        self._store(self.nest.kept_stores)

    def _store(self, places: Sequence[tuple[int, Index]]) -> None:
        for number, index in places:
            store = self.region.stores[number]
            register = self.elements.value(store.value, index)
            offset = self.elements.with_starts(store, index, self.nest.offsets[number])
            self.elements.store(register, store.value.type.dtype, self.memory[number], offset)

    # ---------------------------------------------------------------- values kept in scratch

    def _scratch_elements(self) -> int:
        size = 1
        for var in self.nest.reduced:
            size *= var.extent
        lanes, vector = max(self.nest.lanes, 1), self.nest.vector
        if vector is not None and vector in self.nest.kept:
            return size * lanes * self._rows_at_once()
        return size + lanes

    def _cache_reader(self, value: Value) -> Callable[[Index], Register]:
        def read(index: Index) -> Register:
            if index != self.nest.index:
                return self._computed(value, index)
            buffer, at = self._scratch[value], self._scratch_offset()
            lanes = self.nest.lanes
            if value in self._ready:
                return self.b.load(buffer, at, lanes)
            register = self._computed(value, index)
            self.b.store(self.b.splat(register, lanes) if lanes else register, buffer, at)
            return register

        return read

    def _computed(self, value: Value, index: Index) -> Register:
        reader = self.elements.bound.pop(value)
        try:
            return self.elements.value(value, index)
        finally:
            self.elements.bound[value] = reader

    def _scratch_offset(self) -> Register:
        """Where in scratch the current position of the row is kept."""
        at = Affine()
        for var in self.nest.reduced:
            at = at * var.extent + Affine.of(var)
        offset = self.elements.scalar_index(at)
        if self.nest.vector in self.nest.kept:
            width = self.nest.lanes * self.block
            return offset * width + self.vector_number * self.nest.lanes
        return offset

    def _end_pass(self, stage: tuple[Op, ...]) -> None:
        """What this pass computed of the cached values is in scratch from now on."""
        computed = _evaluated([op.operands[0] for op in stage], set(self.elements.memory))
        self._ready |= self.nest.cached & computed


def _evaluated(roots: Sequence[Value], leaves: set[Value]) -> set[Value]:
    found: set[Value] = set()
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value in found or value in leaves or value.op.kind in ("reduce", "input"):
            continue
        found.add(value)
        pending.extend(value.op.operands)
    return found


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
