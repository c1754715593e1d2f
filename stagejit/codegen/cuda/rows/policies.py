"""The loops of a `reduce` region for threads: each has elements of a row, in registers or in loops.

Input: a `ThreadNest`. Output: the tree of the kernel. Invariant: as in `codegen/rows/nest.py`; all
members of a row know its results, one of them stores these.

Note [Elements that are none]: where members do not share a row evenly and all of it is in
registers, a member without an element reads the last one, which counts for nothing and is not
stored: so there is no branch, and what passes share stays where it is.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce

from stagejit.base.records import record
from stagejit.codegen.cuda.rows.mapping import Mapping
from stagejit.codegen.cuda.rows.merging import Column, across_block, across_warp, shared_panel
from stagejit.codegen.cuda.threads import ThreadEmitter
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.ir.nodes import Buffer, Type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.nest.tree import Do, Node, Parallel, When, Within
from stagejit.codegen.places.walk import Key
from stagejit.codegen.reducers import Accumulator, Panel, chosen
from stagejit.codegen.rows.loops import RowLoops
from stagejit.codegen.rows.nest import Accumulators, RowNest, RowPolicy, Stage, reducer_of
from stagejit.codegen.rows.runs import MOST_ADDED
from stagejit.graph.ir import Op, Value
from stagejit.index.affine import Index, Var


@record(kw_only=True)
class ThreadNest(RowNest):
    """Rows by threads. Scratch is shared memory: each of the items of a block has some."""

    mapping: Mapping

    @property
    def width(self) -> int:
        mapping = self.mapping
        return mapping.together * mapping.lanes if mapping.rows_are_neighbours else 1

    @property
    def row_size(self) -> int:
        """Elements of scratch for a kept value, of the rows that advance together."""
        return super().scratch_size

    @property
    def scratch_size(self) -> int:
        copies = 1 if self.mapping.rows_are_neighbours else self.mapping.together
        return self.row_size * copies


class ThreadRows(RowPolicy):
    """Who stores, and how members meet."""

    nest: ThreadNest
    emitter: ThreadEmitter

    def __init__(self, nest: ThreadNest, emitter: ThreadEmitter, memory: Sequence[Memory]) -> None:
        self.mapping, self.grid = nest.mapping, emitter.b
        self._panels: dict[Value, Panel] = {}
        super().__init__(nest, emitter, memory)
        mapping = self.mapping
        apart = mapping.rows_are_neighbours
        self._column = Column(self.grid, mapping.members, mapping.together, self.lanes)
        self._by_barrier = mapping.members > (1 if apart else WARP)
        self._once = len(nest.stages) == 1

    @property
    def lanes(self) -> int:
        return self.mapping.lanes if self.mapping.lanes > 1 else 0

    def kept_alignment(self, buffer: Buffer) -> int:
        return self.lanes * buffer.elem.bits // 8

    def room(self, elem: Type, size: int) -> Buffer:
        return self.grid.shared("row", elem, size)

    def tree(self) -> Parallel:
        return self.mapping.items(self.nest.kept, self.elements, self.rows())

    def begin(self) -> None:
        super().begin()
        mapping, thread = self.mapping, self.grid.thread_of_block()
        if not self.nest.cached:
            return
        if mapping.rows_are_neighbours:
            self.column = thread % mapping.together * mapping.lanes
        else:
            self.column = thread // mapping.members * self.nest.row_size

    # ---------------------------------------------------------------- stores

    def stored(self, what: str, stores: Sequence[tuple[int, Index]]) -> Node:
        each = stores is self.nest.row_stores
        body: Node = When("it exists", lambda: self._who(each), super().stored(what, stores))
        if not each and self.nest.row_stores and self.mapping.members > 1:
            body = (Do("all have read", self._meet), body)
        return body

    def _who(self, each: bool) -> Register | None:
        """Whether this thread stores: of an element, or of a row."""
        conditions = [self.emitter.exists]
        if not each and self.mapping.members > 1:
            conditions.append(self.grid.compare("eq", self.emitter.member, 0))
        return self._all(conditions)

    @staticmethod
    def _all(conditions: Sequence[Register | None]) -> Register | None:
        known = [condition for condition in conditions if condition is not None]
        return reduce(operator.and_, known) if known else None

    def _meet(self) -> None:
        """Where results take the place of what rows read, nobody writes before all have read."""
        if not self.nest.region.mutable:
            return
        if self._by_barrier:
            self.grid.barrier()
        else:
            self.grid.warp_barrier()

    # ---------------------------------------------------------------- results

    def finish_pass(self, stage: Stage, sets: Sequence[Accumulators]) -> Node:
        def finish() -> None:
            parts = [self.merged(op, cells) for op, *cells in zip(stage, *sets, strict=True)]
            if self._by_barrier and self.mapping.rows_are_neighbours:
                self._meet_in_columns(stage, parts)
            else:
                self._know(stage, self._across_threads(stage, parts))
            self.end_pass()

        return Do("finish", finish)

    def result_of(self, result: Value) -> Register:
        if result not in self.results:  # only who stores it asks
            panel = self._panels[result]
            self.results[result] = panel.reducer.result(self.b, self._column.merged(panel))
        return self.results[result]

    def _know(self, stage: Stage, wholes: Sequence[Accumulator]) -> None:
        for op, whole in zip(stage, wholes, strict=True):
            self.results[op.result] = reducer_of(op).result(self.b, whole)

    def _across_threads(self, stage: Stage, parts: Sequence[Accumulator]) -> Sequence[Accumulator]:
        members = self.mapping.members
        if self._by_barrier:
            panels = [self._panel(op, members // WARP) for op in stage]
            return across_block(self.grid, panels, parts, members, once=self._once)
        if self.mapping.rows_are_neighbours:
            return parts
        reducers = map(reducer_of, stage)
        return [
            across_warp(self.grid, reducer, part, members)
            for reducer, part in zip(reducers, parts, strict=True)
        ]

    def _meet_in_columns(self, stage: Stage, parts: Sequence[Accumulator]) -> None:
        """All members merge for themselves, or only who stores results that no other one needs."""
        panels = [self._panel(op, self.mapping.threads * self.mapping.lanes) for op in stage]
        if self._once:
            self.grid.barrier()  # see Note [Barriers] of `merging.py`
        for panel, part in zip(panels, parts, strict=True):
            self._column.save(panel, part)
        self.grid.barrier()
        if stage is not self.nest.stages[-1] or self.nest.row_stores:
            self._know(stage, [self._column.merged(panel) for panel in panels])

    def _panel(self, op: Op, size: int) -> Panel:
        panel = self._panels.get(op.result)
        if panel is None:
            panel = self._panels[op.result] = shared_panel(self.grid, reducer_of(op), size)
        return panel


class HeldRows(ThreadRows):
    """All of a row in registers of its members, without loops."""

    there: Register | None = None  # whether the element where the loops stand is one

    def begin(self) -> None:
        super().begin()
        self._held: list[dict[Key, Register]] = [{} for _ in self._places]

    def one_pass(self, stage: Stage) -> Node:
        sets = [self.accumulators(stage) for _ in self._places]
        lifts = [
            self._at(number, self.lift(stage, accumulators))
            for number, accumulators in enumerate(sets)
        ]
        return (*lifts, self.finish_pass(stage, sets))

    def along_row(self, body: Node) -> Node:
        return tuple(self._at(number, body) for number in range(len(self._places)))

    def lifted(self, op: Op) -> Accumulator:
        found = super().lifted(op)
        if self.there is None:
            return found
        return chosen(self.b, self.there, found, reducer_of(op).initial(self.b, self.lanes))

    def _who(self, each: bool) -> Register | None:
        return self._all([super()._who(each), self.there if each else None])

    def _at(self, number: int, body: Node) -> Node:
        return Within(f"vector {number}", partial(self._standing, number), body)

    @property
    def _places(self) -> list[tuple[int, ...]]:
        """Of each vector of a row, its number along each reduced variable."""
        along, step = self.mapping.along, self.mapping.step
        counts = [
            -(-var.extent // step) if var is along else var.extent for var in self.nest.reduced
        ]
        return list(itertools.product(*map(range, counts)))

    @contextmanager
    def _standing(self, number: int) -> Iterator[None]:
        mapping, b = self.mapping, self.b
        env = dict(zip(self.nest.reduced, map(b.const, self._places[number]), strict=True))
        along, there, vector = mapping.along, None, None
        if along is not None:
            width = mapping.step // mapping.members
            vector = along if width > 1 else None
            first = env[along] * mapping.step
            if mapping.members > 1:
                first = first + self.emitter.member * width
            if (
                self._places[number][self.nest.reduced.index(along)] + 1
            ) * mapping.step > along.extent:
                there = b.compare("lt", first, along.extent)
                first = b.binary("smin", first, along.extent - width)
            env[along] = first
        before, self.there = self.there, there
        with self.elements.at(
            env, vector=vector, lanes=self.lanes if vector else 0, known=self._held[number]
        ):
            yield
        self.there = before


class LoopedRows(ThreadRows, RowLoops):
    """Long rows in loops."""

    @property
    def along(self) -> Var | None:
        return self.mapping.along

    @property
    def step(self) -> int:
        return self.mapping.step

    def run_along(self, sets: int) -> int:
        return MOST_ADDED * self.step * sets
