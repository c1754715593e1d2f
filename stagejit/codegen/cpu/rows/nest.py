"""`RowNest`: the variables of a `reduce` region, and what both policies for them share.

Input: planned by `reduce.py`. Output: `RowPolicy`, the base of `loops.RowLoops` and
`panels.PanelLoops`. Invariant: within a pass the order of accumulation depends on shapes and
lanes only, never on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stagejit.codegen.cpu.rows.reducers import Accumulator, Reducer, merge_all
from stagejit.codegen.elements.elements import Memory, Stores
from stagejit.codegen.elements.loops import Loops
from stagejit.codegen.ir.nodes import Buffer, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import At, Cell, Do, Node
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var, linearize

Stage = tuple[Op, ...]  # reduces of one pass
Accumulators = tuple[Cell, ...]  # one for each of them


@dataclass(frozen=True, kw_only=True)
class RowNest(Loops):
    """The loops of a reduce region, over elements of the row space.

    kept, reduced: merged loop variables. straight: rows are short enough to be unrolled, so that
    what passes share stays in registers. stages[s]: reduces accumulated in pass s. row_stores,
    kept_stores: (store number, index of the stored value). cached: values kept in scratch, in the
    region's order.
    """

    kept: tuple[Var, ...]
    reduced: tuple[Var, ...]
    straight: bool
    stages: tuple[Stage, ...]
    row_stores: tuple[tuple[int, Index], ...]
    kept_stores: tuple[tuple[int, Index], ...]
    cached: tuple[Value, ...] = ()

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


class RowPolicy:
    """Results, kept values and stores of one nest."""

    def __init__(self, nest: RowNest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter = nest, emitter
        self.elements, self.b = emitter.elements, emitter.b
        self.along = nest.vector in nest.reduced  # whether lanes are elements of one row
        self.store = Stores(nest.region, self.elements, memory, nest.offsets, nest.streamed).write
        self.results: dict[Value, Register] = {}
        self.ready: set[Value] = set()  # kept values that the current pass finds in scratch
        self._filled: set[Value] = set()  # those that this pass writes
        self._scratch: dict[Value, Buffer] = {}

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

    def places(self) -> Sequence[At]:
        """The places of a short row, without what happens there."""
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
        self.emitter.forget()
        for buffer in self._scratch.values():
            self.b.forget(buffer)

    @property
    def cells(self) -> dict[Cell, Accumulator]:
        """The registers of each accumulator."""
        return self.emitter.cells

    def accumulators(self, stage: Stage) -> Accumulators:
        """New ones for the reduces of a stage."""
        return tuple(Cell(op.attrs["fn"]) for op in stage)

    def cleared(self, stage: Stage, sets: Sequence[Accumulators]) -> Node:
        """Sets of accumulators that have seen nothing."""

        def clear() -> None:
            for accumulators in sets:
                for op, cell in zip(stage, accumulators, strict=True):
                    self.cells[cell] = reducer_of(op).initial(self.b, self.nest.lanes)

        return Do("clear", clear, tuple(cell for accumulators in sets for cell in accumulators))

    def straight_row(self) -> Node:
        """All passes of a row (or of the row of each lane), without loops."""
        passes: list[Node] = []
        for stage in self.nest.stages:
            places = self.places()
            sets = [self.accumulators(stage) for _ in places]
            passes += [
                replace(place, body=self.lift(stage, accumulators))
                for place, accumulators in zip(places, sets, strict=True)
            ]
            passes.append(self.finish_pass(stage, sets))
        in_row = self.nest.row_stores
        store = Do("store", lambda: self.store(in_row))
        return (
            Do("a new row", self.begin),
            *passes,
            *(replace(place, body=store) for place in (self.places() if in_row else ())),
            Do("store results", lambda: self.store(self.nest.kept_stores)),
        )

    def lift(self, stage: Stage, accumulators: Accumulators) -> Node:
        """The elements where the loops stand, as accumulators."""

        def lift() -> None:
            for op, cell in zip(stage, accumulators, strict=True):
                self.cells[cell] = self.lifted(op)

        return Do("lift", lift, accumulators)

    def finish_pass(self, stage: Stage, sets: Sequence[Accumulators]) -> Node:
        """The results of a stage, of what was accumulated apart."""

        def finish() -> None:
            for op, *parts in zip(stage, *sets, strict=True):
                reducer = reducer_of(op)
                whole = merge_all(self.b, reducer, [self.cells[part] for part in parts])
                if self.along:
                    whole = reducer.across_lanes(self.b, whole)
                self.results[op.result] = reducer.result(self.b, whole)
            self.end_pass()

        return Do("finish", finish)

    def end_pass(self) -> None:
        """What this pass wrote to scratch can be read from now on. A pass evaluates the same values
        at each of its positions, so that each element of them was written."""
        self.ready |= self._filled
        self._filled = set()

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
