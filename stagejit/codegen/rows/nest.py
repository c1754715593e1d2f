"""`RowNest`: the loops of a `reduce` region, and what both ways of emitting them share.

Input: planned by `reduce.py`. Output: `RowEmitter`, the base of `loops.RowWriter` and
`panels.PanelWriter`. Invariant: within a pass the order of accumulation depends on shapes and
lanes only, never on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.elements.elements import Elements, Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Buffer, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.rows.reducers import Accumulator, Reducer, merge_all
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var, linearize

Stage = tuple[Op, ...]  # reduces of one pass
Accumulators = list[Accumulator]  # one for each of them


@dataclass(frozen=True)
class RowNest:
    """The loops of a reduce region.

    index: of an element of the row space. kept, reduced: merged loop variables. vector: one of
    them. straight: rows are short enough to be unrolled, so that what passes share stays in
    registers. stages[s]: reduces accumulated in pass s. row_stores, kept_stores: (store number,
    index of the stored value). cached: values kept in scratch, in the region's order. offsets,
    reads: as in maps.
    """

    index: Index
    kept: tuple[Var, ...]
    reduced: tuple[Var, ...]
    vector: Var | None
    lanes: int
    straight: bool
    stages: tuple[Stage, ...]
    row_stores: tuple[tuple[int, Index], ...]
    kept_stores: tuple[tuple[int, Index], ...]
    cached: tuple[Value, ...]
    streamed: tuple[bool, ...]
    offsets: tuple[Affine, ...]
    reads: tuple[tuple[Value, Affine], ...]

    @property
    def place_in_scratch(self) -> Affine:
        """Where in scratch an element of a row is kept. The vector variable is innermost, whatever
        its place among the axes, and takes whole vectors."""
        place = Affine()
        for var in self._scratch_order:
            place = place * self._room(var) + Affine.of(var)
        return place

    @property
    def row_scratch(self) -> int:
        """Elements of scratch for one kept value of a row, or for each of the rows in a panel."""
        return math.prod(self._room(var) for var in self._scratch_order)

    @property
    def _scratch_order(self) -> tuple[Var, ...]:
        others = tuple(var for var in self.reduced if var is not self.vector)
        return (*others, self.vector) if self.vector in self.reduced else others

    def _room(self, var: Var) -> int:
        return -(-var.extent // self.lanes) * self.lanes if var is self.vector else var.extent


def reducer_of(op: Op) -> Reducer:
    """The monoid of a reduce op."""
    fn, dtype = op.attrs["fn"], op.operands[0].type.dtype
    is_arg = fn in ("argmax", "argmin")
    return Reducer(fn, dtype, op.result.type.dtype if is_arg else None)


class RowEmitter:
    """Results, kept values and stores of one nest."""

    def __init__(
        self, region: ClosedRegion, nest: RowNest, elements: Elements, memory: Sequence[Memory]
    ) -> None:
        self.nest, self.elements, self.b = nest, elements, elements.b
        self.along = nest.vector in nest.reduced  # whether lanes are elements of one row
        self.store = Stores(region, elements, memory, nest.offsets, nest.streamed).write
        self.results: dict[Value, Register] = {}
        self.ready: set[Value] = set()  # kept values that the current pass finds in scratch
        self._filled: set[Value] = set()  # those that this pass writes
        self._scratch: dict[Value, Buffer] = {}
        # Of a row without loops: what is known at each of its positions, also to later passes.
        self._known: dict[tuple[int, ...], dict[tuple[Value, Index], Register]] = {}

    # ---------------------------------------------------------------- what a subclass says

    def result_of(self, result: Value) -> Register:
        """The result of a reduce for the row (or the row of each lane) at the current position."""
        return self.results[result]

    def scratch_size(self) -> int:
        """Elements of scratch that one kept value takes."""
        raise NotImplementedError

    def scratch_index(self) -> Register:
        """Where in scratch the element at the current position is kept."""
        raise NotImplementedError

    def positions(self) -> Iterator[None]:
        """Each place of a short row in turn, as straight code."""
        raise NotImplementedError

    # ---------------------------------------------------------------- shared parts

    def bind(self) -> None:
        """Reduce results and kept values come from here, not from evaluation."""
        nest = self.nest
        axes = nest.stages[0][0].attrs["axes"]
        kept = tuple(part for axis, part in enumerate(nest.index) if axis not in axes)
        for stage in nest.stages:
            for op in stage:
                where = linearize(kept, op.result.shape)
                self.elements.bound[op.result] = self._result_reader(op.result, where)
        for value in nest.cached:
            elem = storage_type(value.type.dtype)
            self._scratch[value] = self.b.scratch("row", elem, self.scratch_size(), once=True)
            self.elements.bound[value] = self._cache_reader(value)

    def begin(self) -> None:
        """A new row: nothing is known of it."""
        self.results, self.ready, self._filled = {}, set(), set()
        self._known = {}
        for buffer in self._scratch.values():
            self.b.forget(buffer)

    def straight_row(self) -> None:
        """All passes of a row (or of the row of each lane), without loops."""
        self.begin()
        for stage in self.nest.stages:
            sets = [[self.lifted(op) for op in stage] for _ in self.positions()]
            self.finish_pass(stage, sets)
        if self.nest.row_stores:
            for _ in self.positions():
                self.store(self.nest.row_stores)
        self.store(self.nest.kept_stores)

    def finish_pass(self, stage: Stage, sets: Sequence[Accumulators]) -> None:
        """The results of a stage, of what was accumulated apart."""
        for op, *parts in zip(stage, *sets, strict=True):
            reducer = reducer_of(op)
            whole = merge_all(self.b, reducer, parts)
            if self.along:
                whole = reducer.across_lanes(self.b, whole)
            self.results[op.result] = reducer.result(self.b, whole)
        self.end_pass()

    def end_pass(self) -> None:
        """What this pass wrote to scratch can be read from now on. A pass evaluates the same values
        at each of its positions, so that each element of them was written."""
        self.ready |= self._filled
        self._filled = set()

    def known_at(self, *numbers: int) -> dict[tuple[Value, Index], Register]:
        """What was evaluated at a position that is known by numbers, since the row began."""
        return self._known.setdefault(numbers, {})

    def lifted(self, op: Op) -> Accumulator:
        """The element at the current position as an accumulator; lanes that are masked off are
        neutral."""
        reducer = reducer_of(op)
        element = self.elements.value(op.operands[0], self.nest.index)
        position = None
        if reducer.is_arg:
            part = self.nest.index[op.attrs["axes"][0]]
            position = self.elements.lane_index(part, narrow=reducer.narrow_index)
        mask = self.elements.position.mask if self.along else None
        return reducer.lift(self.b, element, position, self.nest.lanes, mask)

    def _result_reader(self, result: Value, where: Affine) -> Callable[[Index], Register]:
        def read(index: Index) -> Register:
            if linearize(index, result.shape) != where:
                raise InternalError(
                    f"{result} is used outside its row", step="codegen", loc=result.op.loc
                )
            return self.result_of(result)

        return read

    def _cache_reader(self, value: Value) -> Callable[[Index], Register]:
        def read(index: Index) -> Register:
            if index != self.nest.index:
                return self._computed(value, index)
            buffer, at, lanes = self._scratch[value], self.scratch_index(), self.nest.lanes
            is_bool = value.type.dtype.kind == "bool"
            if value in self.ready:
                raw = self.b.load(buffer, at, lanes)
                return self.b.compare("ne", raw, 0) if is_bool else raw
            register = self._computed(value, index)
            register = self.b.splat(register, lanes) if lanes else register
            self._filled.add(value)
            self.b.store(self.b.cast("zext", register, "i8") if is_bool else register, buffer, at)
            return register

        return read

    def _computed(self, value: Value, index: Index) -> Register:
        reader = self.elements.bound.pop(value)
        try:
            return self.elements.value(value, index)
        finally:
            self.elements.bound[value] = reader
