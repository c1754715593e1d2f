"""`RowNest`: the loops of a `reduce` region, and what all policies for them share.

Input: planned by `plan.py`. Output: `RowPolicy`, the base of those of each target. Invariant:
within a pass the order of accumulation depends on the kernel alone, which is made for a machine,
never on which of its workers takes what.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from stagejit.base.records import record
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.nodes import Buffer, Type, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.tree import Cell, Do, Node
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.reducers import Accumulator, Reducer, merge_all
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Affine, Index, Var, linearize

Stage = tuple[Op, ...]  # reduces of one pass
Accumulators = tuple[Cell, ...]  # one for each of them


@record(kw_only=True)
class RowNest(Loops):
    """The loops of a reduce region, over elements of the row space.

    stages[s]: reduces accumulated in pass s. row_stores, kept_stores: (store number, index of the
    stored value). cached: values kept in scratch, in the region's order.
    """

    stages: tuple[Stage, ...]
    row_stores: tuple[tuple[int, Index], ...]
    kept_stores: tuple[tuple[int, Index], ...]
    cached: tuple[Value, ...] = ()

    @property
    def kept(self) -> tuple[Var, ...]:
        """The variables from row to row."""
        return self.groups[0]

    @property
    def reduced(self) -> tuple[Var, ...]:
        """Those along a row."""
        return self.groups[1]

    @property
    def lanes_are_rows(self) -> bool:
        """Whether each lane is a row of its own, and not an element of one row."""
        return self.vector in self.kept

    @property
    def width(self) -> int:
        """How many rows advance together: their elements are neighbours in scratch."""
        return 1

    @property
    def place_in_scratch(self) -> Affine:
        """Where in scratch an element of a row is kept."""
        variables = [Affine.of(var) for var, _ in self._rooms]
        return linearize(variables, [room for _, room in self._rooms])

    @property
    def scratch_size(self) -> int:
        """Elements of scratch for one kept value, of all rows that advance together."""
        return math.prod(room for _, room in self._rooms) * self.width

    @property
    def _rooms(self) -> list[tuple[Var, int]]:
        """Elements of scratch along each variable. The vector variable is innermost, whatever its
        place among the axes, and takes whole vectors."""
        rooms = [(var, var.extent) for var in self.reduced if var is not self.vector]
        if self.vector in self.reduced:
            rooms.append((self.vector, -(-self.vector.extent // self.lanes) * self.lanes))
        return rooms


def reducer_of(op: Op) -> Reducer:
    """The monoid of a reduce op."""
    return Reducer(op.attrs["fn"], op.operands[0].type.dtype, op.result.type.dtype)


class RowPolicy(ABC):
    """Results, kept values and stores of one nest."""

    def __init__(self, nest: RowNest, emitter: Emitter, memory: Sequence[Memory]) -> None:
        self.nest, self.emitter = nest, emitter
        self.elements, self.b = emitter.elements, emitter.b
        self.elements.ahead = nest.ahead
        self.store = Stores(nest.region, self.elements, memory, nest.offsets, nest.streamed).write
        self.results: dict[Value, Register] = {}
        self.column = self.b.const(0)  # of the rows that advance together, where the loops stand
        self.ready: set[Value] = set()  # kept values that the current pass finds in scratch
        self._filled: set[Value] = set()  # those that this pass writes
        self._scratch: dict[Value, Buffer] = {}
        self._bind()

    def _bind(self) -> None:
        """Reduce results and kept values come from here, not from evaluation."""
        nest = self.nest
        axes = nest.stages[0][0].attrs["axes"]
        kept = tuple(part for axis, part in enumerate(nest.index) if axis not in axes)
        for op in (op for stage in nest.stages for op in stage):
            self.elements.bind(op.result, kept, partial(self.result_of, op.result))
        for value in nest.cached:
            self._scratch[value] = self.room(storage_type(value.type.dtype), nest.scratch_size)
            self.elements.bound[value] = self._cache_reader(value)

    # ---------------------------------------------------------------- what a subclass says

    @abstractmethod
    def one_pass(self, stage: Stage) -> Node:
        """Accumulates what a stage reduces, from the first element of a row to the last."""

    @abstractmethod
    def along_row(self, body: Node) -> Node:
        """`body` for each element of a row."""

    def for_rows(self, body: Node) -> Node:
        """`body` for each row."""
        return body

    @property
    def lanes(self) -> int:
        """Of an accumulator."""
        return self.nest.lanes

    def room(self, elem: Type, size: int) -> Buffer:
        """Scratch for kept values."""
        return self.b.scratch("row", elem, size, once=True)

    def kept_alignment(self, buffer: Buffer) -> int:
        """Bytes of which the places of kept values are multiples; 0: of an element's."""
        return 0

    def stored(self, what: str, stores: Sequence[tuple[int, Index]]) -> Node:
        """Writes stores where the loops stand."""
        return Do(what, lambda: self.store(stores))

    def result_of(self, result: Value) -> Register:
        """The result of a reduce for the row (or the row of each lane) at the current position."""
        return self.results[result]

    # ---------------------------------------------------------------- shared parts

    def rows(self) -> Node:
        """All passes, then the stores."""
        nest, stores = self.nest, list[Node]()
        if nest.row_stores:
            stores.append(self.along_row(self.stored("store", nest.row_stores)))
        if nest.kept_stores:
            stores.append(self.for_rows(self.stored("store results", nest.kept_stores)))
        return (Do("a new row", self.begin), *map(self.one_pass, nest.stages), *stores)

    def begin(self) -> None:
        """A new row: nothing is known of it."""
        self.results, self.ready, self._filled = {}, set(), set()
        self.emitter.forget()
        for buffer in self._scratch.values():
            if buffer.once:
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
        cells = [cell for accumulators in sets for cell in accumulators]

        def nothing() -> Iterator[Accumulator]:
            return (reducer_of(op).initial(self.b, self.lanes) for _ in sets for op in stage)

        return self.emitter.set("clear", cells, nothing)

    def lift(self, stage: Stage, accumulators: Accumulators) -> Node:
        """The elements where the loops stand, as accumulators."""
        return self.emitter.set("lift", accumulators, lambda: map(self.lifted, stage))

    def finish_pass(self, stage: Stage, sets: Sequence[Accumulators]) -> Node:
        """The results of a stage, of what was accumulated apart."""

        def finish() -> None:
            for op, *parts in zip(stage, *sets, strict=True):
                self.results[op.result] = reducer_of(op).result(self.b, self.merged(op, parts))
            self.end_pass()

        return Do("finish", finish)

    def merged(self, op: Op, parts: Sequence[Cell]) -> Accumulator:
        """What was accumulated apart, and in lanes of one row."""
        reducer = reducer_of(op)
        whole = merge_all(self.b, reducer, [self.cells[part] for part in parts])
        return whole if self.nest.lanes_are_rows else reducer.across_lanes(self.b, whole)

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
        mask = None if self.nest.lanes_are_rows else self.elements.position.mask
        return reducer.lift(self.b, element, position, self.lanes, mask)

    def _cache_reader(self, value: Value) -> Callable[[Index], Register]:
        def read(index: Index) -> Register:
            if index != self.nest.index:
                return self._computed(value, index)
            buffer, lanes, row = self._scratch[value], self.lanes, self.nest.place_in_scratch
            at = self.elements.scalar_index(row) * self.nest.width + self.column
            aligned = self.kept_alignment(buffer)
            is_bool = value.type.dtype.kind == "bool"
            if value in self.ready:
                raw = self.b.load(buffer, at, lanes, alignment=aligned)
                return self.b.compare("ne", raw, 0) if is_bool else raw
            register = self._computed(value, index)
            register = self.b.splat(register, lanes) if lanes else register
            self._filled.add(value)
            held = self.b.cast("zext", register, "i8") if is_bool else register
            self.b.store(held, buffer, at, alignment=aligned)
            return register

        return read

    def _computed(self, value: Value, index: Index) -> Register:
        reader = self.elements.bound.pop(value)
        try:
            return self.elements.value(value, index)
        finally:
            self.elements.bound[value] = reader
